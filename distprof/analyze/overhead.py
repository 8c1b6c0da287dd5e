"""What distprof itself cost, as far as one run can tell."""

from __future__ import annotations

import numpy as np

from distprof.analyze.inputs import Inputs
from distprof.analyze.steady import steady_steps, steps_in_windows, times_of_steps
from distprof.result import NotObserved, Overhead
from distprof.trace.tables import Tables

_HOW = (
    "zones: each rank times the recording of a zone at its end, multiplies by its zones and adds what reading the "
    "flight recorder took; window: median steady step inside over outside, in this run, with its noise"
)


def overhead(inputs: Inputs) -> tuple[Overhead, list[NotObserved]]:
    """Cost of zones, of the window and of its export."""
    tables = inputs.tables
    section = Overhead(
        zones_ms_per_step=_zones_ms_per_step(tables),
        window_ratio=_window_ratio(tables),
        export_s=_export_s(tables),
        trace_bytes=inputs.recording.trace_bytes,
        how=_HOW,
    )
    reasons = {
        "zones_ms_per_step": "no rank lived to time itself, or made a step",
        "window_ratio": "there must be steady steps both inside and outside of a Kineto window",
        "export_s": "no rank closed and exported a Kineto window",
        "trace_bytes": "there is no Kineto trace",
    }
    missing = [
        NotObserved(f"overhead.{figure}", None, reason)
        for figure, reason in reasons.items()
        if getattr(section, figure) is None
    ]
    return section, missing


def _export_s(tables: Tables) -> float | None:
    per_rank = []
    for facts in tables.facts.values():
        exported = [window for window in facts.get("windows", ()) if window["export_s"] is not None]
        if exported:
            per_rank.append(sum((window["stop_s"] or 0.0) + window["export_s"] for window in exported))
    return max(per_rank, default=None)


def _zones_ms_per_step(tables: Tables) -> float | None:
    counts = dict(tables.steps.group_by("rank").len().iter_rows())
    costs = []
    for rank, facts in tables.facts.items():
        cost = facts.get("own_cost") or {}
        if cost.get("ns_per_zone") is not None and counts.get(rank):
            spent_ms = cost["ns_per_zone"] * cost["zones"] / 1e6 + (cost["drain_s"] or 0.0) * 1e3
            costs.append(spent_ms / counts[rank])
    return float(np.mean(costs)) if costs else None


def _window_ratio(tables: Tables) -> float | None:
    steady = set(steady_steps(tables))
    inside, outside = [], []
    for rank in tables.ranks:
        recorded = steps_in_windows(tables, rank)
        if not recorded or steady.issubset(recorded):
            continue  # there is nothing on this rank to compare
        inside.append(np.diff(times_of_steps(tables, rank, recorded)))
        outside.append(np.diff(times_of_steps(tables, rank, sorted(steady.difference(recorded)))))
    if not inside:
        return None
    return float(np.median(np.concatenate(inside)) / np.median(np.concatenate(outside)))
