"""The core of all experiments: points launched again and again in turn, results kept as they come.

Repeats of the points are interleaved, every other one in the opposite order, so that a machine that slowly becomes
faster or slower does the same to all of them. What is measured is written at once: an experiment that was interrupted
goes on where it was, and does only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from distprof.experiment.launching import Launcher, Training
from distprof.experiment.revisions import resolve
from distprof.experiment.settings import Point
from distprof.experiment.trial import Trial, hosts_of
from distprof.result import doc
from distprof.run.files import read_json, write_atomic
from distprof.run.manifest import RunDirectoryError
from distprof.run.secrets import mask_arguments

SCHEMA: Final = "distprof.experiment.v1"
FILE = "experiment.json"
# Launches a point in a repeat, within so many seconds; None: it did not end within them.
Start = Callable[[Point, int, float | None], Trial | None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment as it stands in `experiment.json`."""

    kind: Annotated[str, doc("`validate`, `overhead` or `sweep`.")]
    key: Annotated[str, doc("What tells experiments apart: command, points, script and versions.")]
    command: Annotated[list[str], doc("The command line.")]
    points: Annotated[list[Point], doc("What is compared.")]
    warmup: Annotated[int, doc("Steps after the first one that are not measured.")]
    steps: Annotated[int, doc("Steps that are measured in each launch.")]
    trials: Annotated[list[Trial], doc("All launches.")] = field(default_factory=list)
    result: Annotated[Any, doc("What they say.")] = None
    schema: Annotated[Literal["distprof.experiment.v1"], doc("Version of this shape.")] = SCHEMA

    def of(self, point: str) -> list[Trial]:
        """Launches of a point that were measured, in the order of their repeats."""
        mine = [trial for trial in self.trials if trial.point == point and trial.failure is None]
        return sorted(mine, key=lambda trial: trial.repeat)

    def failures(self, point: str) -> list[Trial]:
        """Launches of a point that were not."""
        return [trial for trial in self.trials if trial.point == point and trial.failure is not None]

    def together(self, *points: str) -> list[list[Trial]]:
        """For each of these points its launches in the repeats in which all of them were measured, on one host."""
        of_points = [{trial.repeat: trial for trial in self.of(point)} for point in points]
        repeats = sorted(set.intersection(*(set(trials) for trials in of_points)))
        return [
            [trials[repeat] for repeat in repeats if len(hosts_of(each[repeat] for each in of_points)) <= 1]
            for trials in of_points
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is to be measured.

    Attributes:
        repeats: launches of each point, at most.
        budget_s: seconds that all of it may take; None: as long as it takes.
        settled: whether so many whole repeats are enough.
        shuffled: points are taken in another order in each repeat and back again in the next one; else as they stand.
    """

    repeats: int
    budget_s: float | None = None
    settled: Callable[[Experiment, int], bool] = lambda experiment, repeats: False
    shuffled: bool = False


class Watch(Protocol):
    """Is told how an experiment goes on."""

    def says(self, text: str) -> None:
        """Something to know of what comes."""

    def planned(self, launches: int, seconds: float | None) -> None:
        """So many launches are missing, which will take so long; None: nobody knows yet."""

    def starts(self, point: Point, repeat: int) -> None:
        """A launch begins."""

    def ended(self, trial: Trial, launches: int, seconds: float | None) -> None:
        """It has ended, and so many are missing."""


def run(experiment: Experiment, folder: Path, plan: Plan, start: Start, watch: Watch) -> Experiment:
    """Launch what is missing, and keep each result in `folder`.

    A point that fails is left out from then on, and tried again the next time; the others go on. A repeat that goes on
    here but was begun on another host is measured anew: only launches on one host are comparable.

    Raises:
        KeyboardInterrupt: the user's; what was measured so far is in the folder: see `read`.
        OSError: the folder cannot be written.
    """
    began = time.monotonic()
    experiment = replace(
        experiment, trials=[trial for trial in experiment.trials if trial.failure is None], result=None
    )
    watch.planned(*_missing(experiment, plan))
    for repeat in range(plan.repeats):
        if repeat and plan.settled(experiment, repeat):
            break
        order = _order(experiment.points, repeat, plan.shuffled)
        while (point := _next(experiment, order, repeat)) is not None:
            left = None if plan.budget_s is None else plan.budget_s - (time.monotonic() - began)
            if left is not None and left < (_usual_s(experiment, point) or 0.0):
                return experiment
            watch.starts(point, repeat)
            trial = start(point, repeat, left)
            if trial is None:
                return experiment
            kept = [other for other in experiment.trials if _may_stay(other, trial)]
            if len(kept) < len(experiment.trials):
                watch.says(f"Repeat {repeat} was begun on another host than {trial.host}: it is measured anew.")
            experiment = replace(experiment, trials=[*kept, trial])
            write(experiment, folder)
            watch.ended(trial, *_missing(experiment, plan))
    return experiment


def _order(points: Sequence[Point], repeat: int, shuffled: bool) -> list[Point]:
    order = list(points)
    if shuffled:
        random.Random(repeat // 2).shuffle(order)
    return order if repeat % 2 == 0 else order[::-1]


def _next(experiment: Experiment, order: Sequence[Point], repeat: int) -> Point | None:
    """The first point that is missing in a repeat."""
    missing = (point for point in order if not _is_measured(experiment, point, repeat))
    return next((point for point in missing if not experiment.failures(point.name)), None)


def _may_stay(known: Trial, new: Trial) -> bool:
    """Whether a launch stays beside one that was measured now: in one repeat none is of another host."""
    return known.repeat != new.repeat or new.failure is not None or len(hosts_of([known, new])) <= 1


def _is_measured(experiment: Experiment, point: Point, repeat: int) -> bool:
    return any(trial.point == point.name and trial.repeat == repeat for trial in experiment.trials)


def _missing(experiment: Experiment, plan: Plan) -> tuple[int, float | None]:
    """Launches that are missing, and the seconds that they will take, at most the budget; None: no launch tells yet."""
    missing = [
        point
        for repeat in range(plan.repeats)
        for point in experiment.points
        if not _is_measured(experiment, point, repeat) and not experiment.failures(point.name)
    ]
    seconds = [_usual_s(experiment, point) for point in missing]
    known = sum(value for value in seconds if value is not None)
    return len(missing), None if None in seconds else known if plan.budget_s is None else min(known, plan.budget_s)


def _usual_s(experiment: Experiment, point: Point) -> float | None:
    """What a launch of the point takes: as its own ones did, else as those of others; None before the first one."""
    own = [trial.seconds for trial in experiment.of(point.name)]
    seconds = own or [trial.seconds for trial in experiment.trials if trial.failure is None]
    return sorted(seconds)[len(seconds) // 2] if seconds else None


def write(experiment: Experiment, folder: Path) -> None:
    """Write `experiment.json` into the folder, atomically.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    experiment = replace(experiment, points=[point.masked() for point in experiment.points])
    write_atomic(folder / FILE, msgspec.json.format(msgspec.json.encode(experiment), indent=1) + b"\n")


def read(folder: Path) -> Experiment | None:
    """Read it back; None where there is none.

    Raises:
        RunDirectoryError: there is something else.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path), Experiment)
    except (ValueError, OSError) as error:  # msgspec's errors are ValueErrors
        raise RunDirectoryError(f"{path} is no experiment of this version ({error}): give another --out") from error


@dataclass(frozen=True, slots=True)
class Setup:
    """An experiment's folder, what it has measured so far, and how to measure more."""

    folder: Path
    experiment: Experiment
    launcher: Launcher


def prepare(
    kind: str,
    *,
    command: list[str],
    training: Training,
    points: Sequence[Point],
    steps: int,
    warmup: int,
    versions: dict[str, str],
    capture: list[str],
    folder: Path | None = None,
) -> Setup:
    """Find the experiment's folder, and what was measured there before.

    Args:
        kind: the command.
        command: the command line, for the record.
        training: what is launched.
        points: what is compared; revisions are resolved.
        steps, warmup: how many steps are measured in each launch, and how many before them are not.
        versions: of what is used; another version measures anew.
        capture: options of `distprof launch` for all points.
        folder: where the experiment is kept; None: below `./distprof-runs`, by its key.

    Raises:
        ConfigError: a revision cannot be had.
        RunDirectoryError: the folder holds something else.
    """
    resolved = [_resolved(point, point.script or training.script) for point in points]
    scripts = {point.script or training.script for point in points}
    home = Path(training.folder or Path.cwd())
    parts = [
        [training.torchrun, training.script, training.arguments, training.module],
        [msgspec.to_builtins(point) for point in resolved],
        [steps, warmup, capture, str(home), sorted(versions.items())],
        [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for script in sorted(scripts)
            if (path := home / script).is_file()
        ],
    ]
    key = hashlib.sha256(json.dumps([kind, *parts]).encode()).hexdigest()[:12]
    stem = Path(training.script).stem.replace(".", "-") or "run"
    folder = folder or Path("distprof-runs") / f"{kind}-{stem}-{key}"
    known = read(folder)
    if known is not None and known.key != key:
        raise RunDirectoryError(f"{folder} holds another experiment: give another --out")
    if known is None and folder.is_dir() and any(folder.iterdir()):
        raise RunDirectoryError(f"{folder} is not empty and holds no experiment: give another --out")
    fresh = Experiment(kind, key, mask_arguments(command), resolved, warmup, steps)
    experiment = fresh if known is None else replace(known, points=resolved)  # in the file secrets are masked
    return Setup(folder, experiment, Launcher(folder, training, capture, first=1 + warmup))


def _resolved(point: Point, script: str) -> Point:
    if point.revision is None:
        return point
    folder = Path(script).resolve().parent
    return replace(point, revision=resolve(point.revision, folder if folder.is_dir() else Path()))
