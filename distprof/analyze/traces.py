"""What traces that others recorded can tell, for the sections whose analyses need recordings of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl

from distprof.analyze.communication import by_kind, of_device
from distprof.analyze.data_loading import STALL_SHARE
from distprof.analyze.device_parts import UNBOUND_DEVICE, steps_known
from distprof.analyze.evidence import Evidence, of_traces
from distprof.analyze.findings import findings
from distprof.analyze.inputs import Inputs, Recording, prepare
from distprof.analyze.offers import Judged
from distprof.analyze.pictures import with_pictures
from distprof.analyze.ranks import of_rank
from distprof.analyze.registry import SECTIONS, fill
from distprof.analyze.steady import FEWEST_STEPS, MS, pairs, prefer, steady_steps, times_of_steps
from distprof.analyze.stragglers import judge
from distprof.analyze.trace_parts import NO_ZONES, trace_parts
from distprof.analyze.transfer_models import transfer_models
from distprof.analyze.waits import bound_steps, match
from distprof.analyze.work import work_of
from distprof.clock.compare import undecided_ns
from distprof.result import (
    Clock,
    Communication,
    DataLoading,
    Excluded,
    Finding,
    NotObserved,
    RankCommunication,
    RankLoading,
    Stragglers,
)
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.kinds import SYMMETRIC
from distprof.trace.lanes import NOT_NAMED
from distprof.trace.tables import STEPS, Tables, empty

_KNOWN = (*SYMMETRIC, "broadcast", "reduce", "gather", "scatter")
# Sections that are filled here.
_OF_TRACES = ("stragglers", "communication", "data_loading")
_LEAST_LATE_NS = 20_000  # what rounded times and scheduling explain is no lateness
_WINDOW_ONLY = "traces alone hold a window: what came before, between and after its steps is not known"
_NO_SETTINGS = "traces do not tell how loaders were made"
_SILENT = "its windows show no communication"
_NO_STEPS = "no step was recorded on all ranks"


def analyze_traces(tables: Tables, clock: Clock, recording: Recording) -> dict[str, Any]:
    """All sections by name, as `registry.analyze` makes them.

    What it makes of steps and zones together needs zones of the whole run. So it gets no steps for that, and the
    sections that traces alone fill otherwise are filled here.
    """
    prepared = prepare(replace(tables, steps=empty(STEPS)), clock, recording)
    matched = prepared.compared
    on_cpu = [rank for rank in tables.ranks if rank not in prepared.devices]
    inputs = replace(
        prepared,
        tables=tables,
        annotated=True,
        bound=bound_steps(tables, matched),
        parts=prepared.parts | {rank: trace_parts(tables, matched, rank) for rank in on_cpu},
    )
    sections, unobserved = fill(inputs, [name for name in SECTIONS if name not in _OF_TRACES])
    evidence = of_traces(inputs)
    communication, missing = _communication(inputs)
    stragglers, unjudged = _stragglers(inputs, evidence)
    loading, no_loading = _data_loading(tables)
    sections |= {"communication": communication, "stragglers": stragglers, "data_loading": loading}
    found = findings(inputs, Judged.of(sections))
    # Zeros of what a window cannot show are none.
    excluded = sections["steps"].excluded
    first = excluded.first or None
    beyond = ["export", "out_of_step", *(["first"] if first is None else [])]
    unseen = [NotObserved(f"steps.excluded.{name}", None, _WINDOW_ONLY) for name in beyond]
    alone = {
        "overhead": "not recorded by distprof: what the recording cost is not known",
        "conditions": "traces do not tell them",
    }
    kept = [row for row in unobserved if row.what.split(".")[0] not in alone]
    told = {
        **sections,
        "steps": replace(sections["steps"], excluded=Excluded(first=first, compile=excluded.compile)),
        "conditions": replace(sections["conditions"], loader=None, ddp=None),
        "findings": [*_silence(tables), *found],
        "not_observed": [
            *missing,
            *unjudged,
            *no_loading,
            *(NotObserved(what, None, reason) for what, reason in alone.items()),
            *unseen,
            *_inferred_groups(tables),
            *kept,
        ],
    }
    return with_pictures(inputs, told, evidence)


def _inferred_groups(tables: Tables) -> list[NotObserved]:
    inferred = [group.name for group in tables.groups if group.name.startswith(NOT_NAMED)]
    if len(inferred) < 2:
        return []
    reason = (
        f"the traces name no process groups: {len(inferred)} were told apart by the timing of their collectives, and "
        "on a busy machine one may fall into several"
    )
    return [NotObserved("groups", None, reason)]


def _data_loading(tables: Tables) -> tuple[DataLoading, list[NotObserved]]:
    """Time in loaders' annotated `__next__` per step."""
    used = steady_steps(tables)
    rows = []
    for rank in tables.ranks:
        zones = of_rank(tables.zones, rank).filter(pl.col("kind") == "data_loading")
        steps = times_of_steps(tables, rank, used)
        wait = share = None
        if len(zones) and len(steps):
            waited = intervals.covered(intervals.union(pairs(zones, "start", "end")), steps[:, 0], steps[:, 1])
            wait = float(waited.mean()) / MS
            share = float(waited.sum() / np.diff(steps).sum())
        rows.append(RankLoading(rank, wait, share, startup=None, num_workers=None, pin_memory=None))
    shares = [row.share_of_step for row in rows if row.share_of_step is not None]
    verdict: Literal["keeps_up", "stalls", "undecided"] = "undecided"
    if shares and len(used) >= FEWEST_STEPS:
        verdict = "stalls" if max(shares) > STALL_SHARE else "keeps_up"
    section = DataLoading(basis="window", steps_used=len(used), verdict=verdict, per_rank=rows)
    missing = [
        NotObserved("data_loading.per_rank.startup", None, _WINDOW_ONLY),
        *(NotObserved(f"data_loading.per_rank.{name}", None, _NO_SETTINGS) for name in ("num_workers", "pin_memory")),
    ]
    without = [row.rank for row in rows if row.wait is None]
    reason = "the traces have no step, or no annotation of a torch DataLoader in the training thread"
    if without:
        missing += [NotObserved(f"data_loading.per_rank.{name}", without, reason) for name in ("wait", "share_of_step")]
    return section, missing


