"""Tables made by hand, for tests of the analyses. Times are ms; tables hold ns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from distprof.analyze.breakdown import breakdown
from distprof.analyze.communication import communication
from distprof.analyze.data_loading import data_loading
from distprof.analyze.inputs import Inputs, Recording, prepare
from distprof.analyze.offers import Judged
from distprof.analyze.operators import operators as operators_of
from distprof.analyze.steps import steps as steps_of
from distprof.analyze.stragglers import stragglers
from distprof.clock.align import align
from distprof.result import Group
from distprof.trace.intervals import Intervals
from distprof.trace.tables import COLLECTIVES, EVENTS, KERNELS, STEPS, WINDOWS, ZONES, Tables

MODEL = "DistributedDataParallel#0"
TRAINING_THREAD = 7  # in events, on every rank


def ns(ms: float) -> int:
    """A time in the tables' unit."""
    return round(ms * 1e6)


def in_ms(a: Intervals) -> list[tuple[float, float]]:
    """Intervals as pairs of ms."""
    return [(start / 1e6, end / 1e6) for start, end in a.tolist()]


@dataclass(frozen=True)
class Zone:
    """A row of ZONES."""

    rank: int
    kind: str
    start: float
    end: float
    name: str = ""
    thread: int = 0


@dataclass(frozen=True)
class Step:
    """A row of STEPS."""

    rank: int
    step: int
    start: float
    end: float
    excluded: str | None = None
    backwards: int = 1


@dataclass(frozen=True)
class Call:
    """A row of COLLECTIVES."""

    rank: int
    seq: int
    created: float
    ended: float | None = None
    started: float | None = None
    kind: str = "all_reduce"
    group: int = 0
    bytes: int | None = 4
    step: int | None = None
    zone: str | None = None
    bucket: int | None = None
    root: int | None = None


@dataclass(frozen=True)
class Operator:
    """An operator in EVENTS, on the training thread and a leaf unless told otherwise."""

    rank: int
    start: float
    end: float
    name: str = "aten::mm"
    thread: int = TRAINING_THREAD
    leaf: bool = True


@dataclass(frozen=True)
class Kernel:
    """A row of KERNELS; the call that launched it took a microsecond unless `blocked` (ms) says otherwise."""

    rank: int
    start: float
    end: float
    name: str = "gemm"
    cat: str = "kernel"
    stream: int = 7
    collective: str | None = None
    launched: float | None = None
    blocked: float = 0.001
    bytes: int | None = None


def tables(
    *,
    ranks: Sequence[int],
    zones: Iterable[Zone] = (),
    steps: Iterable[Step] = (),
    calls: Iterable[Call] = (),
    operators: Iterable[Operator] = (),
    kernels: Iterable[Kernel] = (),
    windows: Iterable[tuple[int, float, float]] = (),
    groups: Sequence[Sequence[int]] | None = None,
    world_size: int | None = None,
    source: str = "optimizer",
    facts: Mapping[int, Mapping[str, Any]] | None = None,
) -> Tables:
    """Tables of `ranks`; group 0 is the whole world unless `groups` says otherwise. Windows are (rank, start, end)."""
    size = len(ranks) if world_size is None else world_size
    members = [list(range(size))] if groups is None else [list(group) for group in groups]

    def table(rows: Iterable[tuple[Any, ...]], schema: dict[str, Any]) -> pl.DataFrame:
        return pl.DataFrame(list(rows), schema=schema, orient="row")

    def maybe(ms: float | None) -> int | None:
        return None if ms is None else ns(ms)

    return Tables(
        ranks=list(ranks),
        world_size=size,
        step_source=source,
        groups=[Group(id=number, name=str(number), desc=None, members=group) for number, group in enumerate(members)],
        zones=table(((z.rank, z.kind, z.name, z.thread, ns(z.start), ns(z.end)) for z in zones), ZONES).sort(
            "rank", "start", "end", descending=[False, False, True]
        ),
        steps=table(((s.rank, s.step, ns(s.start), ns(s.end), s.backwards, s.excluded) for s in steps), STEPS),
        collectives=table(
            (
                (
                    *(c.rank, c.group, c.seq, c.kind, c.bytes, "Float"),
                    *(ns(c.created), maybe(c.started), maybe(c.ended)),
                    *(c.step, c.zone, None if c.bucket is None else MODEL, c.bucket, c.root),
                )
                for c in calls
            ),
            COLLECTIVES,
        ),
        events=table(
            ((o.rank, 0, "cpu_op", o.name, o.thread, ns(o.start), ns(o.end), o.leaf) for o in operators),
            EVENTS,
        ),
        kernels=table(
            (
                (
                    *(k.rank, 0, k.cat, k.name, 0, k.stream, ns(k.start), ns(k.end), k.collective, None),
                    *(maybe(k.launched), None if k.launched is None else ns(k.launched + k.blocked)),
                    *(None if k.launched is None else TRAINING_THREAD, k.bytes),
                )
                for k in kernels
            ),
            KERNELS,
        ),
        windows=table(((rank, 0, ns(start), ns(end)) for rank, start, end in windows), WINDOWS),
        training_thread=dict.fromkeys(ranks, TRAINING_THREAD),
        facts={rank: {"host": "a", "boot_id": "b"} for rank in ranks} if facts is None else {**facts},
    )


def inputs(of: Tables, recording: Recording | None = None) -> Inputs:
    """What the analyses get, the clocks being as the facts say."""
    return prepare(of, align(of)[0], recording)


def judged(of: Inputs) -> Judged:
    """The sections that findings stand on."""
    return Judged(
        steps=steps_of(of)[0],
        breakdown=breakdown(of)[0],
        communication=communication(of)[0],
        stragglers=stragglers(of)[0],
        data_loading=data_loading(of)[0],
        operators=operators_of(of)[0],
    )
