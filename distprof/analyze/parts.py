"""What a rank's time consists of, as intervals that the breakdown and the communication section cut steps with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.steady import pairs, steps_in_windows, times_of_steps
from distprof.analyze.waits import RankWaits
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

_END_OF_TIME = np.iinfo(np.int64).max
LOADING = ("data_loading", "loader_start", "loader_end")


@dataclass(frozen=True, slots=True)
class RankParts:
    """What one rank's time in the window consists of: intervals in ns since the epoch.

    Attributes:
        steps: steady steps that lie wholly inside a window; shape (n, 2).
        data: inside a loader.
        compute: leaf operators of the training thread.
        wait: blocked on a collective that somebody had not joined.
        transfer: blocked on a collective that everybody had joined.
        collectives: collectives in flight, from created to ended.
    """

    steps: Intervals
    data: Intervals
    compute: Intervals
    wait: Intervals
    transfer: Intervals
    collectives: Intervals


def rank_parts(tables: Tables, waits: RankWaits, rank: int) -> RankParts:
    """Collect the intervals of `rank`; without a window `steps` and `compute` are empty."""
    of_rank = pl.col("rank") == rank
    zones = tables.zones.filter(of_rank & (pl.col("thread") == 0) & pl.col("kind").is_in(LOADING))
    leaves = tables.events.filter(of_rank & pl.col("leaf") & (pl.col("thread") == tables.training_thread.get(rank, -1)))
    in_flight = intervals.union(pairs(tables.collectives.filter(of_rank), "created", "ended"))
    # Where a collective's end is not known, being blocked on it is all that is known of its transfer.
    endless = tables.collectives.filter(of_rank & pl.col("ended").is_null()).with_columns(ended=pl.lit(_END_OF_TIME))
    unknown_end = intervals.union(pairs(endless, "created", "ended"))
    blocked = intervals.intersect(waits.blocked, intervals.union(in_flight, unknown_end))
    return RankParts(
        steps=times_of_steps(tables, rank, steps_in_windows(tables, rank)),
        data=intervals.union(pairs(zones, "start", "end")),
        compute=intervals.union(pairs(leaves, "start", "end")),
        wait=waits.waits,
        transfer=intervals.subtract(blocked, waits.waits),
        collectives=in_flight,
    )
