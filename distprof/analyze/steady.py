"""Which steps are steady, and when they were."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import polars as pl

from distprof.analyze.ranks import by_rank, of_rank, once
from distprof.trace.intervals import EMPTY, Intervals, Mask, Times
from distprof.trace.tables import Tables

MS = 1e6  # ns
FEWEST_STEPS = 3  # below that a median says nothing
NO_STEP = "no steady step was recorded"
_NO_STEPS = (np.empty(0, dtype=np.int64), EMPTY)


def steady_steps(tables: Tables) -> list[int]:
    """Steps that are steady on every rank that recorded any step, ascending."""
    return list(_steady(tables.steps))


@once
def _steady(steps: pl.DataFrame) -> list[int]:
    steady = (
        steps.filter(pl.col("excluded").is_null())
        .group_by("step")
        .agg(pl.col("rank").n_unique().alias("ranks"))
        .filter(pl.col("ranks") == steps["rank"].n_unique())
    )
    return sorted(steady["step"].to_list())


@once
def _timed(steps: pl.DataFrame) -> dict[int, tuple[Times, Intervals]]:
    """Each rank's steps: their numbers, ascending, and their times."""
    timed = steps.sort("rank", "step").drop_nulls(["start", "end"])
    return {rank: (rows["step"].to_numpy(), pairs(rows, "start", "end")) for rank, rows in by_rank(timed).items()}


def _among(numbers: Times, steps: list[int]) -> Mask:
    """Which of `numbers` are in `steps`: for the few that a run has several times faster than `np.isin`."""
    wanted = np.sort(np.array(steps, dtype=np.int64))
    found: Mask = np.searchsorted(wanted, numbers, side="right") > np.searchsorted(wanted, numbers, side="left")
    return found


def times_of_steps(tables: Tables, rank: int, steps: list[int]) -> Intervals:
    """Start and end of these steps on `rank`, in ns; shape (n, 2), ascending."""
    numbers, times = _timed(tables.steps).get(rank, _NO_STEPS)
    return times[_among(numbers, steps)]


def steps_in_windows(tables: Tables, rank: int, window: int | None = None) -> list[int]:
    """Steady steps of `rank` that lie wholly inside one of its Kineto windows, or inside this one."""
    numbers, times = _timed(tables.steps).get(rank, _NO_STEPS)
    steady = _among(numbers, _steady(tables.steps))
    windows = of_rank(tables.windows, rank)
    opened, closed = pairs(windows if window is None else windows.filter(window=window), "start", "end").T
    inside = (times[steady, :1] >= opened) & (times[steady, 1:] <= closed)
    found: list[int] = numbers[steady][np.nonzero(inside)[0]].tolist()
    return found


def steps_or_windows(tables: Tables, rank: int) -> tuple[list[int], Intervals]:
    """The steps of `steps_in_windows`, and their times; of a run without any step none, and the rank's windows."""
    if tables.step_source == "none":
        return [], pairs(of_rank(tables.windows, rank).sort("start"), "start", "end")
    numbers = steps_in_windows(tables, rank)
    return numbers, times_of_steps(tables, rank, numbers)


def prefer(steps: list[int], known: Set[int]) -> tuple[list[int], bool]:
    """Those of `steps` that are `known`, and True; where there are none all of them, and False."""
    chosen = [step for step in steps if step in known]
    return (chosen, True) if chosen else (steps, False)


def on_device(tables: Tables) -> bool:
    """Whether some rank trains on a device: then when the host creates a collective says nothing of who waits."""
    return any(facts.get("device") not in (None, "cpu") for facts in tables.facts.values())


def samples_per_step(tables: Tables) -> float | None:
    """Samples that a rank loads per steady step: the mean over ranks and steps; None where nothing was loaded."""
    steady = steady_steps(tables)
    loaded = tables.batches.filter(pl.col("step").is_in(steady))["samples"].sum()
    return float(loaded) / (len(steady) * len(tables.ranks)) if loaded else None


def pairs(rows: pl.DataFrame, start: str, end: str) -> Intervals:
    """Two columns of times as rows (start, end), without those that have a null; they may overlap."""
    if rows[start].null_count() or rows[end].null_count():
        rows = rows.select(start, end).drop_nulls()
    return np.column_stack([rows[start].to_numpy(), rows[end].to_numpy()]).astype(np.int64, copy=False)
