"""Where hosts waited: for other ranks on a CPU, for their device where they train on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from distprof.analyze.device_parts import DeviceParts, launching_threads
from distprof.analyze.inputs import HOST_UNSEEN, NO_DEVICE, NO_WINDOW, NO_WORK, Inputs
from distprof.analyze.parts import RankParts
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import MS, NO_STEP, on_device, pairs, steady_steps, steps_or_windows, times_of_steps
from distprof.result import NotObserved, SyncWait
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

_TOP = 3
_UNRECORDED = "communication that was not recorded"
# One row per wait of a rank: in which kind of wait, from when to when, and for whom.
_WAITS: dict[str, Any] = {
    "kind": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
    "wait": pl.Int64,
    "caller": pl.String,
}


def sync_waits(inputs: Inputs) -> tuple[list[SyncWait] | None, list[NotObserved]]:
    """One row per rank and kind of wait that occurred; None where no rank's waits are known."""
    tables = inputs.tables
    rows: list[SyncWait] = []
    unseen: dict[tuple[str, str], list[int]] = {}
    for rank in tables.ranks:
        device = inputs.devices.get(rank)
        if device is not None:
            why = _why_not_on_device(inputs, rank, device)
            found = () if why else _on_device(inputs, rank, device)
        elif on_device(tables):
            why, found = NO_WORK, ()
        else:
            why, found = _why_not_on_cpu(inputs, rank), _on_cpu(inputs, rank, inputs.parts[rank])
        rows += found
        if why:
            unseen.setdefault(("sync_waits", why), []).append(rank)
    missing = [NotObserved(what, ranks, reason) for (what, reason), ranks in unseen.items()]
    if on_cpu := sorted({row.rank for row in rows if row.device_busy is None}):
        missing += [NotObserved(f"sync_waits.{figure}", on_cpu, NO_DEVICE) for figure in ("device_busy", "device_idle")]
    known = bool(rows) or sum(map(len, unseen.values())) < len(tables.ranks)
    return rows if known else None, missing


def _why_not_on_device(inputs: Inputs, rank: int, device: DeviceParts) -> str | None:
    if not device.host.recorded:
        return HOST_UNSEEN
    _, steps = steps_or_windows(inputs.tables, rank)
    return None if len(steps) else NO_WINDOW


def _why_not_on_cpu(inputs: Inputs, rank: int) -> str | None:
    if not steady_steps(inputs.tables):
        return NO_STEP
    return None if inputs.parts[rank].recorded else inputs.parts[rank].why_not


def _on_device(inputs: Inputs, rank: int, device: DeviceParts) -> Iterator[SyncWait]:
    numbers, steps = steps_or_windows(inputs.tables, rank)
    threads = launching_threads(inputs.tables, rank)
    calls = of_rank(inputs.blocking, rank).filter(pl.col("thread").is_in(threads))
    for kind, waits in _by_kind(calls, steps):
        held = intervals.union(pairs(waits, "start", "end"))
        worked = intervals.intersect(held, device.busy)
        stood = _stood_idle(waits, device.busy)
        yield SyncWait(
            kind=kind,
            rank=rank,
            count=waits["wait"].n_unique(),
            wait=_per_step(held, steps),
            top_callers=_top_callers(waits),
            basis="window",
            steps_used=len(numbers),
            device_busy=_per_step(worked, steps),
            device_idle=_per_step(stood, steps),
        )


def _stood_idle(waits: pl.DataFrame, busy: Intervals) -> Intervals:
    """Where a device stood idle that ran dry while the host waited: until its next work."""
    idle = np.column_stack([busy[:-1, 1], busy[1:, 0]])
    held = intervals.union(pairs(waits, "start", "end"))
    return intervals.union(idle[intervals.contains(held, idle[:, 0])])


