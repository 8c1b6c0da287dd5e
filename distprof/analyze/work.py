"""What a rank's windows hold: computing and communicating, as other tools define them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import pairs
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.kinds import UNCLASSIFIED
from distprof.trace.tables import Tables

NODE = "autograd::engine::evaluate_function"  # what autograd's engine runs begins with this


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank's windows hold, as intervals in ns since the epoch.

    Attributes:
        compute: a kernel computes, or on a CPU a leaf operator of the training thread, or of autograd's. Copies and
            fills are none; a kernel that only looks like communication is.
        comm: a kernel communicates, or on a CPU a collective is under way on the backend's threads.
    """

    compute: Intervals
    comm: Intervals


def work_of(tables: Tables, rank: int) -> Work:
    """What the windows of `rank` hold."""
    on_device = of_rank(tables.kernels, rank)
    if len(on_device):
        kernels = on_device.filter(pl.col("cat") == "kernel")
        computes = pl.col("collective").is_null() | (pl.col("collective") == UNCLASSIFIED)
        compute, comm = kernels.filter(computes), pairs(kernels.filter(~computes), "start", "end")
    else:
        own = of_rank(tables.events, rank).select("thread", "name", "start", "end", "leaf")
        # Backward has a thread of its own where older versions of torch run it.
        autograd = own.filter(pl.col("name").str.starts_with(NODE))["thread"].unique()
        threads = [tables.training_thread.get(rank, -1), *autograd]
        compute = own.filter(pl.col("leaf") & pl.col("thread").is_in(threads))
        comm = pairs(of_rank(tables.collectives, rank), "started", "ended")
    return Work(compute=intervals.union(pairs(compute, "start", "end")), comm=intervals.union(comm))
