"""The command line: dispatching, its own errors, and `report` and `merge` around a finished result."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import distprof
from distprof import pipeline
from distprof.cli import main as cli
from distprof.cli import merge, report
from distprof.report import make, page
from distprof.report import timeline as drawn
from distprof.result import Result, from_json
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.trace import load as loading
from tests.unit import results


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and summary in text for name, summary in cli.COMMANDS.items())
    assert cli.main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"distprof {distprof.__version__}\n"


@pytest.mark.parametrize(("word", "hint"), [("reprot", "'report'"), ("xyzzy", ", ".join(cli.COMMANDS))])
def test_an_unknown_command_is_one_line(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word, "--json", "-"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert word in one_line(captured.err) and hint in captured.err


def test_everything_after_the_command_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def record(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    monkeypatch.setattr(report, "main", record)
    assert cli.main(["report", "--version", "--", "-h", "x"]) == 7
    assert seen == [["--version", "--", "-h", "x"]]


def test_an_interrupt_ends_quietly_but_for_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "main", interrupted)
    assert cli.main(["report", "x"]) == 130


def test_help_imports_nothing_heavy_and_is_instant() -> None:
    code = "import sys; from distprof.cli.main import main; main(['--help']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "polars", "numpy", "rich", "msgspec", "jinja2"} & set(run.stdout.split())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "distprof", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.15


@dataclass
class FakeRun:
    """Stands for a loaded run: the result of its analysis is made by hand."""

    directory: RunDirectory
    manifest: str = "there is one"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that 'loads', and whose analysis is the straggler made by hand."""

    def build(run: FakeRun, steps: object = None) -> Result:
        return results.straggler()

    def timeline(run: FakeRun, result: Result, path: Path, *_: object) -> None:
        path.write_bytes(b"timeline")

    def load(path: Path, **_: object) -> FakeRun:
        return FakeRun(RunDirectory(path))

    monkeypatch.setattr(loading, "load", load)
    for module in (pipeline, merge):
        monkeypatch.setattr(module, "build", build)
    for module in (drawn, merge):
        monkeypatch.setattr(module, "write_timeline", timeline)
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_report_prints_and_leaves_its_files(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "Rank 2 holds the others up" in text
    assert text.splitlines()[-3:] == [
        f"report:   {run_dir}/report.html",
        f"data:     {run_dir}/report.json",
        f"timeline: {run_dir}/timeline.json.gz",
    ]
    assert from_json((run_dir / "report.json").read_bytes()) == results.straggler()
    assert "<h1>" in (run_dir / "report.html").read_text()
    assert (run_dir / "timeline.json.gz").read_bytes() == b"timeline"


def test_a_directory_that_cannot_be_written_is_told(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    for written in (page, "write_page"), (make, "write_atomic"), (drawn, "write_timeline"):
        monkeypatch.setattr(*written, refuse)
    assert cli.main(["report", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "Rank 2 holds the others up" in text
    assert text.count("not written") == 3 and "Permission denied" in text
    assert list(run_dir.iterdir()) == []


def test_json_to_standard_output_and_nothing_else(run_dir: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["report", str(run_dir), "--json", "-"]) == 0
    captured = capfdbinary.readouterr()
    assert json.loads(captured.out)["stragglers"]["verdict"] == "straggler"
    assert captured.err == b""
    assert list(run_dir.iterdir()) == []


def test_chosen_files_only(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, html = tmp_path / "x.json", tmp_path / "x.html"
    assert cli.main(["report", str(run_dir), "--json", str(data), "--html", str(html)]) == 0
    assert from_json(data.read_bytes()) == results.straggler()
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert "Rank 2 holds the others up" in capsys.readouterr().out
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("command", [["report"], ["merge", "-o", "out.json.gz"]])
@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["nowhere"], "nowhere does not exist: give a run directory, traces, or a folder of traces"),
        (["trace.json"], "trace.json: it was not read: it has no list of events"),
        (["run", "trace.json"], "run is a run directory and trace.json is none: give it alone"),
        (["empty"], "has no run.json and no traces"),
        (["trace.json", "--rank", "trace.json"], "is not FILE=N"),
        (["trace.json", "--collective", "[a=all_reduce"], "'[a' is no regular expression"),
        ([], "required"),
    ],
)
def test_unusable_input_is_one_line_and_status_2(
    command: list[str],
    paths: list[str],
    says: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "empty"):
        Path(folder).mkdir()
    Path("run", "run.json").write_text("{}")
    Path("trace.json").write_text("{}")
    with pytest.raises(SystemExit) as end:
        cli.main([*command, *paths])
    assert end.value.code == 2
    captured = capsys.readouterr()
    line = one_line(captured.err)
    assert line.startswith(f"distprof {command[0]}: error: ") and says in line
    assert captured.out == ""


def test_an_error_of_several_lines_becomes_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path, **_: object) -> FakeRun:
        raise RunDirectoryError("broken\nin two places")

    monkeypatch.setattr(loading, "load", broken)
    with pytest.raises(SystemExit):
        cli.main(["report", str(run_dir)])
    assert one_line(capsys.readouterr().err) == "distprof report: error: broken in two places"


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_one_line(
    option: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path / "nowhere" / "x", tmp_path):
        with pytest.raises(SystemExit) as end:
            cli.main(["report", str(run_dir), option, str(target)])
        assert end.value.code == 2
        assert str(target) in one_line(capsys.readouterr().err)


def test_merge_writes_the_timeline_and_overwrites_only_by_force(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "all.json.gz"
    arguments = ["merge", str(run_dir), "-o", str(target)]
    assert cli.main(arguments) == 0
    assert re.fullmatch(rf"{re.escape(str(target))}  8 B  \d+\.\d s\n", capsys.readouterr().out)
    target.write_bytes(b"precious")
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2 and "--force" in one_line(capsys.readouterr().err)
    assert target.read_bytes() == b"precious"
    assert cli.main([*arguments, "--force"]) == 0
    assert target.read_bytes() == b"timeline"


def test_merge_refuses_other_endings(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["merge", str(run_dir), "-o", str(tmp_path / "x.zip")])
    assert ".json.gz" in one_line(capsys.readouterr().err)


def test_a_locale_without_the_dash_does_not_end_the_report(run_dir: Path) -> None:
    code = (
        "import sys; from distprof.cli import main, report; from distprof.report import terminal;"
        "from rich.console import Console; from tests.unit import results;"
        "report.main = lambda argv: terminal.render(results.healthy(), Console()) or 0;"
        "sys.exit(main.main(['report', 'x']))"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    assert b"No rank holds the others up" in run.stdout


def test_quiet_is_the_verdict_alone(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run_dir), "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Rank 2 holds the others up" in lines[1]
    assert len(lines) < 10 and "Findings" not in lines
    assert (run_dir / "report.json").exists(), "what is left in the run directory is the same"


def test_steps_that_are_none_are_bad_usage(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(run_dir), "--steps", "20:10"])
    assert ended.value.code == 2
    assert "'20:10' names no steps" in one_line(capsys.readouterr().err)
