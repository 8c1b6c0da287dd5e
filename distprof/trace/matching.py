"""Which collectives of different ranks are one: by sequence number, else by aligning the ranks' sequences.

Windows are cut at different places, so the k-th of one rank need not be the k-th of another. Two ranks' sequences of
one group and family are shifted against each other until kinds, sizes and steps fit and the ends agree: a symmetric
collective ends on all ranks together, but for a constant by which the ranks' clocks differ. Of shifts that do equally
well, as in a training whose steps are alike, the one with the smallest constant holds.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.trace.alignment import (
    FEWEST,
    FURTHEST,
    NOWHERE,
    VAGUE,
    Ahead,
    ahead_by,
    align,
    between,
    nearest,
    pairs,
    sequence_of,
)

# A trace's collectives before they are matched. `group` is an id, and null where only the `lane` is known: what of a
# rank's belongs to one group. `family` is what the backend itself calls the collective; that can be less than its kind.
# `root` is a place among the group's members.
OCCURRENCES: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "group": pl.Int32,
    "lane": pl.Int64,
    "seq": pl.Int64,
    "kind": pl.String,
    "family": pl.String,
    "bytes": pl.Int64,
    "dtype": pl.String,
    "created": pl.Int64,
    "started": pl.Int64,
    "ended": pl.Int64,
    "step": pl.Int64,
    "root": pl.Int64,
}

_Clocks = dict[tuple[int, int], Ahead]  # (rank, other rank) -> the one's clock


def with_sequence_numbers(occurrences: pl.DataFrame) -> pl.DataFrame:
    """Fill `seq` so that (group, seq) is the same on all ranks that took part in a collective, and nowhere else.

    Sequence numbers of torch are kept where they are unique on their rank. Others are given in the order of time, below
    zero in a group that has some of torch's. Kinds that one rank's trace tells hold for the other ranks'.
    """
    table = occurrences.with_row_index("row")
    told = pl.col("seq").is_not_null() & (pl.len().over("rank", "window", "group", "seq", "family") == 1)
    table = table.with_columns(seq=pl.when(told).then("seq"))
    numbers = table["seq"].to_list()
    unnumbered = table.filter(pl.col("seq").is_null())
    partial = set(table.filter(pl.col("seq").is_not_null())["group"].unique())
    # The long sequences come first: what they tell of the clocks holds for the short ones.
    sequences = sorted(unnumbered.partition_by("group", "window", "family", maintain_order=True), key=len, reverse=True)
    clocks: _Clocks = {}
    times: dict[int, dict[tuple[int, int], int]] = {}
    ids: dict[int, dict[int, tuple[int, int]]] = {}
    for key, of_key in enumerate(sequences):
        group = of_key["group"][0]
        of_group = times.setdefault(group, {})
        for row, (number, time) in _match(of_key, clocks).items():
            ids.setdefault(group, {})[row] = (key, number)
            of_group[key, number] = min(time, of_group.get((key, number), time))
    for group, rows in ids.items():
        order = {one: place for place, one in enumerate(sorted(times[group], key=lambda one: (times[group][one], one)))}
        first = -len(order) if group in partial else 0
        for row, one in rows.items():
            numbers[row] = first + order[one]
    table = table.with_columns(seq=pl.Series(numbers, dtype=pl.Int64))
    clear = pl.col("kind").filter(~pl.col("kind").is_in(VAGUE))
    same = ("group", "seq", "family")
    agreed = pl.when(pl.col("kind").is_in(VAGUE) & (clear.n_unique().over(same) == 1)).then(clear.first().over(same))
    return table.with_columns(kind=agreed.fill_null(pl.col("kind"))).drop("row")


def _match(table: pl.DataFrame, clocks: _Clocks) -> dict[int, tuple[int, int]]:
    """Number one group's and family's collectives: row -> number, the same on all ranks, and a time for its order.

    What is known of `clocks` serves, and what is found is added.
    """
    kinds = {kind: number for number, kind in enumerate(table["kind"].unique().sort())}
    ranks = {
        rank: sequence_of(of_rank, kinds)
        for (rank,), of_rank in table.partition_by("rank", as_dict=True, maintain_order=True).items()
    }
    first = max(ranks, key=lambda rank: len(ranks[rank]))
    reference = ranks[first]
    found: dict[int, tuple[int, int]] = {
        row: (number, time)
        for number, (row, time) in enumerate(zip(reference.rows.tolist(), reference.end.tolist(), strict=True))
    }
    # Numbers that no other rank can have.
    alone = len(reference) * 4 + FURTHEST
    for rank, own in ranks.items():
        if rank == first:
            continue
        known = _ahead(clocks, rank, first)
        if known is not None and min(len(own), len(reference)) < FEWEST:
            places, offset = nearest(own, reference, known.offset, 0.0), known.offset
        else:
            places, offset = align(own, reference, known)
            i, j = pairs(places, reference)
            found_clock = ahead_by(own.end[i] - reference.end[j], *between(own, i, reference, j))
            if known is None and found_clock is not None:
                clocks[rank, first], clocks[first, rank] = found_clock, found_clock.back()
        for index, row in enumerate(own.rows.tolist()):
            number = int(places[index])
            if number == NOWHERE:
                alone += 1
                number = alone
            found[row] = (number, int(own.end[index]) - offset)
    return found


def _ahead(clocks: _Clocks, rank: int, other: int) -> Ahead | None:
    """What is known of how far a rank's clock is ahead of another's, be it by way of a third."""
    if (rank, other) in clocks:
        return clocks[rank, other]
    ways = (
        ahead.and_then(clocks[third, other])
        for (one, third), ahead in clocks.items()
        if one == rank and (third, other) in clocks
    )
    return next(ways, None)
