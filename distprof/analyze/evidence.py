"""What stragglers are judged by: own times, waits and collectives, of the whole run or of the Kineto windows."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import polars as pl

from distprof.analyze.exchanges import exchanges
from distprof.analyze.inputs import Inputs
from distprof.analyze.own_time import OwnTime, own_time
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import on_device, steps_in_windows
from distprof.analyze.waits import RankWaits, bound_steps, waits_in
from distprof.analyze.work import work_of
from distprof.result import Basis, Clock
from distprof.trace import intervals
from distprof.trace.annotations import host_annotations
from distprof.trace.intervals import Intervals
from distprof.trace.steps import ANNOTATION
from distprof.trace.tables import ZONES, Tables

# torch's own annotations of collectives and of what zones tell already.
_NO_ZONES = rf"^(?:{ANNOTATION}|nccl:|gloo:|DistributedDataParallel\.forward|Optimizer\.|enumerate\(DataLoader\))"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What stragglers are judged by.

    Attributes:
        basis: where it comes from.
        tables: the run, on one clock as far as `clock` says.
        clock: how far the ranks' times can be compared.
        matched: the collectives, as `waits.match` joined them.
        bound: steps in which it is known who waited for whom.
        waits: rank -> where it was blocked.
        own: each rank's own time by step and zone.
        device: times are those of the devices.
        computing: rank -> where its device computed, if they are.
        unknown: why it is not known when ranks were blocked, if it is not.
        exchanges: `exchanges.exchanges`: ranks that send or receive, in which nobody is known to wait for anybody.
    """

    basis: Basis
    tables: Tables
    clock: Clock
    matched: pl.DataFrame
    bound: Set[int]
    waits: dict[int, RankWaits]
    own: OwnTime
    device: bool = False
    computing: Mapping[int, Intervals] = field(default_factory=dict)
    unknown: str | None = None
    exchanges: Mapping[int, str] = field(default_factory=dict)

    @property
    def calls(self) -> pl.DataFrame:
        """The collectives of the steps that are judged."""
        return self.matched.filter(pl.col("step").is_in(self.own.steps))

    @property
    def step(self) -> float:
        """What a step takes: the median over ranks and steps, in ns."""
        used = self.tables.steps.filter(pl.col("step").is_in(self.own.steps))
        return float((used["end"] - used["start"]).median() or 0)  # type: ignore[arg-type]


def of_run(inputs: Inputs) -> Evidence:
    """By the zones of the whole run, or of ranks that train on a device by the windows, which hold its kernels."""
    if on_device(inputs.tables) and len(inputs.tables.kernels):
        return of_windows(inputs, inputs.tables.zones)
    return Evidence(
        basis="zones",
        tables=inputs.tables,
        clock=inputs.clock,
        matched=inputs.matched,
        bound=inputs.bound,
        waits=inputs.waits,
        own=inputs.own,
        exchanges=exchanges(inputs.tables, inputs.own.steps, inputs.parts),
    )


def of_traces(inputs: Inputs) -> Evidence:
    """By traces that others recorded, in which annotations stand for zones."""
    tables = inputs.tables
    annotated = host_annotations(tables.events).filter(~pl.col("name").str.contains(_NO_ZONES))
    own = pl.col("thread") == pl.col("rank").replace_strict(tables.training_thread, default=None, return_dtype=pl.Int64)
    annotated = annotated.filter(own).select("rank", "name", "start", "end", kind=pl.lit("zone"), thread=pl.lit(0))
    typed = annotated.select(pl.col(column).cast(dtype) for column, dtype in ZONES.items())
    return of_windows(
        inputs, pl.concat([tables.zones, typed]).sort("rank", "start", "end", descending=[False, False, True])
    )


def of_windows(inputs: Inputs, zones: pl.DataFrame) -> Evidence:
    """By what the windows hold. On a device a rank is blocked while it communicates and computes nothing."""
    tables = replace(inputs.tables, zones=zones)
    device = tables.arrival == "started"
    matched = inputs.compared
    blocked: dict[int, Intervals] = {}
    computing = {}
    for rank in tables.ranks:
        work, parts = work_of(tables, rank), inputs.parts[rank]
        blocked[rank] = (
            intervals.subtract(work.comm, work.compute) if device else intervals.union(parts.wait, parts.transfer)
        )
        computing[rank] = work.compute
    waits = {rank: waits_in(of_rank(matched, rank), blocked[rank]) for rank in tables.ranks}
    inside = [set(steps_in_windows(tables, rank)) for rank in tables.ranks]
    steps = sorted(set.intersection(*inside)) if inside else []
    return Evidence(
        basis="window",
        tables=tables,
        clock=inputs.clock,
        matched=matched,
        bound=bound_steps(tables, matched),
        waits=waits,
        own=own_time(tables, waits, steps, computing, matched) if device else own_time(tables, waits, steps),
        device=device,
        computing=computing if device else {},
        unknown=None if device else next((part.why_not for part in inputs.parts.values() if not part.recorded), None),
        exchanges=exchanges(tables, steps, inputs.parts),
    )
