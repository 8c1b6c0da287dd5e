"""`distprof completion`: the script is run by the shell it is for."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from distprof.cli import completion
from distprof.cli.main import COMMANDS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "distprof.bash"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert completion.main(["bash"]) == 0
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    line = " ".join(map(shlex.quote, words))
    program = f"source {shlex.quote(str(script))}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
    program += 'eval "$(complete -p distprof | sed \'s/.*-F \\([^ ]*\\) .*/\\1/\')"; printf "%s\\n" "${COMPREPLY[@]}"'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_commands_are_completed(script: Path) -> None:
    assert set(COMMANDS) <= set(completed(script, "distprof", ""))
    assert completed(script, "distprof", "rep") == ["report"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("launch", "--nproc"), "--nproc-per-node"),
        (("launch", "--sched"), "--schedule"),
        (("report", "--ht"), "--html"),
    ],
)
def test_options_are_completed(script: Path, words: tuple[str, ...], option: str) -> None:
    assert option in completed(script, "distprof", *words)


def test_an_unknown_shell_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        completion.main(["fish-and-chips"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err
