"""Where a rank's training thread was blocked on a collective, and how much of that was waiting for others.

Of gloo's collectives a rank has arrived when it created them, since worker threads mask the starts; of a device's when
the kernel began (`Tables.arrival`). A collective of a symmetric kind ends nowhere before everybody has arrived, so a
rank waits in it from its own arrival to the last one's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.broadcasts import needed_in_broadcast
from distprof.analyze.ranks import of_rank, once, training_zones
from distprof.analyze.steady import pairs
from distprof.trace import intervals, kinds
from distprof.trace.intervals import Intervals, Times
from distprof.trace.tables import Tables

# Kinds in which every end comes after every start.
# The flight recorder does not tell the splits of an all-to-all, and where they are not known it binds nobody.
SYMMETRIC = tuple(kind for kind in kinds.SYMMETRIC if kind != "all_to_all")
_CLOCKS_APART_NS = 20_000  # devices' clocks differ by some us after they were aligned, too
ONE = ["group", "seq", "kind"]  # what the members' parts of one collective have in common
# Of what `match` returns, DDP's broadcasts of its buffers: they block where they are created.
IN_FORWARD = pl.col("binds") & (pl.col("kind") == "broadcast")

UNBOUND = (
    "who waited for whom is not known: it takes collectives of ranks that train on the CPU, in the recordings of all "
    "members, on one clock"
)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank's blocked time, in ns since the epoch.

    Attributes:
        blocked: the training thread did nothing but wait for collectives.
        pending: it had created a collective that somebody else had not, whether it was blocked or went on.
        waits: what lies in both.
        arrived: when it arrived at the collectives in which it waits for others, ascending.
    """

    blocked: Intervals
    pending: Intervals
    waits: Intervals
    arrived: Times


def match(tables: Tables, *, comparable: bool = True) -> pl.DataFrame:
    """Join each collective with what the other members did.

    Args:
        comparable: whether times of different ranks can be compared. If not, nobody is known to bind anybody.

    Returns:
        `tables.collectives` with the columns
        `members` (ranks of its group), `recorded` (those of them that left recordings), `seen` (those that recorded
        this collective), `arrived` (ns: when the rank did, see `Tables.arrival`), `binds` (whether the rank waits in it
        for what others do: True for symmetric kinds and for DDP's broadcast in forward, in groups of more than one
        rank), `binds_until` (ns: when the last rank that binds it arrived; null if it is not bound, or if not all of
        that was seen), `last_rank` (the rank that did).
    """
    sizes = pl.DataFrame(
        [(group.id, len(group.members), len(set(group.members).intersection(tables.ranks))) for group in tables.groups],
        schema={"group": pl.Int32, "members": pl.Int64, "recorded": pl.Int64},
        orient="row",
    )
    several = pl.col("members") > 1
    arrived = pl.coalesce(tables.arrival, "created")
    complete = pl.col("rank").n_unique().over(ONE) == pl.col("members")
    # The splits of an all-to-all are recorded nowhere. It has bound its ranks where every end came after every start.
    after = pl.col("ended").min().over(ONE) + _CLOCKS_APART_NS >= arrived.max().over(ONE)
    together = (pl.col("kind") == "all_to_all") & complete & pl.col("ended").is_not_null().all().over(ONE) & after
    symmetric = several & (pl.col("kind").is_in(SYMMETRIC) | together)
    # DDP broadcasts its buffers in forward, from the group's first rank; of other broadcasts the root is not recorded.
    # One created inside a wait zone is DDP's too: all else is created before Python waits for it.
    in_forward = several & (pl.col("kind") == "broadcast") & pl.col("zone").is_in(("forward", "evaluation", "wait"))
    joined = tables.collectives.join(sizes, on="group", how="left").with_columns(
        binds=(symmetric | in_forward).fill_null(False),
        seen=pl.col("rank").n_unique().over(ONE).cast(pl.Int64),
        arrived=arrived,
    )
    bound = joined.filter("binds") if comparable else joined.clear()
    last = pl.concat([_last_of_all(bound.filter(~IN_FORWARD)), _last_in_tree(bound.filter(IN_FORWARD), tables)])
    return joined.join(last, on=[*ONE, "rank"], how="left").sort("rank", "created")


def seen_to_start(matched: pl.DataFrame) -> pl.DataFrame:
    """`match`'s with nobody bound in what is not known to have started on all members: when a host created it is not
    when its device arrived."""
    started = pl.col("started").is_not_null().all().over(ONE)
    return matched.with_columns(pl.when(started).then(name).alias(name) for name in ("binds_until", "last_rank"))


@once
def in_forward(matched: pl.DataFrame) -> pl.DataFrame:
    """See `IN_FORWARD`; `matched` is `match`'s."""
    return matched.filter(IN_FORWARD)


