"""What every analysis gets: the run as tables, and what several of them need, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from distprof.analyze.blocking import blocking_calls
from distprof.analyze.device_parts import DeviceParts, device_parts
from distprof.analyze.own_time import OwnTime, own_time
from distprof.analyze.parts import LOADING, RankParts, rank_parts
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import on_device
from distprof.analyze.waits import RankWaits, bound_steps, match, rank_waits, seen_to_start
from distprof.result import Clock
from distprof.trace.tables import Tables

NO_WINDOW = "no steady step lies inside a Kineto window of this rank"
NO_DEVICE = "no device trace: the ranks trained on the CPU"
NO_WORK = "no Kineto window of this rank holds work of a device"
HOST_UNSEEN = "its windows hold no operators and no calls of the host"
NO_LOADER = "its traces hold no annotation of a torch DataLoader: other loaders are Python to them"


@dataclass(frozen=True, slots=True)
class Recording:
    """What is known of the recording itself, beside its tables.

    Attributes:
        traces: rank -> its Kineto trace, by name.
        trace_bytes: bytes of all Kineto traces on disk, None where there are none.
        failures: rank -> how the launcher saw it fail.
        absent: rank -> why it may be that it left nothing, though its launcher started it.
    """

    traces: Mapping[int, str] = field(default_factory=dict)
    trace_bytes: int | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    absent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the analyses.

    Attributes:
        tables: the run, on one clock as far as `clock` says.
        clock: how far the ranks' times can be compared.
        recording: see `Recording`.
        compared: the collectives, as `waits.match` joined them; of a device's those that windows hold bind.
        matched: the same, but where ranks train on a device nobody binds anybody: their hosts do not tell who waits.
        bound: steps in which it is known who waited for whom.
        waits: rank -> where it was blocked.
        own: each rank's own time by step and zone.
        parts: rank -> what its time consists of.
        blocking: calls in which hosts waited for devices, see `blocking.BLOCKING`.
        devices: rank -> what its devices did in its windows, for ranks of which these tell.
        annotated: the zones are only what torch annotates in traces that others recorded.
    """

    tables: Tables
    clock: Clock
    recording: Recording
    compared: pl.DataFrame
    matched: pl.DataFrame
    bound: set[int]
    waits: dict[int, RankWaits]
    own: OwnTime
    parts: dict[int, RankParts]
    blocking: pl.DataFrame
    devices: dict[int, DeviceParts]
    annotated: bool = False

    def loading_seen(self, rank: int) -> bool:
        """Whether it is known when `rank` was in a loader: of the loaders, torch annotates its own."""
        return not self.annotated or bool(of_rank(self.tables.zones, rank)["kind"].is_in(LOADING).any())


def prepare(tables: Tables, clock: Clock, recording: Recording | None = None) -> Inputs:
    """Compute what several analyses need."""
    comparable = clock.verdict != "unaligned"
    compared = match(tables, comparable=comparable)
    if tables.arrival == "started":
        compared = seen_to_start(compared)
    matched = match(tables, comparable=False) if on_device(tables) else compared
    waits = {rank: rank_waits(tables, matched, rank) for rank in tables.ranks}
    blocking = blocking_calls(tables)
    return Inputs(
        tables=tables,
        clock=clock,
        recording=recording or Recording(),
        compared=compared,
        matched=matched,
        bound=bound_steps(tables, matched),
        waits=waits,
        own=own_time(tables, waits),
        parts={rank: rank_parts(tables, matched, waits[rank], rank) for rank in tables.ranks},
        blocking=blocking,
        devices=device_parts(tables, blocking, compared, comparable=comparable),
    )
