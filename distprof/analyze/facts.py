"""What the ranks said about themselves: who was there, under which conditions, in which windows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.steady import steps_in_windows
from distprof.result import Conditions, NotObserved, RankRow, Window
from distprof.trace.tables import Tables


def ranks(inputs: Inputs) -> tuple[list[RankRow], list[NotObserved]]:
    """One row for each rank of the world, and what went wrong in each."""
    tables, recording = inputs.tables, inputs.recording
    rows = [
        _row(rank, tables, recording.traces.get(rank), recording.failures.get(rank))
        for rank in range(tables.world_size)
    ]
    missing = [row.rank for row in rows if row.status == "missing"]
    notes = [NotObserved("ranks", missing, "they left nothing in the run directory")] if missing else []
    for rank, facts in sorted(tables.facts.items()):
        notes += [NotObserved("recording", [rank], text) for text in facts.get("problems", ())]
        for window in facts.get("windows", ()):
            if window["reason"]:
                notes.append(NotObserved(f"windows[{window['index']}]", [rank], window["reason"]))
    without = [rank for rank, facts in sorted(tables.facts.items()) if facts.get("requested") and not facts["windows"]]
    if without:
        reason = "the Kineto window never opened: the training ended before the schedule's first window"
        notes.append(NotObserved("windows", without, reason))
    return rows, notes


def _row(rank: int, tables: Tables, trace: str | None, failure: str | None) -> RankRow:
    facts = tables.facts.get(rank)
    if facts is None:
        return RankRow(rank=rank, host=None, device=None, status="missing", reason=failure or "it left no recording")
    ended = facts["status"] == "finished"
    exception = (facts.get("exit") or {}).get("exception")
    status: Literal["complete", "partial"] = "complete" if ended else "partial"
    reason = failure or exception or (None if ended else "it was cut off: its last records may be missing")
    return RankRow(
        rank=rank,
        host=facts["host"],
        device=facts["device"],
        status=status,
        reason=reason,
        trace=trace,
        requested=facts["requested"],
        observed=["cpu"] if tables.events.filter(pl.col("rank") == rank).height else [],
    )


def windows(inputs: Inputs) -> tuple[list[Window], list[NotObserved]]:
    """Windows, and the steady steps that lie inside each on all ranks that recorded it."""
    tables = inputs.tables
    rows = []
    for (index,), of_index in tables.windows.partition_by("window", as_dict=True, maintain_order=True).items():
        recorded = sorted(of_index["rank"].to_list())
        steps = set.intersection(*(set(steps_in_windows(tables, rank)) for rank in recorded))
        rows.append(Window(index=int(index), ranks=recorded, steps=sorted(steps)))
    return sorted(rows, key=lambda row: row.index), []


def conditions(inputs: Inputs) -> tuple[Conditions, list[NotObserved]]:
    """Loaders' and models' settings; ranks with the same ones share a row."""
    section = Conditions(loader=_by_setting(inputs.tables, "loaders"), ddp=_by_setting(inputs.tables, "ddp"))
    reason = "not recorded by this version"
    names = ("batch_shapes", "samples_per_step", "autocast", "mode", "compiled")
    return section, [NotObserved(f"conditions.{name}", None, reason) for name in names]


def _by_setting(tables: Tables, key: str) -> list[dict[str, Any]]:
    shared: dict[str, list[int]] = {}
    for rank, facts in sorted(tables.facts.items()):
        for row in _rows(facts, key):
            shared.setdefault(json.dumps(row, sort_keys=True), []).append(rank)
    return [{**json.loads(row), "ranks": sharing} for row, sharing in shared.items()]


def _rows(facts: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    return ({name: value for name, value in row.items() if name != "params"} for row in facts.get(key, ()))
