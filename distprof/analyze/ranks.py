"""One rank's rows of a table, for analyses that go from rank to rank.

To search all ranks' rows for those of each rank takes time that grows with the square of the ranks. So a table is split
once, and the parts are kept as long as the table lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import numpy as np
import polars as pl

from distprof.trace.tables import Tables

T = TypeVar("T")


def once(function: Callable[[pl.DataFrame], T]) -> Callable[[pl.DataFrame], T]:
    """Let a function of a table compute once for each; what it returns must not refer to the table itself."""
    kept: dict[int, T] = {}

    def remembered(table: pl.DataFrame) -> T:
        key = id(table)
        if key not in kept:
            kept[key] = function(table)
            weakref.finalize(table, kept.pop, key, None).atexit = False
        return kept[key]

    return remembered


@once
def by_rank(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """The rows of each rank that has any, in their order."""
    ranks = table["rank"].to_numpy()
    steps = np.diff(ranks)
    if (steps < 0).any():
        return {rank: rows for (rank,), rows in table.partition_by("rank", as_dict=True).items()}
    # In the order of ranks, as most tables are, parts are views of the table.
    edges = [0, *(np.flatnonzero(steps) + 1).tolist(), len(ranks)]
    return {int(ranks[at]): table.slice(at, end - at) for at, end in pairwise(edges) if end > at}


def of_rank(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The rows of `rank`, in their order."""
    found = by_rank(table).get(rank)
    return table.slice(0, 0) if found is None else found


@once
def _of_training_threads(zones: pl.DataFrame) -> dict[tuple[str, ...], pl.DataFrame]:
    """By kinds; () is all of them. Others are added when they are asked for."""
    return {(): zones.filter(pl.col("thread") == 0)}


def training_zones(tables: Tables, rank: int, *kinds: str) -> pl.DataFrame:
    """The zones of the training thread of `rank`; those of these kinds, if some are given."""
    known = _of_training_threads(tables.zones)
    if kinds not in known:
        known[kinds] = known[()].filter(pl.col("kind").is_in(kinds))
    return of_rank(known[kinds], rank)
