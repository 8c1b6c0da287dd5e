"""Who holds a training up that does not go on: by the collectives that some ranks came to and others did not."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from distprof.analyze.listed import ranks
from distprof.analyze.steady import MS
from distprof.result import Clock
from distprof.trace.kinds import POINT_TO_POINT
from distprof.trace.tables import Tables

# A rank writes each second; a slow disk may hold it up.
_SILENT_NS = 10_000_000_000
# Ranks that hang read their flight recorder each ten seconds.
_BEHIND_NS = 5_000_000_000


def hanging(tables: Tables, clock: Clock) -> dict[int, str]:
    """rank -> what holds it up, or that it holds others up, in words; only of ranks that left no end.

    Ranks that merely are slower are not among them, and nobody is where the ranks' times cannot be compared.
    """
    running = {rank for rank in tables.ranks if tables.facts.get(rank, {}).get("status") != "finished"}
    seen = tables.signs.drop_nulls("written")
    if not running or seen.is_empty() or clock.verdict == "unaligned":
        return {}
    now = int(seen["written"].max())  # type: ignore[arg-type]
    texts: dict[int, list[str]] = {}
    writing = {rank for rank in running if not tables.facts.get(rank, {}).get("zones_left_off")}
    silent = seen.filter(pl.col("written") < now - _SILENT_NS, pl.col("rank").is_in(list(writing)))
    for rank, written in silent.select("rank", "written").iter_rows():
        texts.setdefault(rank, []).append(
            f"it wrote nothing for {_seconds(now - written)} s while others went on: its process is stopped or gone, "
            "or lets no other thread run"
        )
    stopped = set(silent["rank"])
    for behind, waiting, what, since in _held_up(tables, running, writing, stopped):
        text = f"it has not come to {what}, in which {ranks(sorted(waiting))} wait{'s' if len(waiting) == 1 else ''}"
        for rank in behind - stopped:
            texts.setdefault(rank, []).append(f"{text} for {_seconds(now - since)} s")
        for rank in waiting:
            texts.setdefault(rank, []).append(f"it waits in {what} for {ranks(sorted(behind))}")
    return {rank: "; ".join(told) for rank, told in texts.items()}


def _held_up(
    tables: Tables, running: set[int], writing: set[int], silent: set[int]
) -> Iterator[tuple[set[int], set[int], str, int]]:
    """For each group in which some hold up others: who has not come to its last collective, who waits in that, which it
    is, and since when. Who does something else does not wait; of ranks that write no zones it is not known."""
    drained = dict(tables.signs.select("rank", "drained").iter_rows())
    calls = tables.collectives.filter(~pl.col("kind").is_in(POINT_TO_POINT))
    names = {group.id: group.name for group in tables.groups}
    recorded = set(calls["rank"])  # of other ranks it is not known where they are
    members = {group.id: set(group.members) & running & recorded for group in tables.groups}
    begun = tables.zones.filter(pl.col("thread") == 0).group_by("rank").agg(pl.col("start").max())
    latest = dict(begun.iter_rows())
    for (group,), own in calls.partition_by("group", as_dict=True).items():
        last = dict(own.group_by("rank").agg(pl.col("seq").max()).iter_rows())
        top = max(last.values())
        at_top = own.filter(pl.col("seq") == top)
        since = int(at_top["created"].min())  # type: ignore[arg-type]
        late = {
            rank
            for rank in members.get(group, set())
            if last.get(rank, -1) < top and (rank in silent or (drained.get(rank) or 0) > since + _BEHIND_NS)
        }
        waiting = {rank for rank in set(at_top["rank"]) & writing if latest.get(rank, 0) < since + _BEHIND_NS}
        if late and waiting:
            what = f"{at_top['kind'][0]} {top} of group {names.get(group, group)}"
            yield late, waiting, what, since


def _seconds(ns: int) -> str:
    return f"{ns / MS / 1e3:.0f}"
