"""Where a late rank lost its time, and whom its delay reached by which way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.lateness import against_usual, lower_median
from distprof.analyze.own_time import DEVICE, HOST, OwnTime, Pieces
from distprof.analyze.patterns import Late
from distprof.analyze.replay import Replayed
from distprof.analyze.waits import ONE
from distprof.result import Cause

Floats = npt.NDArray[np.float64]

# Kinds of zones that own time can be lost in. What is lost in distprof's own work is nobody's.
CAUSES: Mapping[str, Cause] = {
    "data_loading": "data_loading",
    "loader_first": "data_loading",
    "loader_start": "data_loading",
    "loader_end": "data_loading",
    "forward": "forward",
    "evaluation": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "checkpoint": "host",
    "gc": "gc",
    "zone": "zone",
    "host": "host",
    "device": "device",
}
# What takes longer with more data. Of a batch, computing in these is in proportion to its elements.
_WORK = ("forward", "backward", "device")
_BY_WORK: tuple[Cause, ...] = (*_WORK, "data_loading", "zone")  # type: ignore[assignment]
_EXPLAINED = 0.4  # of a delay by more elements: work that is not in proportion to them explains less than there is
# Where a batch is at least twice as large, the rest is what a busy machine does, which interrupts long work more often.
_TWICE_AS_LARGE, _EXPLAINED_THEN = 1.0, 0.2
_MOST_SLOTS = 100_000  # of all steps: of more, one slot per step is made
_SOME = 0.2  # of what is lost in the worst place, to be counted as well
_HANDED_ON = 0.5  # of what a rank is late by is gone without the culprit's delay
_GOOD_PART = 0.25
_OFTEN = 0.3  # of the culprit's late steps


def places(own: OwnTime) -> dict[tuple[Cause, str], list[int]]:
    """Zones by what they are a cause of, as places in `own.zones`: each of the user's zones is one by itself."""
    found: dict[tuple[Cause, str], list[int]] = {}
    for zone, (kind, name) in enumerate(own.zones):
        if kind in CAUSES:
            found.setdefault((CAUSES[kind], name if kind == "zone" else ""), []).append(zone)
    return found


@dataclass(frozen=True, slots=True)
class Lost:
    """Where a late rank lost its time.

    Attributes:
        cause: of most of it.
        zone: the name of the zone that most of that was lost in.
        extra: in each step what it lost in all places in which it lost a good part, in ns; shape (S,). The noise of the
            others is not in it.
    """

    cause: Cause
    zone: str | None
    extra: Floats


def where_lost(own: OwnTime, role: list[int], late: Late) -> Lost:
    """The cause that most of the rank's delay has, and the name of the zone that most of that was lost in."""
    average = np.median if late.pattern == "persistent" else np.mean  # what is lost now and then is in different places

    def delays(zones: list[int]) -> Floats:
        of_rank: Floats = against_usual(own.own[:, :, zones].sum(axis=2), [role])[late.index]
        return of_rank

    by_place = {place: delays(zones) for place, zones in places(own).items()}
    most = {place: float(average(extra[late.counted])) for place, extra in by_place.items()}
    cause, _ = place = max(most, key=lambda place: most[place])
    # The mean, since a zone's name may change in the course of the run.
    worst = max(places(own)[place], key=lambda zone: float(np.mean(delays([zone])[late.counted])))
    name = None if own.zones[worst] in (HOST, DEVICE) else own.zones[worst][1]
    worth = _SOME * most[place]
    share = [other for other, extra in most.items() if extra >= worth]
    return Lost(cause, name, np.sum([by_place[other] for other in share], axis=0))


