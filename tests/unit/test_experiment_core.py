"""The core of experiments, with launches that are made up: order, resuming, failures, budget, interruption."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from distprof.cli import overhead as overhead_command
from distprof.cli import validate as validate_command
from distprof.cli.experiments import ExperimentParser, _duration
from distprof.experiment import core
from distprof.experiment.core import Experiment, Plan, prepare, read, run
from distprof.experiment.launching import Launcher, Training
from distprof.experiment.overhead import WINDOW, WITHOUT, ZONES
from distprof.experiment.overhead import judge as judge_overhead
from distprof.experiment.overhead import points as overhead_points
from distprof.experiment.progress import duration
from distprof.experiment.revisions import lay_out, resolve
from distprof.experiment.settings import Point, parse_point
from distprof.experiment.trial import Trial
from distprof.experiment.validate import judge, looks, settled
from distprof.run.config import ConfigError
from distprof.run.manifest import RunDirectoryError

BASELINE, CANDIDATE = Point("baseline"), Point("candidate", {"loader.num_workers": 2})


@dataclass
class Launches:
    """Launches that are made up: `step` says how long a step of (point, repeat) takes; None: the launch fails."""

    step: Callable[[str, int], float | None]
    seconds: float = 10.0
    checksums: Callable[[str, int], dict[str, str]] = lambda point, repeat: {"SGD#0": "a"}
    interrupted_at: int | None = None
    host: str | None = None
    done: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, point: Point, repeat: int, timeout_s: float | None) -> Trial:
        if len(self.done) == self.interrupted_at:
            raise KeyboardInterrupt
        self.done.append((point.name, repeat))
        step = self.step(point.name, repeat)
        if step is None:
            return Trial(point.name, repeat, self.seconds, "it ended with status 1", ["no such file"], host=self.host)
        return Trial(
            point.name,
            repeat,
            self.seconds,
            step_ms=[0.5 * step, 1.5 * step],
            world_size=2,
            samples_per_step=8.0,
            parts={"data_wait": step / 2},
            zones={"backward": step / 4},
            checksums=self.checksums(point.name, repeat),
            host=self.host,
        )


class Told:
    def __init__(self) -> None:
        self.planned_first: tuple[int, float | None] | None = None
        self.left: list[tuple[int, float | None]] = []

    def says(self, text: str) -> None:
        pass

    def planned(self, launches: int, seconds: float | None) -> None:
        self.planned_first = (launches, seconds)

    def starts(self, point: Point, repeat: int) -> None:
        pass

    def ended(self, trial: Trial, launches: int, seconds: float | None) -> None:
        self.left.append((launches, seconds))


def experiment(*points: Point) -> Experiment:
    return Experiment("validate", "key", ["distprof"], list(points or (BASELINE, CANDIDATE)), warmup=1, steps=2)


def test_repeats_are_taken_in_turn_and_every_other_one_backwards(tmp_path: Path) -> None:
    launches, told = Launches(lambda point, repeat: 10.0), Told()
    found = run(experiment(), tmp_path, Plan(3), launches, told)
    assert launches.done == [
        ("baseline", 0),
        ("candidate", 0),
        ("candidate", 1),
        ("baseline", 1),
        ("baseline", 2),
        ("candidate", 2),
    ]
    assert told.planned_first == (6, None)
    assert told.left == [(5, 50.0), (4, 40.0), (3, 30.0), (2, 20.0), (1, 10.0), (0, 0)]
    assert read(tmp_path) == found
    assert [trial.step for trial in found.of("baseline")] == [10.0] * 3


def test_a_slow_machine_does_the_same_to_all(tmp_path: Path) -> None:
    clock = iter(range(100))
    launches = Launches(lambda point, repeat: 100.0 + 3 * next(clock))  # ever slower, and both points are the same
    found = judge(run(experiment(), tmp_path, Plan(8), launches, Told()), 8)
    assert found.verdict == "cannot_be_told"
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(1, abs=0.01)


def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Launches(lambda point, repeat: 10.0, interrupted_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(experiment(), tmp_path, Plan(3), first, Told())
    kept = read(tmp_path)
    assert kept is not None
    assert judge(kept, 3).why.startswith("of 1 repeat nothing can be concluded")
    second, told = Launches(lambda point, repeat: 10.0), Told()
    run(kept, tmp_path, Plan(3), second, told)
    assert told.planned_first == (3, 30.0)
    assert first.done + second.done == [
        ("baseline", 0),
        ("candidate", 0),
        ("candidate", 1),
        ("baseline", 1),
        ("baseline", 2),
        ("candidate", 2),
    ]
    third = Launches(lambda point, repeat: 10.0)
    done = read(tmp_path)
    assert done is not None
    run(done, tmp_path, Plan(3), third, Told())
    assert third.done == []


def test_a_repeat_that_was_begun_on_another_host_is_measured_anew(tmp_path: Path) -> None:
    first = Launches(lambda point, repeat: 10.0, interrupted_at=3, host="one")
    with pytest.raises(KeyboardInterrupt):
        run(experiment(), tmp_path, Plan(3), first, Told())
    kept = read(tmp_path)
    assert kept is not None
    second = Launches(lambda point, repeat: 30.0, host="two")
    found = run(kept, tmp_path, Plan(3), second, Told())
    assert second.done == [("baseline", 1), ("candidate", 1), ("baseline", 2), ("candidate", 2)]
    assert [trial.host for trial in found.of("candidate")] == ["one", "two", "two"]
    assert [[trial.host for trial in trials] for trials in found.together("baseline", "candidate")] == [
        ["one", "two", "two"]
    ] * 2


def test_what_fails_on_another_host_too_costs_no_measurement(tmp_path: Path) -> None:
    points = [Point("a"), Point("broken"), Point("c")]
    steps: dict[str, float | None] = {"a": 10.0, "broken": None, "c": 10.0}
    found = run(experiment(*points), tmp_path, Plan(2), Launches(lambda p, _: steps[p], host="one"), Told())
    again = Launches(lambda p, _: steps[p], host="two")
    found = run(found, tmp_path, Plan(2), again, Told())
    assert again.done == [("broken", 0)]
    assert len(found.of("a")) == len(found.of("c")) == 2
    steps["broken"] = 10.0
    mended = Launches(lambda p, _: steps[p], host="two")
    found = run(found, tmp_path, Plan(2), mended, Told())
    assert sorted(mended.done) == [(name, repeat) for name in ("a", "broken", "c") for repeat in (0, 1)]
    assert {trial.host for trial in found.trials} == {"two"}


def test_only_what_one_host_measured_is_together(tmp_path: Path) -> None:
    trials = [
        Trial(name, 0, 1.0, step_ms=[1.0], host=host) for name, host in (("baseline", "one"), ("candidate", "two"))
    ]
    trials += [Trial(name, 1, 1.0, step_ms=[1.0]) for name in ("baseline", "candidate")]
    assert [
        [trial.repeat for trial in row]
        for row in replace(experiment(), trials=trials).together("baseline", "candidate")
    ] == [[1], [1]]


def test_a_point_that_fails_does_not_stop_the_others_and_is_tried_again_the_next_time(tmp_path: Path) -> None:
    points = [Point("a"), Point("broken"), Point("c")]
    launches = Launches(lambda point, repeat: None if point == "broken" else 10.0)
    found = run(experiment(*points), tmp_path, Plan(2), launches, Told())
    assert launches.done == [("a", 0), ("broken", 0), ("c", 0), ("c", 1), ("a", 1)]
    assert [trial.tail for trial in found.failures("broken")] == [["no such file"]]
    again = Launches(lambda point, repeat: 10.0)
    mended = run(found, tmp_path, Plan(2), again, Told())
    assert again.done == [("broken", 0), ("broken", 1)]
    assert mended.failures("broken") == []


def test_where_one_side_fails_the_other_is_not_measured_in_vain(tmp_path: Path) -> None:
    launches = Launches(lambda point, repeat: None if point == "candidate" else 10.0)
    plan = Plan(6, settled=partial(settled, planned=6))
    found = judge(run(experiment(), tmp_path, plan, launches, Told()), 6)
    assert launches.done == [("baseline", 0), ("candidate", 0)]
    assert (found.verdict, found.ratio) == ("cannot_be_told", None)
    assert found.why == "a launch of the candidate failed: it ended with status 1"
    assert found.candidate.tail == ["no such file"]
    assert found.baseline.steps == [10.0]


def test_the_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(core.time, "monotonic", lambda: now[0])
    launches, told = Launches(lambda point, repeat: 10.0), Told()
    timeouts: list[float | None] = []

    def start(point: Point, repeat: int, timeout_s: float | None) -> Trial:
        timeouts.append(timeout_s)
        now[0] += 10
        return launches(point, repeat, timeout_s)

    run(experiment(), tmp_path, Plan(100, budget_s=45), start, told)
    assert len(launches.done) == 4
    assert timeouts == [45, 35, 25, 15]
    assert told.left[0] == (199, 45)


def test_a_launch_that_does_not_end_within_the_budget_is_no_failure_of_its_point(tmp_path: Path) -> None:
    found = run(experiment(), tmp_path, Plan(3, budget_s=5), lambda point, repeat, timeout_s: None, Told())
    assert found.trials == []
    assert judge(found, 3).why == "there is no repeat in which both were measured"


def test_a_revision_without_the_script_is_a_failure_of_its_point_alone(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, Training([], str(tmp_path / "train.py"), [], module=False), [], 1)
    trial = launcher(Point("old", revision="0" * 40), 0, None)
    assert trial is not None
    assert trial.failure is not None
    assert trial.failure.endswith("is in no git repository")


def test_a_clear_case_ends_half_way(tmp_path: Path) -> None:
    noise = iter([1.0, 1.01, 0.99, 1.02, 1.0, 0.98] * 10)
    launches = Launches(lambda point, repeat: (50 if point == "candidate" else 100) * next(noise))
    plan = Plan(8, settled=partial(settled, planned=8))
    found = judge(run(experiment(), tmp_path, plan, launches, Told()), 8)
    assert len(launches.done) == 8
    assert looks(8) == [4, 8]
    assert found.verdict == "faster"
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(0.5, rel=0.03)
    assert found.ratio.confidence == pytest.approx(0.995)
    assert found.baseline.samples_per_s == pytest.approx(160, rel=0.03)
    assert [(part.part, round(part.baseline / part.candidate)) for part in found.parts] == [("data_wait", 2)]


@pytest.mark.parametrize(
    ("checksums", "told"),
    [
        (lambda point, repeat: {"SGD#0": "a"}, "same"),
        (lambda point, repeat: {"SGD#0": point}, "changed"),
        (lambda point, repeat: {"SGD#0": f"{repeat}"}, "not_repeatable"),
        (lambda point, repeat: {}, "unknown"),
    ],
)
def test_a_candidate_that_changes_the_training_is_told(
    tmp_path: Path, checksums: Callable[[str, int], dict[str, str]], told: str
) -> None:
    launches = Launches(lambda point, repeat: 10.0, checksums=checksums)
    assert judge(run(experiment(), tmp_path, Plan(2), launches, Told()), 2).training == told


def test_steps_of_other_sizes_are_compared_by_sample(tmp_path: Path) -> None:
    launches = Launches(lambda point, repeat: 20.0 + repeat / 10)

    def start(point: Point, repeat: int, timeout_s: float | None) -> Trial:
        trial = launches(point, repeat, timeout_s)
        return replace(trial, samples_per_step=16.0 if point.name == "candidate" else 8.0)

    found = judge(run(experiment(), tmp_path, Plan(4), start, Told()), 4)
    assert (found.per, found.verdict) == ("sample", "faster")
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(0.5)


def test_overhead_is_told_for_steps_and_their_parts(tmp_path: Path) -> None:
    points = overhead_points(warmup=10, steps=40)
    assert points[2].options == ["--schedule", "wait=8,warmup=2,active=42"]
    cost = {WITHOUT: 100.0, ZONES: 101.0, WINDOW: 110.0}
    noise = iter([1.0, 1.001, 0.999] * 20)
    launches = Launches(lambda point, repeat: cost[point] * next(noise))
    found = judge_overhead(run(experiment(*points), tmp_path, Plan(4), launches, Told()))
    ratios = {(row.what, row.recorded, row.against): row.ratio.estimate for row in found.costs}
    assert ratios["step", ZONES, WITHOUT] == pytest.approx(1.01, abs=0.003)
    assert ratios["step", WINDOW, ZONES] == pytest.approx(1.089, abs=0.003)
    assert ratios["backward", WINDOW, WITHOUT] == pytest.approx(1.1, abs=0.003)
    assert [row.what for row in found.costs[:3]] == ["step"] * 3


def test_points_are_read() -> None:
    read_point = parse_point("x", "loader.num_workers=4 script='my other.py' git=HEAD~1 ddp.static_graph=true")
    assert read_point == Point("x", {"loader.num_workers": 4, "ddp.static_graph": True}, "my other.py", "HEAD~1")
    assert parse_point("x", "") == Point("x")
    for text in ("loader.workers=1", "train.py", "script=", "git=", "'"):
        with pytest.raises(ConfigError):
            parse_point("x", text)


def training(*words: str) -> Training:
    arguments = validate_command.build_parser().parse_args(["--candidate", "", *words])
    return Training.of(arguments, get_args_parser())


def test_torchruns_options_are_handed_on() -> None:
    found = training("--nproc-per-node", "4", "-m", "--redirects=3", "--max-restarts=2", "pkg.train", "--steps", "7")
    assert (found.script, found.arguments, found.module) == ("pkg.train", ["--steps", "7"], True)
    assert set(found.torchrun) == {
        "--nproc-per-node=4",
        "--module",
        "--redirects=3",
        "--max-restarts=2",
        "--standalone",
    }
    again = get_args_parser().parse_args([*found.torchrun, found.script, *found.arguments])
    assert (again.nproc_per_node, again.module, again.redirects, again.max_restarts) == ("4", True, "3", 2)
    assert "--standalone" not in training("--master-port=1234", "train.py").torchrun


def setup(
    tmp_path: Path, script: Path, *points: Point, folder: str = "out", arguments: list[str] | None = None
) -> core.Setup:
    return prepare(
        "validate",
        command=["distprof", "validate"],
        training=Training([], str(script), arguments or [], module=False),
        points=points,
        steps=2,
        warmup=1,
        versions={},
        capture=["--checksum"],
        folder=tmp_path / folder,
    )


def test_a_folder_belongs_to_one_experiment(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    first = setup(tmp_path, script, BASELINE, CANDIDATE)
    done = run(first.experiment, first.folder, Plan(1), Launches(lambda point, repeat: 1.0), Told())
    assert setup(tmp_path, script, BASELINE, CANDIDATE).experiment == done
    with pytest.raises(RunDirectoryError, match="holds another experiment"):
        setup(tmp_path, script, BASELINE, BASELINE)
    with pytest.raises(RunDirectoryError, match="holds another experiment"):
        setup(tmp_path, script, BASELINE, CANDIDATE, arguments=["--lr", "1"])
    script.write_text("pass  # changed since")
    with pytest.raises(RunDirectoryError, match="holds another experiment"):
        setup(tmp_path, script, BASELINE, CANDIDATE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunDirectoryError, match="not empty"):
        setup(tmp_path, script, BASELINE, CANDIDATE, folder="full")
    (first.folder / core.FILE).write_text('{"kind": 3}')
    with pytest.raises(RunDirectoryError, match="no experiment of this version"):
        setup(tmp_path, script, BASELINE, CANDIDATE)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_script_as_it_was_in_another_revision(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "pkg").mkdir(parents=True)
    script = repository / "pkg" / "train.py"
    script.write_text("old")
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "old")
    script.write_text("new")
    before = git(repository, "status", "--porcelain")
    revision = resolve("HEAD", script.parent)
    assert lay_out(revision, script, tmp_path / "trees").read_text() == "old"
    assert lay_out(revision, script, tmp_path / "trees") == tmp_path / "trees" / revision / "pkg" / "train.py"
    assert git(repository, "status", "--porcelain") == before
    assert git(repository, "worktree", "list").count("\n") == 0
    with pytest.raises(ConfigError, match=r"has no pkg/other\.py"):
        lay_out(revision, script.with_name("other.py"), tmp_path / "trees")
    for wrong in ("nope", "--help", "HEAD~5"):
        with pytest.raises(ConfigError, match="in no git repository that has it"):
            resolve(wrong, repository)
    made = setup(tmp_path, script, replace(BASELINE, revision="HEAD"), CANDIDATE)
    assert made.experiment.points[0].revision == revision
    words, folder = made.launcher._words(made.experiment.points[0], tmp_path / "run")
    assert (words[-1], folder) == (str(made.folder / "trees" / revision / "pkg" / "train.py"), None)
    as_module = Launcher(made.folder, Training([], "pkg.train", [], module=True), [], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        words, folder = as_module._words(made.experiment.points[0], tmp_path / "run")
    assert (words[-1], folder) == ("pkg.train", made.folder / "trees" / revision)


def test_times_are_read_and_told() -> None:
    assert [_duration(text) for text in ("90s", "20min", "1.5 h")] == [90, 1200, 5400]
    assert [duration(seconds) for seconds in (7.2, 99, 130, 9000)] == ["7 s", "99 s", "3 min", "2.5 h"]
    for text in ("", "20", "0s", "-1min", "1d"):
        with pytest.raises(argparse.ArgumentTypeError):
            _duration(text)


def test_wrong_command_lines_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["train.py"], "--candidate"),
        (["--candidate", "loader.workers=1", "train.py"], "did you mean loader.num_workers"),
        (["--candidate", "", "--nnodes=2", "train.py"], "on this host only"),
        (["--candidate", "", "--budget", "soon", "train.py"], "no time such as"),
        (["--candidate", "git=no-such-revision", "train.py"], "in no git repository that has it"),
        (["--candidate", "", "--fail-if", "verdct == 'slower'", "train.py"], "did you mean verdict"),
    ):
        with pytest.raises(SystemExit) as end:
            validate_command.main(words)
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert isinstance(overhead_command.build_parser(), ExperimentParser)


def test_a_result_is_left_and_told_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--candidate", "loader.num_workers=2", "--repeats", "3", "--out", "out", "train.py"]

    def with_launches(launches: Launches, *more: str) -> int:
        monkeypatch.setattr(Launcher, "__call__", lambda self, *arguments: launches(*arguments))
        return validate_command.main([*more, *words])

    assert with_launches(Launches(lambda point, repeat: 10.0, interrupted_at=3)) == 130
    assert "It cannot be told which is faster" in capsys.readouterr().out
    kept = read(tmp_path / "out")
    assert kept is not None
    assert kept.result["verdict"] == "cannot_be_told"
    rest = Launches(lambda point, repeat: (12.0 if point == "candidate" else 10.0) + repeat / 100)
    assert with_launches(rest, "--fail-if", "ratio.estimate > 1.05") == 3
    assert len(rest.done) == 3
    printed = capsys.readouterr()
    assert "candidate, repeat 3: 12.02 ms per step" in printed.err
    assert "3 launches at most, about 30 s" in printed.err
    failing = Launches(lambda point, repeat: None)
    monkeypatch.chdir(tmp_path / "out")
    assert with_launches(failing) == 1
    printed = capsys.readouterr()
    assert "no such file" in printed.err
    assert "A launch of the baseline failed: it ended with status 1" in " ".join(printed.out.split())
