"""What each rank did with its own time: each step's time less what it was blocked, by innermost zone.

A delay between backward and the optimizer shows in the next step's collectives, so own time is not cut at step
boundaries but where the rank was last released from a collective: step n's own time runs from the last release
of step n-1 to the last release of step n.

A device is behind its host, now more and now less, so that a step's end on the host says nothing of which collectives
its device was released from by then. Its own time is cut at the end of the last collective launched in a step. In
the first one that windows show it begins with the first release, unless all windows opened together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import steady_steps
from distprof.analyze.waits import ONE, RankWaits
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

Ints = npt.NDArray[np.int64]
HOST = ("host", "")
DEVICE = ("device", "")
_TOGETHER = 0.02  # of a step: less than anybody is named for


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
    matched: pl.DataFrame | None = None,
) -> OwnTime:
    """Cut every rank's training thread into own time by step and zone.

    Args:
        steps: those that are used; by default the steady ones.
        computing: rank -> when its device computed.
        matched: `waits.match`'s, of collectives that devices carried out.
    """
    steps = steady_steps(tables) if steps is None else steps
    ranks = sorted(set(tables.ranks).intersection(tables.steps["rank"]))
    used = tables.zones.filter((pl.col("thread") == 0) & (pl.col("kind") != "wait") & (pl.col("end") > pl.col("start")))
    names = used.select("kind", "name").unique(maintain_order=True)
    zones = [HOST, *names.iter_rows(), *([DEVICE] if computing else [])]
    numbered = used.join(names.with_row_index("zone", offset=1), on=["kind", "name"], how="left")
    launched = None if matched is None else _launched(tables.steps, matched)
    own = np.zeros((len(ranks), len(steps), len(zones)), dtype=np.int64)
    pieces = []
    for index, rank in enumerate(ranks):
        of_steps = of_rank(tables.steps, rank).sort("step")
        if launched is None:
            edges = _at_releases(of_steps, waits[rank].blocked)
        else:
            edges = _at_launched(of_steps.join(of_rank(launched, rank), on="step", how="left", maintain_order="left"))
        edges = edges[np.searchsorted(of_steps["step"].to_numpy(), steps)]
        on_device = computing[rank] if computing else intervals.EMPTY
        cut = _pieces(of_rank(numbered, rank), waits[rank], edges, on_device, len(zones) - 1)
        counted = cut.step >= 0
        np.add.at(own[index], (cut.step[counted], cut.zone[counted]), cut.length[counted])
        pieces.append(cut)
    return OwnTime(ranks=ranks, steps=steps, zones=zones, own=own, pieces=pieces)


def _at_releases(steps: pl.DataFrame, blocked: Intervals) -> Ints:
    """For each step: where its own time begins and ends, by when the rank was last released; shape (steps, 2)."""
    start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
    if len(blocked):
        last = np.searchsorted(blocked[:, 1], end, side="right") - 1
        release = blocked[np.maximum(last, 0), 1]
        end = np.where((last >= 0) & (release > start), release, end)
    return np.column_stack([np.concatenate([start[:1], end[:-1]]), end])


def _at_launched(steps: pl.DataFrame) -> Ints:
    """The same on a device; `steps` have the columns of `_launched`."""
    end = np.maximum.accumulate(steps.select(pl.coalesce("last", "end")).to_series().to_numpy())
    begin = np.concatenate([steps["start"].to_numpy()[:1], end[:-1]])
    # When the device was done with the step before is not known, and hosts are no measure of it.
    unknown = steps.select(pl.col("last").shift(1).is_null() & pl.col("first").is_not_null() & ~pl.col("together"))
    first = steps.select(pl.coalesce("first", "start")).to_series().to_numpy()
    return np.column_stack([np.where(unknown.to_series().to_numpy(), first, begin), end])


def _launched(steps: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """When each rank's device was released from each step's first and last collective: `rank`, `step`, `first`, `last`;
    and whether all hosts began the step `together`, so that their devices had as much to do in it.

    They are the same collectives on all their members: of those that bind ranks and that all recorded members were seen
    in, the first and the last to end.
    """
    met = matched.filter(pl.col("binds") & (pl.col("seen") == pl.col("recorded"))).drop_nulls(["started", "ended"])
    of_groups = [_in_steps(steps, calls) for calls in met.partition_by("group")]
    launched = pl.concat([met.select("rank", "step", release="ended", over="ended").clear(), *of_groups])
    ends = launched.sort("over").group_by("rank", "step").agg(first=pl.first("release"), last=pl.last("release"))
    apart = pl.col("start").max() - pl.col("start").min()
    begun = steps.group_by("step").agg(together=apart <= _TOGETHER * (pl.col("end") - pl.col("start")).median())
    # What was launched later is over later, but for streams of little use.
    return (
        ends.join(begun, on="step", how="left").sort("rank", "step").with_columns(pl.col("last").cum_max().over("rank"))
    )


def _in_steps(steps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One group's collectives, each in the step that its members launched it in: `rank`, `step`, `release`, `over`.

    Of hosts that do not agree on that, as where a trace does not tell the launch, the mean tells, and that steps have
    the same number of collectives if they can.
    """
    own = steps.filter(pl.col("rank").is_in(calls["rank"].unique().implode()))
    base = own["start"].min() or 0  # the mean of times since the epoch would be rounded
    mean = [(pl.col(column) - base).mean() for column in ("start", "end")]
    edges = own.group_by("step").agg(*mean, pl.len()).filter(pl.col("len") == own["rank"].n_unique()).sort("step")
    created, over = (pl.col("created") - base).mean(), pl.col("ended").max().alias("over")
    met = calls.group_by(ONE).agg(created, over, agree=pl.col("step").n_unique() == 1).sort("over", "seq")
    launched, start, end = met["created"].to_numpy(), edges["start"].to_numpy(), edges["end"].to_numpy()
    place = np.searchsorted(start, launched, side="right") - 1
    inside = (place >= 0) & (launched < np.append(end, 0)[place])
    if len(edges) and not met["agree"].all() and len(met) % len(edges) == 0:
        alike = np.arange(len(met)) // (len(met) // len(edges))
        if np.abs(alike - place).max() <= 1:
            place, inside = alike, np.ones(len(met), dtype=np.bool_)
    met, place = met.filter(inside), place[inside]
    numbered = met.select(*ONE, "over", step=edges["step"].gather(place))
    return calls.select(*ONE, "rank", release="ended").join(numbered, on=ONE).select("rank", "step", "release", "over")


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