def _on_cpu(inputs: Inputs, rank: int, parts: RankParts) -> Iterator[SyncWait]:
    tables = inputs.tables
    numbers = steady_steps(tables)
    steps = times_of_steps(tables, rank, numbers)
    for kind, waits in _by_kind(_collective_waits(tables, rank, parts), steps):
        yield SyncWait(
            kind=kind,
            rank=rank,
            count=waits["wait"].n_unique(),
            wait=_per_step(intervals.union(pairs(waits, "start", "end")), steps),
            top_callers=_top_callers(waits),
            basis="zones" if tables.step_source != "annotation" else "window",
            steps_used=len(numbers),
        )


def _collective_waits(tables: Tables, rank: int, parts: RankParts) -> pl.DataFrame:
    """_WAITS of a rank that trains on the CPU, from where it was blocked on communication."""
    zones = training_zones(tables, rank)
    blocked = intervals.union(parts.wait, parts.transfer)
    in_python = intervals.union(pairs(training_zones(tables, rank, "wait"), "start", "end"))
    # Outside of `Work.wait` DDP's forward waits for its buffers, and the end of backward for the buckets.
    forward = intervals.union(pairs(training_zones(tables, rank, "forward", "evaluation"), "start", "end"))
    at_once = intervals.intersect(blocked, intervals.union(in_python, forward))
    # Of what is no collective, such as receiving, the recordings tell the wait alone.
    unrecorded = intervals.intersect(at_once, parts.unknown)
    at_once = np.concatenate([intervals.subtract(at_once, unrecorded), unrecorded])
    rows = np.concatenate([at_once, intervals.subtract(blocked, intervals.union(at_once))])
    calls = of_rank(tables.collectives, rank).sort("created")
    last = np.searchsorted(calls["created"].to_numpy(), rows[:, 0], side="right") - 1
    created = pl.Series([*calls["kind"], None], dtype=pl.String).gather(np.where(last < 0, len(calls), last))
    outer = zones.filter(~pl.col("kind").is_in(["wait", "own", "step"]))
    around = intervals.innermost(outer["start"].to_numpy(), outer["end"].to_numpy(), rows[:, 0])
    labels = outer.select(pl.when(pl.col("kind") == "zone").then("name").otherwise("kind"))["name"]
    zone = pl.Series([*labels, None], dtype=pl.String).gather(np.where(around < 0, len(outer), around))
    table = pl.DataFrame({"start": rows[:, 0], "end": rows[:, 1], "created": created, "zone": zone}).with_columns(
        created=pl.when(~pl.Series(intervals.contains(unrecorded, rows[:, 0])))
        .then("created")
        .otherwise(pl.lit(_UNRECORDED))
    )
    kind = (
        pl.when(pl.int_range(pl.len()) >= len(at_once))
        .then(pl.lit("end_of_backward"))
        .when(pl.col("created") == "barrier")
        .then(pl.lit("barrier"))
        .otherwise(pl.lit("collective_wait"))
    )
    caller = pl.concat_str("created", pl.concat_str(pl.lit("in "), "zone"), separator=" ", ignore_nulls=True)
    found = table.with_columns(kind=kind, wait=pl.int_range(pl.len()), caller=pl.when(caller != "").then(caller))
    return found.select(pl.col(name).cast(dtype) for name, dtype in _WAITS.items())


def _by_kind(waits: pl.DataFrame, steps: Intervals) -> Iterator[tuple[Any, pl.DataFrame]]:
    """The waits that begin in these steps, kind by kind."""
    inside = waits.filter(intervals.contains(intervals.union(steps), waits["start"].to_numpy()))
    for (kind,), of_kind in inside.partition_by("kind", as_dict=True, maintain_order=True).items():
        yield kind, of_kind


def _per_step(a: Intervals, steps: Intervals) -> float:
    return float(intervals.covered(a, steps[:, 0], steps[:, 1]).mean()) / MS


def _top_callers(waits: pl.DataFrame) -> list[str]:
    """Who waited longest."""
    waited = waits.drop_nulls("caller").group_by("caller").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    return waited.sort("ns", "caller", descending=[True, False])["caller"].head(_TOP).to_list()
