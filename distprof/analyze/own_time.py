"""What each rank did with its own time: each step's time less what it was blocked, by innermost zone.

A delay between backward and the optimizer shows in the next step's collectives, so own time is not cut at step
boundaries but where the rank was last released from a collective: step n's own time runs from the last release
of step n-1 to the last release of step n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import steady_steps
from distprof.analyze.waits import RankWaits
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

Ints = npt.NDArray[np.int64]
HOST = ("host", "")
DEVICE = ("device", "")


@dataclass(frozen=True, slots=True)
class Pieces:
    """One rank's own time, cut so that each piece lies in one step, in one zone and between two neighbouring arrivals
    at collectives that bind the rank; in the order of time.

    Attributes:
        begin, length: in ns.
        step: place of its step in `OwnTime.steps`, -1 outside of these.
        zone: place of its zone in `OwnTime.zones`.
        slot: how often the rank had arrived since its step's own time began.
        span: from where the first of these steps' own time begins to where the last one's ends, in ns.
    """

    begin: Ints
    length: Ints
    step: Ints
    zone: Ints
    slot: Ints
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Own time in ns.

    Attributes:
        ranks: R ranks, those that recorded steps.
        steps: S steps that are steady on all of them.
        zones: Z zones as (kind, name); `HOST` is the time outside of every zone, `DEVICE` that in which the device
            computed, whatever the host did.
        own: shape (R, S, Z).
        pieces: what `own` adds up, rank by rank.
    """

    ranks: list[int]
    steps: list[int]
    zones: list[tuple[str, str]]
    own: Ints
    pieces: list[Pieces]

    def of_kind(self, *kinds: str) -> Ints:
        """Own time in zones of these kinds, shape (R, S)."""
        chosen = [index for index, (kind, _) in enumerate(self.zones) if kind in kinds]
        return np.asarray(self.own[:, :, chosen].sum(axis=2))


def own_time(
    tables: Tables,
    waits: Mapping[int, RankWaits],
    steps: list[int] | None = None,
    computing: Mapping[int, Intervals] | None = None,
) -> OwnTime:
    """Cut every rank's training thread into own time by step and zone.

    Args:
        steps: those that are used; by default the steady ones.
        computing: rank -> when its device computed.
    """
    steps = steady_steps(tables) if steps is None else steps
    ranks = sorted(set(tables.ranks).intersection(tables.steps["rank"]))
    used = tables.zones.filter((pl.col("thread") == 0) & (pl.col("kind") != "wait") & (pl.col("end") > pl.col("start")))
    names = used.select("kind", "name").unique(maintain_order=True)
    zones = [HOST, *names.iter_rows(), *([DEVICE] if computing else [])]
    numbered = used.join(names.with_row_index("zone", offset=1), on=["kind", "name"], how="left")
    own = np.zeros((len(ranks), len(steps), len(zones)), dtype=np.int64)
    pieces = []
    for index, rank in enumerate(ranks):
        of_steps = of_rank(tables.steps, rank).sort("step")
        edges = _edges(of_steps, waits[rank].blocked)[np.searchsorted(of_steps["step"].to_numpy(), steps)]
        on_device = computing[rank] if computing else intervals.EMPTY
        cut = _pieces(of_rank(numbered, rank), waits[rank], edges, on_device, len(zones) - 1)
        counted = cut.step >= 0
        np.add.at(own[index], (cut.step[counted], cut.zone[counted]), cut.length[counted])
        pieces.append(cut)
    return OwnTime(ranks=ranks, steps=steps, zones=zones, own=own, pieces=pieces)


def _edges(steps: pl.DataFrame, blocked: Intervals) -> Ints:
    """For each step: where its own time begins and ends; shape (steps, 2)."""
    start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
    if len(blocked):
        last = np.searchsorted(blocked[:, 1], end, side="right") - 1
        release = blocked[np.maximum(last, 0), 1]
        end = np.where((last >= 0) & (release > start), release, end)
    begin = np.concatenate([start[:1], end[:-1]])
    return np.column_stack([begin, end])


def _pieces(zones: pl.DataFrame, waits: RankWaits, edges: Ints, computing: Intervals, device: int) -> Pieces:
    """Own time of one rank; `edges` are of the steps that are used, `device` is the number of `DEVICE`."""
    start, end, number = (zones[column].to_numpy() for column in ("start", "end", "zone"))
    # Between two neighbouring cuts nothing changes, so each piece belongs to one step and one zone.
    sets = (waits.blocked, edges, computing)
    cuts = intervals.distinct(np.concatenate([start, end, waits.arrived, *(edge.ravel() for edge in sets)]))
    own = ~intervals.contains(waits.blocked, cuts[:-1])
    begin, length = cuts[:-1][own], np.diff(cuts)[own]
    step = np.searchsorted(edges[:, 0], begin, side="right") - 1
    step[begin >= np.append(edges[:, 1], 0)[step]] = -1
    zone = np.append(number, 0)[intervals.innermost(start, end, begin)]
    zone[intervals.contains(computing, begin)] = device
    slot = np.searchsorted(waits.arrived, begin, side="right")
    slot -= np.searchsorted(waits.arrived, np.append(edges[:, 0], 0)[step], side="right")
    span = (int(edges[0, 0]), int(edges[-1, 1])) if len(edges) else (0, 0)
    return Pieces(begin=begin, length=length, step=step, zone=zone, slot=slot, span=span)
