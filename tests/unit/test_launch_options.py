"""`distprof launch` reads torchrun's command line as torchrun does, and its own options before anything starts."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.run import get_args_parser

from distprof.cli import env, launch
from distprof.run.directory import RunDirectory
from distprof.run.manifest import read_manifest

SCRIPT = ["train.py", "--run-dir", "x", "--no-window", "--", "--help", "", "-m", "--nproc=9", "--no-"]


TORCHRUNS = {action.dest for action in get_args_parser()._actions}


def actions() -> list[argparse.Action]:
    return [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]


def value(action: argparse.Action) -> list[str]:
    """A value that is not the default."""
    if action.nargs == 0:
        return []
    if action.choices:
        return [str(next(choice for choice in action.choices if choice != action.default))]
    return ["7"]


def torchrun(argv: list[str], parser: argparse.ArgumentParser | None = None) -> dict[str, object] | None:
    """What torchrun reads; None where it refuses."""
    try:
        return vars((parser or get_args_parser()).parse_args(argv))
    except SystemExit as end:
        assert end.code == 2
        return None


def ours(argv: list[str], parser: argparse.ArgumentParser | None = None) -> dict[str, object] | None:
    """What we read of torchrun's options; None where we refuse."""
    try:
        everything = vars((parser or launch.build_parser()).parse_args(argv))
    except SystemExit as end:
        assert end.code == 2
        return None
    return {name: read for name, read in everything.items() if name in TORCHRUNS}


def spellings() -> list[str]:
    return [spelling for action in actions() for spelling in action.option_strings]


@pytest.mark.parametrize("spelling", spellings())
def test_every_option_of_the_installed_torchrun(spelling: str) -> None:
    (action,) = (action for action in actions() if spelling in action.option_strings)
    forms = [[spelling, *value(action)]]
    if value(action):
        forms.append(["".join([spelling, "=" if spelling.startswith("--") else "", *value(action)])])
    for form in forms:
        expected = torchrun([*form, *SCRIPT])
        assert expected is not None
        assert expected[action.dest] != action.default
        assert expected["training_script_args"] == SCRIPT[1:]
        assert ours([*form, *SCRIPT]) == expected
        assert ours(["--run-dir", "a", *form, "--no-report", *SCRIPT]) == expected


def test_every_abbreviation_means_what_it_means_to_torchrun() -> None:
    prefixes = {spelling[:end] for spelling in spellings() for end in range(3, len(spelling) + 1)}
    theirs, mine = get_args_parser(), launch.build_parser()
    understood = 0
    for prefix in sorted(prefixes - {"--nproc"}):
        for words in ([prefix, "train.py"], [prefix, "7", "train.py"], [prefix, "node", "x"], ["train.py", prefix]):
            expected = torchrun(words, theirs)
            assert ours(words, mine) == expected, words
            understood += expected is not None
    assert understood > 1000


@pytest.mark.parametrize("spelling", ["--standal", "--max-", "--max-res", "--no-", "--no-py", "--run-", "--re", "--ro"])
def test_our_options_make_no_abbreviation_ambiguous(spelling: str) -> None:
    words = [spelling, "3", "train.py"]
    assert ours(words) == torchrun(words) is not None


def test_nproc_is_short_for_nproc_per_node() -> None:
    for form in (["--nproc", "4"], ["--nproc=4"]):
        assert ours([*form, "train.py"]) == torchrun(["--nproc-per-node", "4", "train.py"])


