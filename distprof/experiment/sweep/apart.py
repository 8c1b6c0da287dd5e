"""Measuring in jobs whose order is Hydra's: each takes its point and the baseline in turn, and knows of no other."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from omegaconf import DictConfig

from distprof.experiment.core import Experiment, Plan, Watch, read, run
from distprof.experiment.settings import Point
from distprof.experiment.statistics import ratio
from distprof.experiment.sweep.config import Objective
from distprof.experiment.sweep.grid import EXPLAINED, JOBS, MEASURED, Grid, Job, grid_of
from distprof.experiment.sweep.judge import About, Measured, judge, together
from distprof.experiment.sweep.measure import explain, placed, relative
from distprof.experiment.sweep.points import (
    BASELINE,
    values_of,
)
from distprof.experiment.sweep.result import Sweep
from distprof.experiment.validate import median
from distprof.run.files import read_json, write_atomic
from distprof.run.identity import host_name

_ABOUT = "about.json"


def measure_apart(config: DictConfig, out: Path, command: list[str], number: int, watch: Watch) -> float:
    """Measure one point and the baseline in turn, as a job of Hydra's that knows nothing of the others.

    Args:
        config: the point's.
        out: the sweep's folder.
        command: the command line.
        number: the job's; the first one explains the baseline, too.
        watch: is told.

    Returns:
        The objective: less is better; infinite where a launch failed.
    """
    grid = grid_of([Job.of(config)], out, command)
    folder = out / JOBS / _key(grid.points[-1])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _ABOUT, msgspec.json.encode(grid.about()))
    point = grid.points[-1].masked()
    watch.says(f"job {number}: {point.words() or shlex.join(point.arguments or [])}, in turn with the baseline.")
    with _alone(out / JOBS, watch):
        done = _turns(grid, folder, number, watch)
    return objective(done, config.measure.objective)


def _turns(grid: Grid, folder: Path, number: int, watch: Watch) -> Experiment:
    setup, budget, measure = grid.setup(folder, MEASURED), grid.budget_s, grid.config.measure
    done = run(setup.experiment, setup.folder, Plan(measure.repeats, budget, _any_failed), setup.launcher, watch)
    if measure.explain and not any(done.failures(point.name) for point in done.points):
        names = {point.name for point in grid.points if number == 0 or point.name != BASELINE or len(grid.points) == 1}
        explain(grid, folder, names, None if budget is None else budget / (measure.repeats + 1), watch)
    return done


@contextmanager
def _alone(folder: Path, watch: Watch) -> Iterator[None]:
    """Inside it no other job of the sweep launches anything on this host: they would disturb each other."""
    with (folder / f".{host_name()}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watch.says("Another job measures on this host: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def objective(done: Experiment, kind: Objective) -> float:
    """What a job returns to Hydra's sweeper. Not 'not a number' where it failed: Optuna's sweeper ends at one."""
    names = [point.name for point in done.points]
    if any(done.failures(name) for name in names):
        return math.inf
    rows = done.together(names[0], names[-1])
    steps = [[trial.step or 0.0 for trial in trials] for trials in rows]
    told = median(steps[1]) if kind == Objective.step else getattr(ratio(steps[0], steps[1]), "estimate", None)
    return math.inf if told is None else float(told)


def known_apart(out: Path, command: list[str]) -> Sweep | None:
    """What the jobs have measured so far, gathered; None: nothing."""
    found: dict[str, Measured] = {}
    baseline: list[Measured] = []
    about = None
    for folder in sorted((out / JOBS).glob("*")):
        done = read(folder / MEASURED)
        if done is None:
            continue
        about = msgspec.convert(read_json(folder / _ABOUT), About)
        more = read(folder / EXPLAINED)
        explanations = {} if more is None else relative(more, folder, out)
        beside, *rest = together(placed(done, folder, out), explanations)
        baseline.append(beside)
        for each in rest:
            found[folder.name] = each
    if not baseline or about is None:
        return None
    trials = [trial for each in baseline for trial in each.trials]
    explained_by = next((each.explained for each in baseline if each.explained is not None), None)
    # A baseline that failed in one job says that this job's point was not measured, and nothing of the others.
    failures = [] if trials else [failure for each in baseline for failure in each.failures]
    points = sorted(found.values(), key=lambda each: json.dumps(_sortable(each.point)))
    all_of_them = [Measured(baseline[0].point, trials, trials, failures, explained_by)]
    all_of_them += [
        replace(each, point=replace(each.point, name=f"p{number}")) for number, each in enumerate(points, start=1)
    ]
    return judge(all_of_them, "apart", replace(about, command=command))


def _key(point: Point) -> str:
    """A folder's name that no other point has."""
    parts = [sorted(point.settings.items()), point.arguments, sorted(point.values.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _sortable(point: Point) -> list[tuple[str, str]]:
    return [
        (name, f"{value:012.3f}" if isinstance(value, int | float) else str(value))
        for name, value in values_of(point).items()
    ]


def _any_failed(experiment: Experiment, repeats: int) -> bool:
    return any(experiment.failures(point.name) for point in experiment.points)
