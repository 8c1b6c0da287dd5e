"""Measuring a sweep whose order is ours: the repeats of all points are taken in turn."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distprof.experiment.core import Experiment, Plan, Watch, read, run
from distprof.experiment.sweep.grid import EXPLAINED, MEASURED, Grid
from distprof.experiment.sweep.judge import judge, together
from distprof.experiment.sweep.points import BASELINE, explained
from distprof.experiment.sweep.result import Sweep
from distprof.experiment.trial import Trial
from distprof.report.words import count


def measure(grid: Grid, watch: Watch) -> Iterator[Sweep]:
    """Launch what is missing, the repeats of all points in turn; then each point once for its explanation.

    Yields:
        What is known, each time that this is more: after the measurement, and after the explanations.

    Raises:
        ConfigError: a setting cannot be had.
        RunDirectoryError: the folder holds something else.
        KeyboardInterrupt: the user's; `known` has the result so far.
        OSError: a folder cannot be written.
    """
    began, repeats, explains = time.monotonic(), grid.config.measure.repeats, bool(grid.config.measure.explain)
    budget = grid.budget_s
    share = None if budget is None else budget * repeats / (repeats + 1) if explains else budget
    first = grid.setup(grid.out, MEASURED)
    _announce(grid, watch)
    done = run(
        first.experiment, first.folder, Plan(repeats, share, _baseline_failed, shuffled=True), first.launcher, watch
    )
    yield _found(grid, done, {})
    if not explains:
        return
    left = None if budget is None else max(0.0, budget - (time.monotonic() - began))
    sound = [point for point in grid.points if done.of(point.name) and not done.failures(point.name)]
    if not sound or sound[0].name != BASELINE:
        return
    yield _found(grid, done, explain(grid, grid.out, {point.name for point in sound}, left, watch))


def _announce(grid: Grid, watch: Watch) -> None:
    repeats, capture = grid.config.measure.repeats, grid.config.capture
    more = f", and one launch of each that {'is profiled' if capture.window else 'records zones'}"
    told = f"{count(len(grid.points), 'point')}, {count(repeats, 'repeat')} of all in turn"
    watch.says(f"{told}{more if grid.config.measure.explain else ''}.")
    for point in (point.masked() for point in grid.points[1:]):
        watch.says(f"  {point.name}: {point.words() or shlex.join(point.arguments or [])}")


def known(grid: Grid) -> Sweep:
    """What has been measured so far says this."""
    folder = grid.out
    done = read(folder / MEASURED) or grid.setup(folder, MEASURED).experiment
    more = read(folder / EXPLAINED)
    return _found(grid, done, {} if more is None else relative(more, folder, folder))


def _found(grid: Grid, done: Experiment, more: dict[str, Trial]) -> Sweep:
    return judge(together(placed(done, grid.out, grid.out), more), "together", grid.about())


def explain(grid: Grid, folder: Path, names: set[str], budget_s: float | None, watch: Watch) -> dict[str, Trial]:
    """Launch these points once more, recorded by the profiler, where there is time left."""
    setup = grid.setup(folder, EXPLAINED)
    points = [explained(point, grid.config) for point in grid.points if point.name in names]
    known_before = relative(setup.experiment, folder, grid.out)
    if budget_s is not None and budget_s <= 0:
        return known_before
    watch.says("What explains them: a launch of each.")
    done = run(replace(setup.experiment, points=points), setup.folder, Plan(1, budget_s), setup.launcher, watch)
    return known_before | relative(done, folder, grid.out)


def relative(done: Experiment, folder: Path, out: Path) -> dict[str, Trial]:
    """What explains each point, by its name; paths are relative to the sweep's folder `out`."""
    trials = placed(done, folder, out, EXPLAINED).trials
    return {trial.point: trial for trial in trials if trial.failure is None}


def placed(done: Experiment, folder: Path, out: Path, what: str = MEASURED) -> Experiment:
    """The same with paths relative to the sweep's folder and not the experiment's."""
    prefix = (folder / what).relative_to(out)

    def place(path: str | None) -> str | None:
        return None if path is None else str(prefix / path)

    return replace(done, trials=[replace(trial, run=place(trial.run), log=place(trial.log)) for trial in done.trials])


def _baseline_failed(experiment: Experiment, repeats: int) -> bool:
    return bool(experiment.failures(BASELINE))
