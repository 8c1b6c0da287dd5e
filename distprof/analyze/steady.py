"""Which steps are steady, and when they were."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

MS = 1e6  # ns
FEWEST_STEPS = 3  # below that a median says nothing


def steady_steps(tables: Tables) -> list[int]:
    """Steps that are steady on every rank, ascending."""
    steady = (
        tables.steps.filter(pl.col("excluded").is_null())
        .group_by("step")
        .agg(pl.col("rank").n_unique().alias("ranks"))
        .filter(pl.col("ranks") == len(tables.ranks))
    )
    return sorted(steady["step"].to_list())


def times_of_steps(tables: Tables, rank: int, steps: list[int]) -> Intervals:
    """Start and end of these steps on `rank`, in ns; shape (n, 2), ascending."""
    rows = tables.steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(steps)).sort("step")
    return pairs(rows, "start", "end")


def steps_in_windows(tables: Tables, rank: int) -> list[int]:
    """Steady steps of `rank` that lie wholly inside one of its Kineto windows."""
    steps = tables.steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(steady_steps(tables)))
    windows = tables.windows.filter(pl.col("rank") == rank).select(opened="start", closed="end")
    inside = steps.join_where(windows, pl.col("start") >= pl.col("opened"), pl.col("end") <= pl.col("closed"))
    return sorted(inside["step"].to_list())


def pairs(rows: pl.DataFrame, start: str, end: str) -> Intervals:
    """Two columns of times as rows (start, end), without those that have a null; they may overlap."""
    return rows.select(start, end).drop_nulls().to_numpy().astype(np.int64).reshape(-1, 2)
