"""The steady step of each rank, cut into parts that add up to it."""

from __future__ import annotations

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.parts import RankParts
from distprof.analyze.steady import MS, pairs, steady_steps, times_of_steps
from distprof.result import BreakdownRow, NotObserved, Total
from distprof.trace import intervals
from distprof.trace.tables import Tables


def breakdown(inputs: Inputs) -> tuple[list[BreakdownRow], list[NotObserved]]:
    """One row per rank: from its window where it has one, else what its zones tell."""
    tables, parts = inputs.tables, inputs.parts
    rows, missing = [], []
    without_window = [rank for rank in tables.ranks if not len(parts[rank].steps)]
    for rank in tables.ranks:
        rows.append(
            _from_zones(tables, parts[rank], rank) if rank in without_window else _from_window(parts[rank], rank)
        )
    if without_window:
        reason = "no steady step lies inside a Kineto window of this rank"
        for part in ("compute", "comm_transfer", "other"):
            missing.append(NotObserved(f"breakdown.{part}", without_window, reason))
    for part in ("h2d", "sync_wait", "idle"):
        missing.append(NotObserved(f"breakdown.{part}", None, "no device trace: the ranks trained on the CPU"))
    return rows, missing


def _from_window(parts: RankParts, rank: int) -> BreakdownRow:
    start, end = parts.steps[:, 0], parts.steps[:, 1]
    cut = intervals.assign(start, end, [parts.data, parts.compute, parts.wait, parts.transfer]).mean(axis=0) / MS
    data, compute, wait, transfer, other = (float(value) for value in cut)
    in_flight = float(intervals.covered(parts.collectives, start, end).mean()) / MS
    return BreakdownRow(
        rank=rank,
        basis="window",
        steps_used=len(parts.steps),
        step=float((end - start).mean()) / MS,
        data_wait=data,
        h2d=None,
        compute=compute,
        comm_wait=wait,
        comm_transfer=transfer,
        comm_exposed=wait + transfer,
        comm_overlapped=max(0.0, in_flight - wait - transfer),
        sync_wait=None,
        idle=None,
        other=other,
    )


def _from_zones(tables: Tables, parts: RankParts, rank: int) -> BreakdownRow:
    steps = times_of_steps(tables, rank, steady_steps(tables))
    start, end = steps[:, 0], steps[:, 1]
    known = len(steps) > 0
    cut = intervals.assign(start, end, [parts.data, parts.wait]).mean(axis=0) / MS if known else None
    return BreakdownRow(
        rank=rank,
        basis="zones",
        steps_used=len(steps),
        step=float((end - start).mean()) / MS if known else None,
        data_wait=None if cut is None else float(cut[0]),
        h2d=None,
        compute=None,
        comm_wait=None if cut is None else float(cut[1]),
        comm_transfer=None,
        comm_exposed=None,
        comm_overlapped=None,
        sync_wait=None,
        idle=None,
        other=None,
    )


def totals(inputs: Inputs) -> tuple[list[Total], list[NotObserved]]:
    """Unions over each rank's whole window."""
    tables, parts = inputs.tables, inputs.parts
    rows, missing = [], []
    for rank in tables.ranks:
        events = tables.events.filter(pl.col("rank") == rank)
        if not events.height:
            missing.append(rank)
            rows.append(Total(rank=rank, span=None, compute=None, comm=None, exposed=None))
            continue
        comm = intervals.union(pairs(tables.collectives.filter(pl.col("rank") == rank), "started", "ended"))
        compute = parts[rank].compute
        rows.append(
            Total(
                rank=rank,
                span=float((events["end"].to_numpy().max() - events["start"].to_numpy().min()) / MS),
                compute=intervals.total(compute) / MS,
                comm=intervals.total(comm) / MS,
                exposed=intervals.total(intervals.subtract(comm, compute)) / MS,
            )
        )
    return rows, [NotObserved("totals", missing, "no Kineto window of this rank")] if missing else []
