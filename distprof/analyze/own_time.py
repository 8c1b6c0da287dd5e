"""What each rank did with its own time: each step's time less what it was blocked, by innermost zone.

A delay between backward and the optimizer shows in the next step's collectives, so own time is not cut at step
boundaries but where the rank was last released from a collective: step n's own time runs from the last release
of step n-1 to the last release of step n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.steady import steady_steps
from distprof.analyze.waits import RankWaits
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

Ints = npt.NDArray[np.int64]
HOST = ("host", "")


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Own time in ns.

    Attributes:
        ranks: R ranks, those that recorded steps.
        steps: S steps that are steady on all of them.
        zones: Z zones as (kind, name); `HOST` is the time outside of every zone.
        own: shape (R, S, Z).
    """

    ranks: list[int]
    steps: list[int]
    zones: list[tuple[str, str]]
    own: Ints

    def of_kind(self, *kinds: str) -> Ints:
        """Own time in zones of these kinds, shape (R, S)."""
        chosen = [index for index, (kind, _) in enumerate(self.zones) if kind in kinds]
        return np.asarray(self.own[:, :, chosen].sum(axis=2))


def own_time(tables: Tables, waits: dict[int, RankWaits]) -> OwnTime:
    """Cut every rank's training thread into own time by step and zone."""
    steps = steady_steps(tables)
    ranks = sorted(set(tables.ranks).intersection(tables.steps["rank"]))
    used = tables.zones.filter((pl.col("thread") == 0) & (pl.col("kind") != "wait") & (pl.col("end") > pl.col("start")))
    names = used.select("kind", "name").unique(maintain_order=True)
    zones = [HOST, *names.iter_rows()]
    numbered = used.join(names.with_row_index("zone", offset=1), on=["kind", "name"], how="left")
    own = np.zeros((len(ranks), len(steps), len(zones)), dtype=np.int64)
    for index, rank in enumerate(ranks):
        of_rank = pl.col("rank") == rank
        of_steps = tables.steps.filter(of_rank).sort("step")
        edges = _edges(of_steps, waits[rank].blocked)
        by_step = _by_step(numbered.filter(of_rank), waits[rank].blocked, edges, len(zones))
        own[index] = by_step[np.searchsorted(of_steps["step"].to_numpy(), steps)]
    return OwnTime(ranks=ranks, steps=steps, zones=zones, own=own)


def _edges(steps: pl.DataFrame, blocked: Intervals) -> Ints:
    """For each step: where its own time begins and ends; shape (steps, 2)."""
    start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
    if len(blocked):
        last = np.searchsorted(blocked[:, 1], end, side="right") - 1
        release = blocked[np.maximum(last, 0), 1]
        end = np.where((last >= 0) & (release > start), release, end)
    begin = np.concatenate([start[:1], end[:-1]])
    return np.column_stack([begin, end])


def _by_step(zones: pl.DataFrame, blocked: Intervals, edges: Ints, count: int) -> Ints:
    """Own time in each of `count` zones between each step's edges, in ns; shape (steps, count)."""
    start, end, number = (zones[column].to_numpy() for column in ("start", "end", "zone"))
    # Between two neighbouring cuts nothing changes, so each piece belongs to one step and one zone.
    cuts = np.unique(np.concatenate([start, end, blocked.ravel(), edges.ravel()]))
    begin, length = cuts[:-1], np.diff(cuts)
    step = np.searchsorted(edges[:, 0], begin, side="right") - 1
    counted = (step >= 0) & ~intervals.contains(blocked, begin)
    counted &= begin < np.append(edges[:, 1], 0)[step]
    zone = np.append(number, 0)[intervals.innermost(start, end, begin)]
    table = np.zeros((len(edges), count), dtype=np.int64)
    np.add.at(table, (step[counted], zone[counted]), length[counted])
    return table
