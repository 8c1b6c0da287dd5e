"""Which steps are steady, and when they were."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import polars as pl

from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

MS = 1e6  # ns
FEWEST_STEPS = 3  # below that a median says nothing
NO_STEP = "no steady step was recorded"


def steady_steps(tables: Tables) -> list[int]:
    """Steps that are steady on every rank that recorded any step, ascending."""
    steady = (
        tables.steps.filter(pl.col("excluded").is_null())
        .group_by("step")
        .agg(pl.col("rank").n_unique().alias("ranks"))
        .filter(pl.col("ranks") == tables.steps["rank"].n_unique())
    )
    return sorted(steady["step"].to_list())


def times_of_steps(tables: Tables, rank: int, steps: list[int]) -> Intervals:
    """Start and end of these steps on `rank`, in ns; shape (n, 2), ascending."""
    rows = tables.steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(steps)).sort("step")
    return pairs(rows, "start", "end")


def steps_in_windows(tables: Tables, rank: int, window: int | None = None) -> list[int]:
    """Steady steps of `rank` that lie wholly inside one of its Kineto windows, or inside this one."""
    steps = tables.steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(steady_steps(tables)))
    wanted = pl.lit(True) if window is None else pl.col("window") == window
    windows = tables.windows.filter((pl.col("rank") == rank) & wanted).select(opened="start", closed="end")
    inside = steps.join_where(windows, pl.col("start") >= pl.col("opened"), pl.col("end") <= pl.col("closed"))
    return sorted(inside["step"].to_list())


def steps_or_windows(tables: Tables, rank: int) -> tuple[list[int], Intervals]:
    """The steps of `steps_in_windows`, and their times; of a run without any step none, and the rank's windows."""
    if tables.step_source == "none":
        return [], pairs(tables.windows.filter(pl.col("rank") == rank).sort("start"), "start", "end")
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
    return rows.select(start, end).drop_nulls().to_numpy().astype(np.int64).reshape(-1, 2)
