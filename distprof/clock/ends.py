"""Clocks compared by collectives alone: on all ranks a symmetric collective ends at one time."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.result import Clock, ClockRow, NotObserved
from distprof.trace.kinds import SYMMETRIC
from distprof.trace.tables import Tables

# A single collective would agree with any offset.
_FEWEST = 2


def align_by_ends(tables: Tables) -> tuple[Clock, list[NotObserved]] | None:
    """Find each rank's offset as the median difference of its collectives' ends from those of a rank whose offset is
    known, beginning with the first rank; the error is what nine of ten of them stay within.

    None where some rank has no two collectives with ends in common with the others.
    """
    ends = tables.collectives.filter(pl.col("kind").is_in(SYMMETRIC) & pl.col("ended").is_not_null())
    by_rank = {rank: ends.filter(pl.col("rank") == rank) for rank in tables.ranks}
    if len(tables.ranks) < 2:
        return None
    reference = tables.ranks[0]
    known = {reference: ClockRow(rank=reference, offset_us=0.0, error_us=0.0)}
    while len(known) < len(tables.ranks):
        best: tuple[int, int, int] = (0, reference, reference)
        apart = np.empty(0, dtype=np.int64)
        for rank in tables.ranks:
            for other in known if rank not in known else ():
                found = _apart(by_rank[rank], by_rank[other])
                if len(found) > best[0]:
                    best, apart = (len(found), rank, other), found
        count, rank, other = best
        if count < _FEWEST:
            return None
        offset = float(np.median(apart))
        error = float(np.quantile(np.abs(apart - offset), 0.9))
        base = known[other]
        known[rank] = ClockRow(
            rank=rank,
            offset_us=(base.offset_us or 0.0) + offset / 1e3,
            error_us=(base.error_us or 0.0) + error / 1e3,
        )
    clock = Clock(
        method="by symmetric collectives, which end on all ranks together: the median difference of their ends was "
        "subtracted; no clock was read",
        verdict="aligned",
        reference_rank=reference,
        ranks=[known[rank] for rank in tables.ranks],
    )
    reason = "causality alone gives no bound in this version; the error assumes that symmetric collectives end together"
    return clock, [NotObserved("clock.ranks.bound_us", None, reason)]


def _apart(own: pl.DataFrame, other: pl.DataFrame) -> np.ndarray:
    """Own ends less the other rank's of the same collectives, in ns."""
    key = ["group", "seq", "kind"]
    pairs = own.select(*key, "ended").join(other.select(*key, theirs="ended"), on=key)
    return (pairs["ended"] - pairs["theirs"]).to_numpy()