@pytest.mark.parametrize("action", actions(), ids=lambda action: action.dest)
def test_torchruns_variables(action: argparse.Action, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PET_{action.dest.upper()}", (value(action) or ["1"])[0])
    assert ours(SCRIPT) == torchrun(SCRIPT) is not None


@pytest.mark.parametrize(
    "words",
    [
        ["--", "train.py", "--", "a"],
        ["-m", "pkg.train", "-m", "x"],
        ["--no-python", "bash", "-c", "exec python $0", "train.py"],
        ["train.py", "-"],
        ["train.py", "--", "--", ""],
        ["train.py", "@file", "-1", "--x y"],
        ["-", "a"],
        ["--nnodes", "1:4", "--nproc_per_node", "auto", "-r", "0:1,1:2", "-t3", "train.py", "@file"],
        [],
        ["--nproc-per-node"],
        ["--no-such-option", "train.py"],
        ["--start-method", "no-such", "train.py"],
        ["--max-restarts", "x", "train.py"],
    ],
)
def test_other_command_lines(words: list[str]) -> None:
    assert ours(words) == torchrun(words)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[launch.LaunchSpec]:
    """What would be launched, from a folder of its own."""
    specs: list[launch.LaunchSpec] = []
    monkeypatch.setattr(launch, "launch", lambda spec, *_: specs.append(spec))
    monkeypatch.chdir(tmp_path)
    return specs


def refusal(
    words: list[str], capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int] = launch.main
) -> str:
    """The one line that refuses a command line with status 2."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--schedule", "wait=x"], "argument --schedule: 'wait=x' is not one of wait|warmup|active|repeat=NUMBER"),
        (["--schedule", "active=0"], "active and repeat at least 1"),
        (["--window-ranks", "some"], "'some' is not 'all', 'auto' or ranks such as 0,8"),
        (["--window-ranks", ""], "'' is not 'all', 'auto' or ranks"),
        (["--window-ranks", "0,-1"], "'0,-1' is not"),
        (["--window-ranks", "0,2"], "there is no rank 2, they go from 0 to 1"),
        (["--nnodes", "1:2", "--window-ranks", "0,4"], "there is no rank 4, they go from 0 to 3"),
        (["--window-ranks", "0", "--no-window"], "not allowed with argument"),
        (["--activities", "gpu"], "'gpu' is not one of auto|cpu|cpu,cuda|cpu,xpu"),
        (["--activities", "cuda"], "'cuda' is not one of"),
        (["--record", "shape"], "'shape' is not one of shapes, memory, stacks, flops"),
        (["--max-trace-mb", "0"], "'0' is not a number of megabytes above 0, or 'none'"),
        (["--max-trace-mb", "nan"], "'nan' is not a number"),
    ],
)
def test_a_bad_value_is_refused_before_anything_starts(
    words: list[str], says: str, *, started: list[launch.LaunchSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(["--nproc", "2", *words, "train.py"], capsys)
    assert line.startswith("distprof launch: error: ")
    assert says in line
    assert started == []
    assert list(Path().iterdir()) == []


def test_the_options_reach_the_ranks(started: list[launch.LaunchSpec]) -> None:
    options = ["--schedule", "wait=1,active=2", "--window-ranks", "1,0,1", "--activities", "CPU", "--record", "shapes"]
    assert launch.main(["--nproc", "2", *options, "--max-trace-mb", "1.5", "--no-report", "train.py"]) == 0
    capture = started[0].capture
    assert (capture.schedule.wait, capture.schedule.warmup, capture.schedule.active) == (1, 2, 2)
    assert (capture.window_ranks, capture.activities, capture.record) == ([0, 1], ["cpu"], ["shapes"])
    assert capture.max_trace_mb == 1.5
    assert capture.from_environment(started[0].environment({})) == capture
    assert read_manifest(RunDirectory(Path(capture.run_dir))).config["window_ranks"] == [0, 1]


def test_what_is_not_said_has_a_default(started: list[launch.LaunchSpec]) -> None:
    launch.main(["--no-report", "train.py"])
    capture = started[0].capture
    assert (capture.window_ranks, capture.activities, capture.record, capture.max_trace_mb) == (None, None, [], 200)
    launch.main(["--no-report", "--no-window", "--max-trace-mb", "none", "train.py"])
    assert (started[1].capture.window_ranks, started[1].capture.max_trace_mb) == ([], None)


def test_auto_takes_a_sample_of_a_large_world(started: list[launch.LaunchSpec]) -> None:
    launch.main(["--no-report", "--nproc", "16", "--window-ranks", "auto", "train.py"])
    launch.main(["--no-report", "--nnodes", "4", "--nproc", "8", "--window-ranks", "auto", "train.py"])
    few, many = (spec.capture.window_ranks for spec in started)
    assert few is None
    assert many is not None
    assert len(many) == 16
    assert {0, 8, 16, 24} < set(many)


def test_launches_of_the_same_second_have_a_directory_each(started: list[launch.LaunchSpec]) -> None:
    for _ in range(3):
        launch.main(["--no-report", "sub/train.py"])
    assert len({spec.capture.run_dir for spec in started}) == 3
    assert all(Path(spec.capture.run_dir).parent == Path("distprof-runs").absolute() for spec in started)


def test_secrets_of_the_command_line_are_not_recorded(started: list[launch.LaunchSpec]) -> None:
    launch.main(["--no-report", "train.py", "--api-key", "s3cr3tvalue"])
    assert "s3cr3tvalue" not in RunDirectory(Path(started[0].capture.run_dir)).manifest.read_text()


def fake_torch(built_with: tuple[str, ...], available: bool) -> SimpleNamespace:
    device = SimpleNamespace(is_available=lambda: available)
    activities = [SimpleNamespace(name=name) for name in ("CPU", *built_with)]
    profiler = SimpleNamespace(supported_activities=lambda: activities)
    return SimpleNamespace(__version__="9.9", profiler=profiler, cuda=device, xpu=device)


@pytest.mark.parametrize(
    ("asked", "built_with", "says"),
    [
        ("cpu,cuda", (), "cpu,cuda: torch 9.9 was built without cuda profiling: install a build that has it"),
        ("cpu,cuda", ("CUDA",), "cpu,cuda: torch.cuda.is_available() is False: check the driver"),
        ("cpu,xpu", ("CUDA",), "cpu,xpu: torch 9.9 was built without xpu profiling"),
        ("cpu,xpu", ("XPU",), "cpu,xpu: torch.xpu.is_available() is False"),
    ],
)
def test_activities_that_cannot_be_recorded_here_are_refused(
    asked: str,
    built_with: tuple[str, ...],
    says: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
    started: list[launch.LaunchSpec],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("distprof.launcher.local.torch", fake_torch(built_with, available=False))
    line = refusal(["--activities", asked, "train.py"], capsys)
    assert says in line
    assert line.endswith("or give --activities auto")
    assert started == []


def test_activities_that_can_be_recorded_are_taken(
    monkeypatch: pytest.MonkeyPatch, started: list[launch.LaunchSpec]
) -> None:
    monkeypatch.setattr("distprof.launcher.local.torch", fake_torch(("CUDA",), available=True))
    launch.main(["--no-report", "--activities", "cuda, cpu", "train.py"])
    assert started[0].capture.activities == ["cpu", "cuda"]


def test_env_takes_the_same_capture_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def capture_options(parser: argparse.ArgumentParser) -> dict[tuple[str, ...], object]:
        torchruns = set(spellings())
        return {
            tuple(action.option_strings): action.default
            for action in parser._actions
            if action.option_strings and not torchruns & set(action.option_strings)
        }

    of_launch, of_env = capture_options(launch.build_parser()), capture_options(env.build_parser())
    assert (
        dict(
            itertools.filterfalse(
                lambda item: item[0] in {("--nproc",), ("--no-report",), ("--stage-dir",)}, of_launch.items()
            )
        )
        == of_env
    )
    assert "name ranks" in refusal(["--run-dir", str(tmp_path / "x"), "--window-ranks", "auto"], capsys, env.main)
    assert "'gpu' is not one of" in refusal(["--run-dir", str(tmp_path / "x"), "--activities", "gpu"], capsys, env.main)
    assert "--run-dir" in refusal([], capsys, env.main)
    assert list(tmp_path.iterdir()) == []
