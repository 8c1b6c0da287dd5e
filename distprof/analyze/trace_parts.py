"""What a rank's time consists of, by a trace of a training on the CPU that others recorded.

Such a trace has no zones. Of when the training thread was blocked it tells what follows from what DDP does: its
backward returns when all buckets are reduced, which it creates inside of autograd's nodes; its forward, which torch
annotates, returns when its buffers are broadcast. What other code waits for is not known.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.analyze.parts import RankParts
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import pairs, steady_steps
from distprof.analyze.work import NODE, work_of
from distprof.trace import intervals
from distprof.trace.intervals import EMPTY, Intervals
from distprof.trace.tables import Tables

NO_ZONES = "traces alone hold no zones: when the training thread was blocked is not known"


def trace_parts(tables: Tables, matched: pl.DataFrame, rank: int) -> RankParts:
    """Collect the intervals of `rank`; `matched` is `waits.match`'s."""
    own = of_rank(tables.events, rank).select("name", "start", "end")
    nodes = own.filter(pl.col("name").str.starts_with(NODE))
    zones = training_zones(tables, rank)
    forward = intervals.union(pairs(zones.filter(pl.col("kind") == "forward"), "start", "end"))
    calls = of_rank(matched, rank).sort("created")
    created = calls["created"].to_numpy()
    in_nodes = intervals.contains(intervals.union(pairs(nodes, "start", "end")), created) & (len(forward) > 0)
    in_forward = intervals.contains(forward, created) & np.isin(calls["kind"].to_numpy(), ["broadcast"])
    blocked = intervals.union(
        _after_nodes(nodes, pairs(calls.filter(in_nodes), "created", "ended")),
        pairs(calls.filter(in_forward), "created", "ended"),
    )
    pending = intervals.union(pairs(calls, "created", "binds_until"))
    wait = intervals.intersect(blocked, pending)
    data = intervals.union(pairs(zones.filter(pl.col("kind") == "data_loading"), "start", "end"))
    compute = work_of(tables, rank).compute
    in_flight = intervals.union(pairs(calls, "created", "ended"))
    other = calls.filter(~(in_nodes | in_forward)).filter(pl.col("step").is_in(steady_steps(tables)))
    return RankParts(
        recorded=tables.world_size == 1 or (len(calls) > 0 and not len(other)),
        steps=[],
        data=data,
        compute=compute,
        wait=wait,
        transfer=intervals.subtract(blocked, wait),
        collectives=in_flight,
        endless=calls.filter(pl.col("ended").is_null())["created"].to_numpy(),
        exposed=intervals.subtract(intervals.intersect(in_flight, blocked), intervals.union(data, compute)),
        unknown=EMPTY,
        why_not=NO_ZONES,
    )


def _after_nodes(nodes: pl.DataFrame, buckets: Intervals) -> Intervals:
    """Where a backward whose nodes have run waits for its buckets, which may be created in any order."""
    started = nodes.sort("start")
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(started["end"].to_numpy()))
    # Nodes of the next backward begin when these buckets are over.
    last = reach[np.searchsorted(started["start"].to_numpy(), buckets[:, 1], side="left")]
    return intervals.union(np.column_stack([np.maximum(last, buckets[:, 0]), buckets[:, 1]]))
