"""Unions over each rank's whole window, as other tools define them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.steady import MS, pairs
from distprof.result import NotObserved, Total
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.kinds import UNCLASSIFIED
from distprof.trace.tables import Tables


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank's windows hold, as intervals in ns since the epoch.

    Attributes:
        compute: a kernel computes, or on a CPU a leaf operator of the training thread. Copies and fills are none; a
            kernel that only looks like communication is.
        comm: a kernel communicates, or on a CPU a collective is under way on the backend's threads.
    """

    compute: Intervals
    comm: Intervals


def work_of(tables: Tables, rank: int) -> Work:
    """What the windows of `rank` hold."""
    kernels = tables.kernels.filter((pl.col("rank") == rank) & (pl.col("cat") == "kernel"))
    if len(tables.kernels.filter(pl.col("rank") == rank)):
        computes = pl.col("collective").is_null() | (pl.col("collective") == UNCLASSIFIED)
        compute, comm = kernels.filter(computes), pairs(kernels.filter(~computes), "start", "end")
    else:
        events = tables.events.filter((pl.col("rank") == rank) & pl.col("leaf"))
        compute = events.filter(pl.col("thread") == tables.training_thread.get(rank, -1))
        comm = pairs(tables.collectives.filter(pl.col("rank") == rank), "started", "ended")
    return Work(compute=intervals.union(pairs(compute, "start", "end")), comm=intervals.union(comm))


def totals(inputs: Inputs) -> tuple[list[Total], list[NotObserved]]:
    """One row per rank; nulls for one without a window."""
    tables = inputs.tables
    rows, missing = [], []
    for rank in tables.ranks:
        events = tables.events.filter(pl.col("rank") == rank)
        if not events.height:
            missing.append(rank)
            rows.append(Total(rank=rank, span=None, compute=None, comm=None, exposed=None))
            continue
        work = work_of(tables, rank)
        rows.append(
            Total(
                rank=rank,
                span=float((events["end"].to_numpy().max() - events["start"].to_numpy().min()) / MS),
                compute=intervals.total(work.compute) / MS,
                comm=intervals.total(work.comm) / MS,
                exposed=intervals.total(intervals.subtract(work.comm, work.compute)) / MS,
            )
        )
    return rows, [NotObserved("totals", missing, "no Kineto window of this rank")] if missing else []
