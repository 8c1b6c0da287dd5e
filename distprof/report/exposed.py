"""Exposed communication step by step, for the timeline's curve."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.analyze.parts import rank_parts
from distprof.analyze.steady import pairs
from distprof.analyze.waits import rank_waits
from distprof.analyze.work import work_of
from distprof.trace import intervals
from distprof.trace.tables import Tables


def exposed_by_step(tables: Tables, matched: pl.DataFrame, rank: int) -> dict[int, int]:
    """Communication that nothing hid, in ns, of each step of `rank` in which it is known.

    On a device, and in traces that others recorded: communication minus computation, in steps inside the windows. Else
    where the training thread was blocked on it.

    Args:
        matched: `waits.match` of the tables.
    """
    steps = tables.steps.filter(pl.col("rank") == rank).sort("step")
    numbers, times = steps["step"].to_list(), pairs(steps, "start", "end")
    of_rank = pl.col("rank") == rank
    if len(tables.kernels.filter(of_rank)) or not len(tables.zones.filter(of_rank)):
        work = work_of(tables, rank)
        exposed = intervals.subtract(work.comm, work.compute)
        windows = pairs(tables.windows.filter(of_rank), "start", "end")
        known = intervals.covered(intervals.union(windows), times[:, 0], times[:, 1]) == times[:, 1] - times[:, 0]
    else:
        parts = rank_parts(tables, matched, rank_waits(tables, matched, rank), rank)
        exposed = parts.exposed
        endless = np.searchsorted(np.sort(parts.endless), times)
        known = (endless[:, 0] == endless[:, 1]) & parts.recorded
    lengths = intervals.covered(exposed, times[:, 0], times[:, 1]).tolist()
    return {step: length for step, length, seen in zip(numbers, lengths, known.tolist(), strict=True) if seen}
