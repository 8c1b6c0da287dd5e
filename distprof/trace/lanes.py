"""Groups that traces do not name, found by their lanes: each group has a stream, or workers, of its own on each rank.

Lanes of different ranks are one group's if their sequences can be aligned, no collective would have been over on one
rank before it began on the other, and their ends agree better than those of other lanes. A lane that finds no other is
a group of one rank: nobody waits in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.result import Group
from distprof.trace.likeness import Lane, Likeness, compare, lane_of

NOT_NAMED = "not named"
# Lanes are one group's if their score is as high: the share of collectives that are partners, less up to `_WORST` for
# ends that are far apart, and `_AGAINST` times the share of those that would have been over on one rank before they
# began on the other. A busy machine spreads ends, and more so those of other lanes; it puts no end before a start.
_LEAST = 0.75
_WORST = 0.3
_AGAINST = 3
_FAR_NS = 5_000_000
_FAR = 10  # or so many times the spread of the lanes that fit best
# Lanes that have so much of the shorter one in common tell the clocks' difference, the better the closer the ends.
_MOST = 0.75
_JITTER_NS = 100_000  # ends of any lane are apart by so much
# A lane must fit those of so many members of a group: what overlaps with one of them by chance does not with all.
_WITNESSES = 4
# Two ranks' windows may be cut so differently.
_SLACK_NS = 1_000_000
# So many ranks without a trace are named as members at most: one is enough for nobody to know who waits for whom.
_MOST_ABSENT = 1 << 14
# So many of a rank's lanes are compared with the other ranks': all pairs are, and a training has tens of communicators.
_MOST_COMPARED = 32

Lanes = dict[int, Lane]


def with_groups_of_lanes(
    occurrences: pl.DataFrame, groups: Sequence[Group], absent: Sequence[int]
) -> tuple[list[Group], pl.DataFrame, dict[int, int]]:
    """Give collectives without a group the one that their lane belongs to.

    Args:
        occurrences: OCCURRENCES.
        groups: those that are known by name.
        absent: ranks of the job that left no trace: nobody knows which of these groups they belong to, so they are
            taken for members of all; of very many the first.

    Returns:
        All groups; OCCURRENCES with a group each; and how many lanes of which ranks were not compared, since there are
        too many: those with the fewest collectives. All of a rank's are one group, whose members may be all ranks, so
        that no wait in it is known.
    """
    filled = occurrences.with_columns(pl.col("lane").fill_null(0))
    nameless = filled.filter(pl.col("group").is_null())
    kinds = {kind: number for number, kind in enumerate(nameless["kind"].unique())}
    compared, alone = _largest(nameless)
    ranks: dict[int, Lanes] = {}
    parts = nameless.join(compared, on=["rank", "lane"], how="semi", maintain_order="left")
    for (rank, lane), own in sorted(parts.partition_by("rank", "lane", as_dict=True).items(), key=lambda i: i[0]):
        ranks.setdefault(rank, {})[lane] = lane_of(own, kinds)
    found: list[dict[int, int]] = []  # rank -> lane, for each group
    for rank, lanes in sorted(ranks.items(), key=lambda item: -len(item[1])):
        partners = _assign(lanes, found, ranks)
        for lane in lanes:
            if lane in partners:
                found[partners[lane]][rank] = lane
            else:
                found.append({rank: lane})
    ids = [(rank, lane, number) for number, group in enumerate(found) for rank, lane in group.items()]
    ids += [(rank, lane, len(found) + number) for number, (rank, own) in enumerate(alone.items()) for lane in own]
    members: list[Collection[int]] = [*found, *len(alone) * [ranks]]
    unnamed = [sorted({*known, *absent[:_MOST_ABSENT]}) for known in members]
    names = [NOT_NAMED] if len(unnamed) == 1 else [f"{NOT_NAMED} ({number + 1})" for number in range(len(unnamed))]
    numbered = enumerate(zip(names, unnamed, strict=True), start=len(groups))
    all_groups = [*groups, *(Group(number, name, None, own) for number, (name, own) in numbered)]
    by_lane = pl.DataFrame(ids, schema={"rank": pl.Int32, "lane": pl.Int64, "of_lane": pl.Int32}, orient="row")
    joined = filled.join(by_lane, on=["rank", "lane"], how="left", maintain_order="left")
    named = joined.with_columns(group=pl.coalesce("group", pl.col("of_lane") + len(groups))).drop("of_lane")
    return all_groups, named, {rank: len(own) for rank, own in alone.items()}


def _largest(nameless: pl.DataFrame) -> tuple[pl.DataFrame, dict[int, list[int]]]:
    """The lanes that are compared, `rank` and `lane`; and the other ones of each rank that has too many."""
    lanes = nameless.group_by("rank", "lane").len().sort("rank", "len", "lane", descending=[False, True, False])
    is_compared = pl.int_range(pl.len()).over("rank") < _MOST_COMPARED
    alone = lanes.filter(~is_compared).sort("rank", "lane").group_by("rank", maintain_order=True).agg("lane")
    return lanes.filter(is_compared).select("rank", "lane"), dict(alone.iter_rows())


def _assign(own: Lanes, groups: Sequence[Mapping[int, int]], ranks: Mapping[int, Lanes]) -> dict[int, int]:
    """Which of the groups, each of which maps ranks to lanes, each of a rank's lanes belongs to."""
    if not groups:
        return {}
    if len(own) == len(groups) == 1:
        return {next(iter(own)): 0}  # there is no other choice, however little they have in common
    witnesses = [list(group.items())[:_WITNESSES] for group in groups]
    others = {rank for members in witnesses for rank, _ in members}
    by_rank = {rank: _scores(own, ranks[rank]) for rank in others}
    scores = np.array(
        [[min(by_rank[rank][mine, lane] for rank, lane in members) for members in witnesses] for mine in own]
    )
    scores[scores < _LEAST] = 0  # all that do not fit are alike
    lanes = list(own)
    return {lanes[row]: column for row, column in _best(scores) if scores[row, column] >= _LEAST}


