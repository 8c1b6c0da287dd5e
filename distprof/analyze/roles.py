"""Which ranks do the same work, so that one's time can be held against another's."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from distprof.result import Group


def roles(ranks: list[int], calls: pl.DataFrame, groups: list[Group]) -> list[list[int]]:
    """Split `ranks` into those of one role; each role as places in `ranks`, ascending.

    Peers call the same kinds of collectives in groups of the same size and reduce gradients of the same sizes: stages
    of a pipeline have other layers. Those that reduce their gradients together are replicas of each other, and are
    compared with nobody else. A group of one rank is none. What a rank calls in fewer than half of the steps does not
    count, since at the edge of a window a call may be cut off.

    Args:
        calls: collectives with the columns of `waits.match`.
    """
    done: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    gradients = pl.col("bucket").is_not_null()
    with_others = calls.filter(pl.col("members") > 1)
    often = 2 * pl.col("step").n_unique() >= calls["step"].n_unique()
    for kind in (["kind", "members"], ["bytes"]):
        of_kind = with_others if "kind" in kind else with_others.filter(gradients)
        for rank, *what in of_kind.group_by("rank", *kind).agg(often.alias("often")).filter("often").iter_rows():
            done[rank].add(tuple(what))
    classes: dict[frozenset[tuple[object, ...]], list[int]] = {}
    for place, rank in enumerate(ranks):
        classes.setdefault(frozenset(done[rank]), []).append(place)
    reducing = set(with_others.filter(gradients)["group"].unique())
    replicas = [set(group.members) for group in groups if group.id in reducing]
    return [part for alike in classes.values() for part in _replicas(alike, ranks, replicas)]


def _replicas(alike: list[int], ranks: list[int], groups: list[set[int]]) -> list[list[int]]:
    """Split ranks that do the same by the groups in which they reduce gradients together."""
    parts: list[set[int]] = []
    for group in groups:
        joined = {place for place in alike if ranks[place] in group}
        if joined:
            apart = [part for part in parts if not part & joined]
            parts = [*apart, joined.union(*(part for part in parts if part & joined))]
    rest = set(alike).difference(*parts)
    return [sorted(part) for part in (*parts, rest) if part]