def _last_of_all(calls: pl.DataFrame) -> pl.DataFrame:
    """Of the collectives that all members recorded: who was the last, when."""
    return calls.filter(pl.col("seen") == pl.col("members")).select(
        *ONE,
        "rank",
        binds_until=pl.col("arrived").max().over(ONE),
        last_rank=pl.col("rank").sort_by("arrived", "rank").last().over(ONE),
    )


def _last_in_tree(calls: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Of broadcasts: who was the last of those that a rank needs, when, if all of these recorded it."""
    came = calls.select(*ONE, "arrived", needed="rank")
    return (
        calls.select(*ONE, "rank")
        .join(needs(tables), on=["group", "rank"])
        .join(came, on=[*ONE, "needed"], how="left")
        .group_by(*ONE, "rank")
        .agg(
            pl.col("arrived").is_not_null().all().alias("all_came"),
            pl.col("arrived").max().alias("binds_until"),
            pl.col("needed").sort_by("arrived", "needed").last().alias("last_rank"),
        )
        .filter("all_came")
        .drop("all_came")
    )


def needs(tables: Tables) -> pl.DataFrame:
    """Whom each member of a group that recorded waits for in a broadcast in forward: `group`, `rank`, `needed`."""
    present = set(tables.ranks)
    return pl.DataFrame(
        [
            (group.id, rank, group.members[other])
            for group in tables.groups
            for member, rank in enumerate(group.members)
            if rank in present
            for other in needed_in_broadcast(member, len(group.members))
        ],
        schema={"group": pl.Int32, "rank": pl.Int32, "needed": pl.Int32},
        orient="row",
    )


def bound_steps(tables: Tables, matched: pl.DataFrame) -> set[int]:
    """Steps in which it is known of every rank whom it waited for, and how long; `matched` is `match`'s."""
    if tables.world_size > 1 and not matched.height:
        return set()
    unknown = matched.filter(pl.col("binds") & pl.col("binds_until").is_null())["step"]
    return set(tables.steps["step"]).difference(unknown)


def rank_waits(tables: Tables, matched: pl.DataFrame, rank: int) -> RankWaits:
    """Find where `rank` was blocked; `matched` is `match`'s."""
    mine = of_rank(matched, rank)
    created = mine["created"].to_numpy()
    wait_zones = intervals.union(pairs(training_zones(tables, rank, "wait"), "start", "end"))
    backward = pairs(training_zones(tables, rank, "backward"), "start", "end")
    blocked = intervals.union(
        _since_created(wait_zones, created),
        _ends_of_backward(backward, created, wait_zones[:, 0]),
        pairs(of_rank(in_forward(matched), rank), "arrived", "binds_until"),
    )
    return waits_in(mine, blocked)


def waits_in(calls: pl.DataFrame, blocked: Intervals) -> RankWaits:
    """The waits of a rank, by where it was blocked and its collectives as `match` joined them."""
    pending = intervals.union(pairs(calls, "arrived", "binds_until"))
    return RankWaits(
        blocked=blocked,
        pending=pending,
        waits=intervals.intersect(blocked, pending),
        arrived=np.sort(calls["arrived"].to_numpy()[calls["binds"].to_numpy()]),
    )


def waits_for(matched: pl.DataFrame, waits: RankWaits, rank: int, other: int) -> Intervals:
    """The part of the waits of `rank` in which `other` was the last that a collective needed."""
    needed = of_rank(matched, rank).filter((pl.col("last_rank") == other) & (pl.col("rank") != other))
    return intervals.intersect(waits.blocked, intervals.union(pairs(needed, "arrived", "binds_until")))


def _since_created(wait_zones: Intervals, created: Times) -> Intervals:
    """Zones in which a collective is created, as DDP's broadcast of buffers, wait from then on."""
    inside = np.append(created, np.iinfo(np.int64).max)[np.searchsorted(created, wait_zones[:, 0])]
    start = np.where(inside < wait_zones[:, 1], inside, wait_zones[:, 0])
    return np.column_stack([start, wait_zones[:, 1]])


def _ends_of_backward(backward: Intervals, created: Times, wait_starts: Times) -> Intervals:
    """Where DDP waits for its buckets: from the last one's creation to backward's return.

    A collective that Python code in backward waits for itself, as SyncBatchNorm and tensor parallelism do, has a wait
    zone after it: then backward is not known to wait for anything at its end.
    """
    last = np.searchsorted(created, backward[:, 1]) - 1
    creation = np.append(created, -1)[last]
    awaited = np.searchsorted(wait_starts, creation) < np.searchsorted(wait_starts, backward[:, 1])
    found = (creation >= backward[:, 0]) & ~awaited
    return np.column_stack([creation[found], backward[found, 1]])
