"""What a rank's time consists of, as intervals that the breakdown and the communication section cut steps with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import pairs, steps_in_windows
from distprof.analyze.waits import RankWaits, in_forward
from distprof.trace import intervals
from distprof.trace.intervals import Intervals, Mask, Times
from distprof.trace.tables import Tables

# What a loader does in the training thread. Of its `__next__` the first one is apart while workers start.
NEXT = ("data_loading", "loader_end")
STARTING = ("loader_start", "loader_first")
LOADING = (*NEXT, *STARTING)
ENDLESS = "when a collective in these steps ended is not known"
NEGLIGIBLE = 0.01  # of a step's communication: so little of it that is not known may be wait or transfer
_SHORTEST_WAIT_NS = 50_000  # what a call of `Work.wait` may take when there is nothing to wait for


@dataclass(frozen=True, slots=True)
class RankParts:
    """What one rank's time consists of: intervals in ns since the epoch.

    Attributes:
        recorded: whether its collectives were recorded; a rank that is alone has none.
        steps: the steady steps that lie wholly inside a Kineto window of this rank.
        data: inside a loader.
        compute: leaf operators of the training thread, in windows.
        wait: blocked on a collective that somebody had not joined.
        transfer: blocked on communication otherwise: everybody had joined, or nobody is known to bind the rank.
        collectives: in flight: from created to ended or, where that is not known, to the next release of the rank.
        endless: when those were created of which neither is known.
        exposed: the part of `collectives` that is `wait` or `transfer` and neither `data` nor `compute`.
        unknown: the part of `transfer` that may be wait as well: no recorded collective is waited for in it.
        why_not: why not all of its communication is known, if it is not `recorded`.
    """

    recorded: bool
    steps: list[int]
    data: Intervals
    compute: Intervals
    wait: Intervals
    transfer: Intervals
    collectives: Intervals
    endless: Times
    exposed: Intervals
    unknown: Intervals
    why_not: str = "the flight recorder holds no collective of this rank"

    def in_flight(self, steps: Intervals) -> Times | None:
        """Union of the collectives in each of these steps, in ns; None if not all of their ends are known."""
        if not self.recorded or intervals.contains(intervals.union(steps), self.endless).any():
            return None
        return intervals.covered(self.collectives, steps[:, 0], steps[:, 1])

    def known(self, steps: Intervals) -> Mask:
        """In which of these steps it is known what the rank waited for, but for what cannot matter."""
        unknown = intervals.covered(self.unknown, steps[:, 0], steps[:, 1])
        blocked = intervals.union(self.wait, self.transfer)
        return np.asarray(unknown <= NEGLIGIBLE * intervals.covered(blocked, steps[:, 0], steps[:, 1]))

    def cut(self, steps: Intervals) -> Times:
        """Cut each of these steps: lengths in ns of data, compute, wait, transfer and the rest; shape (steps, 5)."""
        return intervals.assign(steps[:, 0], steps[:, 1], [self.data, self.compute, self.wait, self.transfer])


def rank_parts(tables: Tables, matched: pl.DataFrame, waits: RankWaits, rank: int) -> RankParts:
    """Collect the intervals of `rank`; without a window `steps` and `compute` are empty. `matched` is `match`'s."""
    events = of_rank(tables.events, rank)
    leaves = events.filter(pl.col("leaf") & (pl.col("thread") == tables.training_thread.get(rank, -1)))
    collectives = of_rank(matched, rank)
    # DDP's forward blocks on its broadcast to the end; outside of windows only the wait in it is known.
    blocked = intervals.union(waits.blocked, pairs(of_rank(in_forward(matched), rank), "created", "ended"))
    unfinished = collectives["created"].to_numpy()[collectives["ended"].is_null().to_numpy()]
    until_released = _until_released(unfinished, blocked)
    in_flight = intervals.union(pairs(collectives, "created", "ended"), until_released)
    # A wait zone is communication by itself: what was waited for may be point-to-point, which `collectives` leaves out.
    wait_zones = pairs(training_zones(tables, rank, "wait"), "start", "end")
    backward = pairs(training_zones(tables, rank, "backward"), "start", "end")
    communicating = intervals.intersect(blocked, intervals.union(in_flight, wait_zones))
    data = intervals.union(pairs(training_zones(tables, rank, *LOADING), "start", "end"))
    compute = intervals.union(pairs(leaves, "start", "end"))
    return RankParts(
        recorded=tables.world_size == 1 or len(collectives) > 0,
        steps=steps_in_windows(tables, rank),
        data=data,
        compute=compute,
        wait=waits.waits,
        transfer=intervals.subtract(communicating, waits.waits),
        collectives=in_flight,
        endless=unfinished[len(until_released) :],
        exposed=intervals.subtract(intervals.intersect(in_flight, communicating), intervals.union(data, compute)),
        unknown=_waits_for_others(wait_zones, collectives, backward),
    )


def _until_released(created: Times, blocked: Intervals) -> Intervals:
    """Where a collective's end is not known, it is over when the rank was released for the first time after that.

    Those after which the rank was never released, which are the last ones, are left out.
    """
    release = np.searchsorted(blocked[:, 1], created, side="right")
    released = release < len(blocked)
    return np.column_stack([created[released], blocked[release[released], 1]])


def _waits_for_others(wait_zones: Intervals, collectives: pl.DataFrame, backward: Intervals) -> Intervals:
    """Wait zones in which no recorded collective is waited for: point-to-point operations are not recorded.

    Zones wait for collectives in the order of their creation, each for one, or for all that it creates itself, as DDP's
    buffers. DDP's buckets, and what else backward creates after its last zone, are waited for when it returns.
    """
    zones = wait_zones[np.lexsort((wait_zones[:, 1], wait_zones[:, 0]))]
    if not len(zones):
        return zones
    begun, over = zones.T
    created = np.sort(collectives.filter(pl.col("bucket").is_null())["created"].to_numpy())
    inside = np.searchsorted(begun, created, side="right") - 1
    own = (inside >= 0) & (created < over[inside])
    another = own & (np.diff(inside, prepend=-1) == 0)
    within = np.searchsorted(backward[:, 0], created, side="right") - 1
    returns = np.append(backward[:, 1], 0)[within]
    awaited = np.searchsorted(begun, created) < np.searchsorted(begun, returns)
    at_return = (within >= 0) & (created < returns) & ~own & ~awaited
    there = np.searchsorted(created[~another & ~at_return], over)
    # Waits in excess of the collectives that were there: where these become more than before, it is for something else.
    excess = np.arange(1, len(zones) + 1) - there
    height = np.maximum.accumulate(np.append(0, excess))
    unexplained = excess > height[:-1]
    unknown = zones[unexplained & (over - begun > _SHORTEST_WAIT_NS)]
    return intervals.subtract(intervals.union(unknown), intervals.union(zones[~unexplained]))
