"""The process groups that traces name, each once, and which of them each collective belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from distprof.result import Group
from distprof.run.manifest import MOST_RANKS
from distprof.trace.header import GroupHeader

_DEFAULT = "default_pg"
_NUMBER = re.compile(r"\d+")
_LONGEST = 1 << 20
_DIGITS = 10  # of a rank


def name_groups(
    carried_out: pl.DataFrame, headers: Mapping[int, Sequence[GroupHeader]], world_size: int
) -> tuple[list[Group], pl.DataFrame]:
    """Find all groups.

    A group is its name and its members: other groups may have the same name on other ranks, or the same description. A
    collective without a name belongs to the only group there is, if all of them are in one lane; else to none.

    Args:
        carried_out: CARRIED_OUT with `rank`.
        headers: rank -> the groups in its traces' headers.

    Returns:
        The groups, and `carried_out` with their ids in the column `group`, null where it is not known.
    """
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}

    def add(name: str, members: Sequence[int], desc: str | None) -> int:
        key = (name, tuple(sorted(set(members))))
        return groups.setdefault(key, Group(len(groups), name, desc, list(key[1]))).id

    told = {(rank, group.name): group for rank, own in headers.items() for group in own}
    for _, group in sorted(told.items()):
        add(group.name, group.members, group.desc)
    nameless = carried_out.filter(pl.col("group").is_null())
    one_lane = nameless.group_by("rank").agg(pl.col("lane").n_unique())["lane"].max() == 1
    only = next(iter(groups.values())).id if len(groups) == 1 and one_lane else None
    used = carried_out.select("rank", "group", "members", "desc").unique(maintain_order=True)
    by_name: dict[str, list[int]] = {}
    for rank, name in used.select("rank", "group").drop_nulls().iter_rows():
        by_name.setdefault(name, []).append(rank)
    said = [_members(members) for members in used["members"]]
    # A group's members are wrong where a rank that is none of them uses it; the default group is everybody's.
    wrong = {
        name
        for rank, name, members in zip(used["rank"], used["group"], said, strict=True)
        if members is not None and rank not in members
    }
    ids: list[int | None] = []
    for (rank, name, _, desc), members in zip(used.iter_rows(), said, strict=True):
        known = told.get((rank, name))
        if name is None:
            ids.append(only)
        elif known is not None:
            ids.append(add(name, known.members, known.desc))
        elif name in wrong and desc == _DEFAULT:
            ids.append(add(name, range(world_size), desc))
        elif members is None or name in wrong:
            ids.append(add(name, by_name[name], desc))
        else:
            ids.append(add(name, members, desc))
    key = ["rank", "group", "members", "desc"]
    numbered = used.with_columns(id=pl.Series(ids, dtype=pl.Int32))
    joined = carried_out.join(numbered, on=key, how="left", nulls_equal=True, maintain_order="left")
    return list(groups.values()), joined.with_columns(group=pl.col("id")).drop("id", "members", "desc")


def _members(text: str | None) -> list[int] | None:
    """Ranks from a list written as text; None where it is not written out."""
    if text is None or "..." in text or len(text) > _LONGEST:
        return None
    numbers = [int(number) for number in _NUMBER.findall(text) if len(number) < _DIGITS]
    return [number for number in numbers if number < MOST_RANKS] or None
