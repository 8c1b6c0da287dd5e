"""Which ranks do the same work, so that one's time can be held against another's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

from distprof.analyze.evidence import Evidence
from distprof.analyze.waits import ONE
from distprof.trace.kinds import POINT_TO_POINT, SYMMETRIC

# A norm, a loss or a count is added up over ranks that do different work, too.
_SOME_FIGURES = 1024  # bytes
_GRADIENTS = 65_536  # bytes
_SAME_PLACE = 0.5  # of a group's collectives


@dataclass(frozen=True, slots=True)
class Roles:
    """Ranks by what they do.

    Attributes:
        members: the ranks of each role, as places in `OwnTime.ranks`, ascending.
        alone: those that nobody shares work with, though others call the same collectives.
        certain: whether ranks of one role surely do the same work.
    """

    members: list[list[int]]
    alone: list[int]
    certain: bool


def roles(evidence: Evidence) -> Roles:
    """Split the ranks into those of one role.

    Peers call the same kinds of collectives in groups of the same size and reduce gradients of the same sizes: stages
    of a pipeline have other layers. Those that reduce their gradients together are replicas of each other, and are
    compared with nobody else. A group of one rank is none. What a rank calls in fewer than half of the steps does not
    count, since at the edge of a window a call may be cut off. Of those that send and receive, some begin with the one.

    Where it is not known what DDP reduces, ranks that only ever meet all together do the same. If they have groups of
    their own as well, or send each other anything, they may be stages of a pipeline: then only those are peers that
    share work in a group, see `_sharing`.
    """
    ranks, calls = evidence.own.ranks, evidence.calls.filter(pl.col("members") > 1)
    done: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    gradients = calls.filter(pl.col("bucket").is_not_null())
    often = 2 * pl.col("step").n_unique() >= calls["step"].n_unique()
    for of_kind, kind in ((calls, ["kind", "members"]), (gradients, ["bytes"])):
        for rank, *what in of_kind.group_by("rank", *kind).agg(often=often).filter("often").iter_rows():
            done[rank].add(tuple(what))
    for rank, first in evidence.exchanges.items():
        if first in POINT_TO_POINT:
            done[rank].add((first,))
    classes: dict[frozenset[tuple[object, ...]], list[int]] = {}
    for place, rank in enumerate(ranks):
        classes.setdefault(frozenset(done[rank]), []).append(place)

    size = evidence.tables.world_size
    regular = calls.filter(often.over("group"))
    certain = bool(len(gradients)) or not (evidence.exchanges or (regular["members"] < size).any())
    sharing = set(gradients["group"].unique()) if certain else _sharing(regular, size, sends=bool(evidence.exchanges))
    replicas = [set(group.members) for group in evidence.tables.groups if group.id in sharing]
    members, alone = [], []
    for alike in classes.values():
        together, rest = _joined(alike, ranks, replicas)
        members += together
        if certain and rest:
            members.append(rest)
        elif rest:
            members += [[place] for place in rest]
            alone += rest if len(alike) > 1 or evidence.exchanges else []
    return Roles(members, sorted(alone), certain)


def _sharing(calls: pl.DataFrame, world_size: int, *, sends: bool) -> set[int]:
    """Groups whose members do the same work, as far as their collectives tell.

    They call them at the same place of their program, between collectives of the same kinds, as stages that hand
    something on do not: one sends when it is done, and the other one receives before it begins. And they exchange more
    than a figure or two, which all that train together add up; all ranks together as much as smaller groups do or, if
    ranks send each other what no collective tells (`sends`), as gradients have.
    """
    what = pl.concat_str("kind", "members", separator=" ", ignore_nulls=True)
    placed = calls.sort("rank", "created").with_columns(
        before=what.shift(1).over("rank"),
        after=what.shift(-1).over("rank"),
    )
    one = (
        placed.filter(pl.col("kind").is_in([kind for kind in SYMMETRIC if kind != "barrier"]))
        .group_by(ONE)
        .agg(
            same=(pl.col("before").n_unique() == 1) & (pl.col("after").n_unique() == 1),
            bytes=pl.col("bytes").max(),
            members=pl.col("members").first(),
        )
    )
    of_groups = one.group_by("group").agg(pl.col("same").mean(), pl.col("bytes").max(), pl.col("members").first())
    smaller = pl.col("members") < world_size
    most = _GRADIENTS if sends else of_groups.filter(smaller)["bytes"].max() or 0
    more = pl.col("bytes") > _SOME_FIGURES
    enough = pl.when(smaller).then(more.fill_null(True)).otherwise((more & (pl.col("bytes") >= most)).fill_null(False))
    return set(of_groups.filter((pl.col("same") > _SAME_PLACE) & enough)["group"])


def _joined(alike: list[int], ranks: list[int], groups: list[set[int]]) -> tuple[list[list[int]], list[int]]:
    """Split ranks that do the same by the groups in which they meet; and those that are in none of these."""
    parts: list[set[int]] = []
    for group in groups:
        joined = {place for place in alike if ranks[place] in group}
        if joined:
            apart = [part for part in parts if not part & joined]
            parts = [*apart, joined.union(*(part for part in parts if part & joined))]
    return [sorted(part) for part in parts], sorted(set(alike).difference(*parts))