def _communication(inputs: Inputs) -> tuple[Communication, list[NotObserved]]:
    tables = inputs.tables
    comparable = inputs.clock.verdict != "unaligned"
    calls = inputs.compared if comparable else match(tables)
    device = tables.arrival == "started"
    steady = steady_steps(tables)
    used, known = prefer(steady, steps_known(tables, inputs.devices)) if device else (steady, True)
    rows = [
        of_device(inputs, rank, used, known=known) if device else _of_rank(inputs, calls, rank, used)
        for rank in tables.ranks
    ]
    logical = calls.unique(["group", "seq", "kind"])
    told = calls if comparable else calls.with_columns(binds_until=pl.lit(None, pl.Int64))
    means = {name: _mean([getattr(row, name) for row in rows]) for name in ("total", "exposed", "wait", "transfer")}
    total, exposed = means["total"], means["exposed"]
    recorded = pl.col("members") - _absent(tables, logical)
    found = logical.height > 0 or tables.world_size == 1 or total is not None
    models, no_model = transfer_models(calls, steady) if comparable else ([], [])
    section = Communication(
        basis="window",
        steps_used=len(used),
        collectives=logical.height if found else None,
        matched=logical.filter(pl.col("seen") == pl.col("members")).height if found else None,
        unmatched=logical.filter(pl.col("seen") < recorded).height if found else None,
        unclassified=logical.filter(~pl.col("kind").is_in(_KNOWN)).height if found else None,
        total=total,
        exposed=exposed,
        overlapped=None if total is None or exposed is None else max(0.0, total - exposed),
        wait=means["wait"],
        transfer=means["transfer"],
        per_rank=rows,
        by_kind=by_kind(told, pl.col("step").is_in(steady) if steady else pl.lit(True)),
        buckets=[],
        transfer_models=models,
    )
    missing = [*no_model, *_missing_by_kind(section, comparable=comparable)]
    if not found:
        missing.append(NotObserved("communication", None, _no_communication(tables)))
    elif not used:
        missing += _rows(("total", "exposed", "overlapped", "wait", "transfer"), None, _NO_STEPS)
    else:
        silent = [row.rank for row in rows if row.total is None]
        if silent:
            missing += _rows(("total", "exposed", "overlapped"), silent, _SILENT)
        elif exposed is None:
            missing += _rows(("exposed", "overlapped"), None, NO_ZONES)
        unbound = logical.filter(pl.col("binds_until").is_null() & pl.col("step").is_in(used)).height
        if means["wait"] is None:
            reason = "no collective is known to have bound the ranks, or their clocks cannot be compared"
            reason = UNBOUND_DEVICE if device else reason
            missing += _rows(("wait", "transfer"), None, reason)
        elif unbound:
            reason = (
                f"{unbound} collectives in these steps were not seen on all members, or bind nobody: no wait for them"
            )
            missing.append(NotObserved("communication.wait", None, reason))
    of_buckets = "traces alone do not tell DDP's buckets"
    missing += _rows(("buckets", "gradients"), None, of_buckets)
    return section, missing