def _best(scores: npt.NDArray[np.float64]) -> list[tuple[int, int]]:
    """The rows and columns, none of them twice, whose scores have the largest sum; rows of zeros need not be there."""
    rows = np.flatnonzero(scores.max(axis=1) > 0)
    columns = scores[rows].argmax(axis=1)
    if len(set(columns.tolist())) < len(rows):  # two rows want the same column
        from scipy.optimize import linear_sum_assignment  # costs more than reading a small trace

        rows, columns = linear_sum_assignment(scores, maximize=True)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _scores(own: Lanes, others: Lanes) -> dict[tuple[int, int], float]:
    """How well each lane of one rank fits each of another's."""
    likeness = {(i, j): compare(mine, other) for i, mine in own.items() for j, other in others.items()}
    # Clocks differ by one constant, which many partners with close ends tell best. It judges the other lanes.
    best = max(likeness.values(), key=_precision)
    clock = best.ahead
    if clock is not None:
        likeness = {(i, j): compare(own[i], others[j], clock) for i, j in likeness}
    far = max(_FAR_NS, _FAR * best.spread)
    scores = {}
    for (i, j), like in likeness.items():
        offset = like.offset if clock is None else clock.offset
        possible = max(_within(own[i], others[j], offset), _within(others[j], own[i], -offset), len(like.apart), 1)
        apart = like.spread + abs(like.offset - best.offset)
        against = 0 if clock is None else like.impossible(clock)
        scores[i, j] = (len(like.apart) - _AGAINST * against) / possible - _WORST * min(1.0, apart / far)
    return scores


def _precision(like: Likeness) -> tuple[bool, float]:
    """How well lanes tell the clocks' difference if they are one group's."""
    return like.share >= _MOST, len(like.apart) / (like.spread + _JITTER_NS) ** 2


def _within(own: Lane, other: Lane, offset: float) -> int:
    """How many of a lane's collectives ended while the other lane was recorded."""
    ends = own.ends - round(offset)
    inside = (ends >= other.ends.min() - _SLACK_NS) & (ends <= other.ends.max() + _SLACK_NS)
    return int(np.count_nonzero(inside))