def uneven_work(own: OwnTime, batches: pl.DataFrame, role: list[int], late: Late, lost: Lost) -> bool:
    """Whether the rank is late since its batches, as in BATCHES, have more elements than its peers'."""
    if lost.cause not in _BY_WORK:
        return False
    given = batches.group_by("rank", "step").agg(pl.col("elements").sum(), pl.col("samples").sum())
    sizes = np.full((len(own.ranks), len(own.steps), 2), np.nan)
    places = given.filter(pl.col("rank").is_in(own.ranks) & pl.col("step").is_in(own.steps))
    rows, columns = np.searchsorted(own.ranks, places["rank"]), np.searchsorted(own.steps, places["step"])
    sizes[rows, columns] = places.select("elements", "samples").to_numpy()
    peers = [index for index in role if index != late.index]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = sizes[late.index] / lower_median(sizes[peers])
    known = ratios[late.counted]
    if np.isnan(known).any():
        return False
    more = float(np.median(known, axis=0).max()) - 1
    work = own.of_kind(*(kind for kind, cause in CAUSES.items() if cause in {*_WORK, lost.cause}))
    usual = float(np.median(lower_median(work[peers].astype(np.float64))[late.counted]))
    explained = _EXPLAINED_THEN if more >= _TWICE_AS_LARGE else _EXPLAINED
    return more * usual > explained * float(np.median(lost.extra[late.counted]))


def kept(own: OwnTime, role: list[int], late: Late, extra: Floats) -> Floats:
    """The share of each of the rank's pieces of own time that is left without its extra.

    Args:
        extra: in each step, in ns. It is taken from where the peers spent less: zone by zone, and between the same
            arrivals at collectives.
    """
    mine = own.pieces[late.index]
    slots = 1 + max(int(own.pieces[index].slot.max(initial=0)) for index in role)
    cells = (len(own.steps), slots if slots * len(own.steps) <= _MOST_SLOTS else 1, len(own.zones))
    spent = np.stack([_spent(own.pieces[index], cells) for index in role])
    of_rank = spent[role.index(late.index)]
    peers = np.arange(len(role)) != role.index(late.index)
    counted = (of_rank > 0) & np.array([kind in CAUSES for kind, _ in own.zones])
    more = np.zeros(cells)
    more[counted] = np.maximum(0.0, of_rank[counted] - lower_median(spent[peers][:, counted]))
    taken = more * np.minimum(1.0, extra / np.maximum(more.sum(axis=(1, 2)), 1.0))[:, None, None]
    left = 1.0 - np.divide(taken, of_rank, out=np.zeros(cells), where=of_rank > 0)
    share: Floats = np.where(mine.step < 0, 1.0, left[mine.step, np.minimum(mine.slot, cells[1] - 1), mine.zone])
    return share


def _spent(pieces: Pieces, cells: tuple[int, int, int]) -> Floats:
    """Own time by step, slot and zone, in ns."""
    table = np.zeros(cells)
    inside = pieces.step >= 0
    slot = np.minimum(pieces.slot[inside], cells[1] - 1)
    np.add.at(table, (pieces.step[inside], slot, pieces.zone[inside]), pieces.length[inside])
    return table


def handed_on(replayed: Replayed, change: int, rank: int, delay: float) -> pl.DataFrame:
    """Collectives at which another rank was the last since it had waited for `rank` before.

    They are those that its members would have waited half as long in, or less, without the delay of `rank`, by a good
    part of that.

    Args:
        change: the place of the change of `rank` in the replay.
        delay: of `rank`, in ns.

    Returns:
        `group`, `seq`, `kind`, `step`, `last_rank`.
    """
    arrived = replayed.arrived
    times = replayed.calls.with_columns(before=arrived[:, 0], after=arrived[:, 1 + change])
    with_waits = times.group_by(ONE).agg(
        pl.col("step").min(),
        pl.col("last_rank").sort_by("binds_until").last(),
        before=(pl.col("before").max() - pl.col("before")).sum(),
        after=(pl.col("after").max() - pl.col("after")).sum(),
        others=pl.len() - 1,
    )
    less = pl.col("before") - pl.col("after")
    gone = (less >= _HANDED_ON * pl.col("before")) & (less >= _GOOD_PART * delay * pl.col("others"))
    return with_waits.filter((pl.col("last_rank") != rank) & gone)


def through(handed: pl.DataFrame, steps: list[int]) -> list[int]:
    """Ranks that handed a delay on in a good part of `steps`, ascending; `handed` is `handed_on`'s."""
    often = (
        handed.filter(pl.col("step").is_in(steps))
        .group_by("last_rank")
        .agg(pl.col("step").n_unique())
        .filter(pl.col("step") >= _OFTEN * len(steps))
    )
    return sorted(often["last_rank"].to_list())
