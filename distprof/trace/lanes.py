"""Groups that traces do not name, found by their lanes: each group has a stream, or workers, of its own on each rank.

Lanes of different ranks are one group's if their sequences can be aligned, no collective would have been over on one
rank before it began on the other, and their ends agree better than those of other lanes. A lane that finds no other is
a group of one rank: nobody waits in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from scipy.optimize import linear_sum_assignment

from distprof.result import Group
from distprof.trace.matching import Likeness, compare

NOT_NAMED = "not named"
# Lanes are one group's if their score is as high: the share of collectives that are partners, less up to `_WORST` for
# ends that are apart by `_FAR_NS` or more.
_LEAST = 0.6
_WORST = 0.3
_FAR_NS = 2_000_000
# What clocks of one host and rounded times may differ by.
_ERROR_NS = 20_000
# Two ranks' windows may be cut so differently.
_SLACK_NS = 1_000_000

Lanes = dict[int, pl.DataFrame]


def with_groups_of_lanes(
    occurrences: pl.DataFrame, groups: Sequence[Group], absent: Sequence[int]
) -> tuple[list[Group], pl.DataFrame]:
    """Give collectives without a group the one that their lane belongs to.

    Args:
        occurrences: OCCURRENCES.
        groups: those that are known by name.
        absent: ranks of the job that left no trace: nobody knows which of these groups they belong to, so they are
            taken for members of all.

    Returns:
        All groups, and OCCURRENCES with a group each.
    """
    filled = occurrences.with_columns(pl.col("lane").fill_null(0))
    nameless = filled.filter(pl.col("group").is_null())
    ranks: dict[int, Lanes] = {}
    for (rank, lane), own in sorted(nameless.partition_by("rank", "lane", as_dict=True).items(), key=lambda i: i[0]):
        ranks.setdefault(rank, {})[lane] = own
    found: list[dict[int, int]] = []  # rank -> lane, for each group
    for rank, lanes in sorted(ranks.items(), key=lambda item: -len(item[1])):
        others = [next(iter(group.items())) for group in found]
        partners = _assign(lanes, [ranks[other][lane] for other, lane in others])
        for lane in lanes:
            if lane in partners:
                found[partners[lane]][rank] = lane
            else:
                found.append({rank: lane})
    all_groups = list(groups)
    ids: list[tuple[int, int, int]] = []
    for number, group in enumerate(found, start=1):
        name = NOT_NAMED if len(found) == 1 else f"{NOT_NAMED} ({number})"
        ids += [(rank, lane, len(all_groups)) for rank, lane in group.items()]
        all_groups.append(Group(len(all_groups), name, None, sorted({*group, *absent})))
    by_lane = pl.DataFrame(ids, schema={"rank": pl.Int32, "lane": pl.Int64, "of_lane": pl.Int32}, orient="row")
    joined = filled.join(by_lane, on=["rank", "lane"], how="left", maintain_order="left")
    return all_groups, joined.with_columns(group=pl.coalesce("group", "of_lane")).drop("of_lane")


def _assign(own: Lanes, others: Sequence[pl.DataFrame]) -> dict[int, int]:
    """Which of the other lanes each of a rank's lanes belongs to."""
    if not others:
        return {}
    if len(own) == len(others) == 1:
        return {next(iter(own)): 0}  # there is no other choice, however little they have in common
    likeness = {
        (lane, column): compare(mine, other) for lane, mine in own.items() for column, other in enumerate(others)
    }
    # Clocks differ by one constant, which the most partners with the closest ends tell.
    best = max(likeness.values(), key=lambda like: (len(like.apart), -like.spread))
    scores = np.array(
        [
            [_score(likeness[lane, column], mine, other, best) for column, other in enumerate(others)]
            for lane, mine in own.items()
        ]
    )
    rows, columns = linear_sum_assignment(scores, maximize=True)
    lanes = list(own)
    return {lanes[row]: int(column) for row, column in zip(rows, columns, strict=True) if scores[row, column] >= _LEAST}


def _score(like: Likeness, own: pl.DataFrame, other: pl.DataFrame, best: Likeness) -> float:
    possible = max(_within(own, other, like.offset), _within(other, own, -like.offset), len(like.apart), 1)
    apart = like.spread + abs(like.offset - best.offset)
    partners = like.partners(best.offset, best.spread + _ERROR_NS)
    return partners / possible - _WORST * min(1.0, apart / _FAR_NS)


def _within(own: pl.DataFrame, other: pl.DataFrame, offset: float) -> int:
    """How many of a lane's collectives ended while the other lane was recorded."""
    end = pl.coalesce("ended", "started", "created")
    first, last = other.select(end.min().alias("first"), end.max().alias("last")).row(0)
    shifted = end - round(offset)
    return own.filter(shifted.is_between(first - _SLACK_NS, last + _SLACK_NS)).height
