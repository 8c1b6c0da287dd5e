"""Unions over each rank's whole window, as other tools define them."""

from __future__ import annotations

from distprof.analyze.inputs import Inputs
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import MS
from distprof.analyze.work import work_of
from distprof.result import NotObserved, Total
from distprof.trace import intervals


def totals(inputs: Inputs) -> tuple[list[Total], list[NotObserved]]:
    """One row per rank; nulls for one without a window."""
    tables = inputs.tables
    rows, missing = [], []
    for rank in tables.ranks:
        events = of_rank(tables.events, rank).select("start", "end")
        if not events.height:
            missing.append(rank)
            rows.append(Total(rank=rank, span=None, compute=None, comm=None, exposed=None))
            continue
        work = work_of(tables, rank)
        rows.append(
            Total(
                rank=rank,
                span=float((events["end"].to_numpy().max() - events["start"].to_numpy().min()) / MS),
                compute=intervals.total(work.compute) / MS,
                comm=intervals.total(work.comm) / MS,
                exposed=intervals.total(intervals.subtract(work.comm, work.compute)) / MS,
            )
        )
    return rows, [NotObserved("totals", missing, "no Kineto window of this rank")] if missing else []
