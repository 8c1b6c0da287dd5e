"""How far DDP's gradient all-reduces run beside backward, and what more of that would save."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import MS, on_device, pairs, times_of_steps
from distprof.result import GradientOverlap
from distprof.trace import intervals
from distprof.trace.intervals import Intervals


def gradient_overlap(inputs: Inputs, used: list[int], *, bound: bool) -> GradientOverlap | str:
    """The overlap in steady steps inside the window, or why it is not known.

    Args:
        used: these steps, which all ranks have.
        bound: whether it is known in them who waited for whom.
    """
    if on_device(inputs.tables):
        return "when backward computed on a device is not told by the host's zones"
    gradients = inputs.matched.filter(pl.col("bucket").is_not_null() & pl.col("step").is_in(used))
    if not len(gradients):
        return "no all-reduce in the window could be told to be a DDP bucket's"
    if gradients["ended"].null_count():
        return "when a bucket's all-reduce in these steps ended is not known"
    ranks = [rank for rank in inputs.own.ranks if len(of_rank(gradients, rank))]
    cut = np.mean([_of_rank(inputs, gradients, rank, used) for rank in ranks], axis=0) / MS
    total, overlapped, exposed, wait, saved = map(float, cut)
    return GradientOverlap(
        steps_used=len(used),
        total=total,
        overlapped=overlapped,
        exposed=exposed,
        wait=wait if bound else None,
        saved_by_perfect_overlap=saved if bound else None,
    )


def _of_rank(inputs: Inputs, gradients: pl.DataFrame, rank: int, used: list[int]) -> list[float]:
    """Means per step in ns: in flight, beside backward's computing, blocking, waiting, and what could be saved."""
    own = of_rank(gradients, rank)
    steps = times_of_steps(inputs.tables, rank, used)
    waits = inputs.waits[rank]

    def per_step(a: Intervals) -> intervals.Times:
        return intervals.covered(a, steps[:, 0], steps[:, 1])

    in_flight = intervals.union(pairs(own, "created", "ended"))
    computing = intervals.subtract(_backward(inputs, own, rank), waits.blocked)
    exposed = intervals.intersect(in_flight, waits.blocked)
    exposed_transfer = per_step(intervals.subtract(exposed, waits.waits))
    transfer = per_step(intervals.union(pairs(own, "binds_until", "ended")))
    never_hidden = np.maximum(0, transfer - per_step(computing))
    return [
        float(per_step(in_flight).mean()),
        float(per_step(intervals.intersect(in_flight, computing)).mean()),
        float(per_step(exposed).mean()),
        float(per_step(intervals.intersect(exposed, waits.waits)).mean()),
        float(np.maximum(0, exposed_transfer - never_hidden).mean()),
    ]


def _backward(inputs: Inputs, own: pl.DataFrame, rank: int) -> Intervals:
    """The backward passes that reduced gradients; of several per step others don't."""
    zones = training_zones(inputs.tables, rank, "backward")
    backward = intervals.union(pairs(zones, "start", "end"))
    created = np.sort(own["created"].to_numpy())
    reduces = np.searchsorted(created, backward[:, 0]) < np.searchsorted(created, backward[:, 1])
    return backward[reduces]