def _rows(figures: Sequence[str], ranks: list[int] | None, reason: str) -> list[NotObserved]:
    return [NotObserved(f"communication.{figure}", ranks, reason) for figure in figures]


def _absent(tables: Tables, logical: pl.DataFrame) -> pl.Series:
    """For each collective how many members of its group left no trace."""
    absent = {group.id: len(set(group.members) - set(tables.ranks)) for group in tables.groups}
    return logical["group"].replace_strict(absent, default=0, return_dtype=pl.Int64)


def _of_rank(inputs: Inputs, calls: pl.DataFrame, rank: int, used: list[int]) -> RankCommunication:
    """A rank's communication on a CPU."""
    tables, parts = inputs.tables, inputs.parts[rank]
    steps = times_of_steps(tables, rank, used)
    own, alone = of_rank(calls, rank), tables.world_size == 1

    def per_step(a: Intervals) -> float | None:
        return float(intervals.covered(a, steps[:, 0], steps[:, 1]).mean()) / MS if len(steps) else None

    comparable = inputs.clock.verdict != "unaligned"
    bound = own.filter(pl.col("binds_until").is_not_null())
    waits = intervals.union(
        pairs(bound.with_columns(pl.min_horizontal("binds_until", "ended")), "arrived", "binds_until")
    )
    comm = work_of(tables, rank).comm
    total = per_step(comm) if len(own) or alone else None
    wait = per_step(intervals.intersect(waits, comm)) if alone or (comparable and len(bound)) else None
    return RankCommunication(
        rank=rank,
        total=total,
        exposed=per_step(parts.exposed) if total is not None and parts.recorded else None,
        wait=wait,
        transfer=None if total is None or wait is None else total - wait,
    )


def _missing_by_kind(section: Communication, *, comparable: bool) -> list[NotObserved]:
    unseen = "not all members' windows hold some of these, or it is not known who binds them"
    unseen = unseen if comparable else "the ranks' clocks cannot be compared"
    reasons = {
        "bytes": "the traces do not tell the sizes of some of these, and without them there is no bandwidth",
        "wait": unseen,
        "transfer": f"{unseen}; or their end",
    }
    return [
        NotObserved(f"communication.by_kind.{name}", None, reason)
        for name, reason in reasons.items()
        if any(getattr(row, name) is None for row in section.by_kind)
    ]


def _stragglers(inputs: Inputs, evidence: Evidence) -> tuple[Stragglers, list[NotObserved]]:
    section, missing = judge(evidence)
    if section.verdict == "undecided":
        section = replace(section, why=section.why + _who_came_last(inputs, evidence.matched))
        missing = [*missing, NotObserved("stragglers.ranks", None, section.why)]
    return section, missing


def _who_came_last(inputs: Inputs, matched: pl.DataFrame) -> str:
    """Which rank was clearly the last at most collectives, if one was: a part of a sentence, or nothing."""
    errors = undecided_ns(inputs.clock, device=inputs.tables.arrival == "started" and bool(inputs.clock.devices))
    off = pl.col("rank").replace_strict(errors, default=0, return_dtype=pl.Int64)
    bound = matched.drop_nulls("binds_until").with_columns(off=off).sort("arrived")
    last = bound.group_by("group", "seq", "kind").agg(
        pl.col("rank").last(),
        late=pl.col("arrived").last() - pl.col("arrived").slice(-2, 1).first(),
        error=pl.col("off").slice(-2).sum(),
    )
    late = last.filter(pl.col("late") > pl.col("error") + _LEAST_LATE_NS)
    counts = late["rank"].value_counts().sort("count", "rank")
    if not len(counts) or not late.height < 2 * counts["count"][-1] >= last.height:
        return ""
    rank, count = counts.row(-1)
    beyond = " and the error of the clocks" if any(errors.values()) else ""
    return (
        f"; rank {rank} was the last to arrive at {count} of {last.height} collectives, by more than "
        f"{_LEAST_LATE_NS // 1000} us{beyond}"
    )


def _no_communication(tables: Tables) -> str:
    return f"the job has {tables.world_size} ranks, and no communication was found in its traces"


def _silence(tables: Tables) -> list[Finding]:
    """A job of several ranks that seems not to communicate: its traces lack it, or its kernels are not known."""
    if tables.world_size == 1 or len(tables.collectives):
        return []
    return [
        Finding(
            id="communication.none",
            severity="warning",
            ranks=tables.ranks,
            steps=[],
            observation=_no_communication(tables),
            hypothesis="the device was not recorded, or its kernels of communication have names that are not known",
            next_check="record CUDA activities, or name the kernels with --collective REGEX[=KIND]",
            evidence={"run.world_size": float(tables.world_size)},
        )
    ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
