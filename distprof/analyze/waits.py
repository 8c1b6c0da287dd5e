"""Where a rank's training thread was blocked on a collective, and how much of that was waiting for others.

Judged on `created` (see the design: gloo's worker threads mask the starts). A collective of a symmetric kind ends
nowhere before everybody has created it, so a rank waits in it from its own creation to the last one's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.steady import pairs
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

# Kinds in which every end comes after every start.
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank's blocked time, in ns since the epoch.

    Attributes:
        blocked: the training thread did nothing but wait for collectives.
        waits: the part of `blocked` in which somebody had not arrived yet.
        waits_for: that part by the rank that arrived last.
    """

    blocked: Intervals
    waits: Intervals
    waits_for: dict[int, Intervals]


def match(tables: Tables) -> pl.DataFrame:
    """Join each collective with what the other members did.

    Returns:
        `tables.collectives` with the columns
        `binds_until` (ns: when the last rank that binds this one had created it, null where nobody is known to),
        `last_rank` (the rank that did), `seen` (ranks that recorded it), `members` (ranks of its group).
    """
    sizes = pl.DataFrame(
        {
            "group": [group.id for group in tables.groups],
            "members": [len(group.members) for group in tables.groups],
            "root": [min(group.members, default=0) for group in tables.groups],
        },
        schema={"group": pl.Int32, "members": pl.Int64, "root": pl.Int32},
    )
    joined = tables.collectives.join(sizes, on="group", how="left")
    key = ["group", "seq", "kind"]
    per_collective = joined.group_by(key).agg(
        pl.len().alias("seen"),
        pl.col("created").max().alias("last_created"),
        pl.col("rank").sort_by("created").last().alias("last_rank_created"),
        pl.col("created").filter(pl.col("rank") == pl.col("root")).first().alias("root_created"),
    )
    # DDP broadcasts its buffers in forward, from the group's first rank; of other broadcasts the root is not recorded.
    from_root = (pl.col("kind") == "broadcast") & (pl.col("zone") == "forward")
    symmetric = pl.col("kind").is_in(SYMMETRIC) & (pl.col("seen") == pl.col("members")) & (pl.col("members") > 1)
    return (
        joined.join(per_collective, on=key, how="left")
        .with_columns(
            pl.when(symmetric)
            .then(pl.col("last_created"))
            .when(from_root)
            .then(pl.max_horizontal("root_created", "created"))
            .alias("binds_until"),
            pl.when(symmetric)
            .then(pl.col("last_rank_created"))
            .when(from_root)
            .then(pl.col("root"))
            .alias("last_rank"),
        )
        .drop("last_created", "last_rank_created", "root_created", "root")
        .sort("rank", "created")
    )


def rank_waits(tables: Tables, matched: pl.DataFrame, rank: int) -> RankWaits:
    """Find where `rank` was blocked; `matched` is `match`'s."""
    mine = matched.filter(pl.col("rank") == rank)
    zones = tables.zones.filter((pl.col("rank") == rank) & (pl.col("thread") == 0))
    in_forward = mine.filter((pl.col("kind") == "broadcast") & (pl.col("zone") == "forward"))
    blocked = intervals.union(
        pairs(zones.filter(pl.col("kind") == "wait"), "start", "end"),
        _ends_of_backward(zones, mine),
        pairs(in_forward, "created", "binds_until"),
    )
    bound = mine.filter(pl.col("binds_until") > pl.col("created"))

    def waits(rows: pl.DataFrame) -> Intervals:
        return intervals.intersect(blocked, intervals.union(pairs(rows, "created", "binds_until")))

    others = bound.filter(pl.col("last_rank") != rank)
    return RankWaits(
        blocked=blocked,
        waits=waits(bound),
        waits_for={key[0]: waits(rows) for key, rows in others.partition_by("last_rank", as_dict=True).items()},
    )


def _ends_of_backward(zones: pl.DataFrame, collectives: pl.DataFrame) -> Intervals:
    """DDP waits for all buckets at the end of backward: from the last one's creation to backward's return."""
    backward = pairs(zones.filter(pl.col("kind") == "backward"), "start", "end")
    created = collectives.filter(pl.col("zone") == "backward")["created"].to_numpy()
    last = np.searchsorted(created, backward[:, 1], side="right") - 1
    found = (last >= 0) & (created[last] >= backward[:, 0]) if len(created) else np.zeros(len(backward), dtype=bool)
    return np.column_stack([created[last[found]], backward[found, 1]])
