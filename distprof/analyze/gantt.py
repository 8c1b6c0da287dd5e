"""Some steps across ranks, as bars: what each training thread did, and its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl

from distprof.analyze.evidence import Evidence
from distprof.analyze.lateness import Floats
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import MS, times_of_steps
from distprof.result import Finding, GanttBar, GanttStep
from distprof.trace import intervals
from distprof.trace.tables import Tables

MOST_RANKS = 16
MOST_STEPS = 6
_OF_FINDINGS = 4  # of the steps
_LATEST, _EARLIEST = 4, 2  # of many ranks these are shown beside those that findings name
MOST_BARS = 40  # in a lane
_AS_LATE = 0.5  # a step shows a finding if its rank is late in it by this share of its largest

_Why = Literal["finding", "typical", "late"]


def gantt(evidence: Evidence, delays: Floats, findings: Sequence[Finding]) -> list[GanttStep]:
    """Choose steps and ranks, and draw them: steps in which findings show, a typical one, and the latest ones.

    Args:
        delays: how late each rank was in each step, shape (R, S); ranks and steps are those of `evidence.own`.
        findings: the costliest first.
    """
    steps = evidence.own.steps
    windowed = _in_windows(evidence.tables)
    chosen: dict[int, _Why] = {}
    about: dict[int, set[int]] = {}
    for finding in findings:
        step = _shows(evidence, delays, windowed, finding)
        if step is not None and (step in chosen or len(chosen) < _OF_FINDINGS):
            chosen[step] = "finding"
            about.setdefault(step, set()).update(finding.ranks)
    chosen.setdefault(_typical(evidence, windowed), "typical")
    latest = delays.max(axis=0)
    for index in np.argsort(-latest, kind="stable").tolist():
        if len(chosen) < MOST_STEPS and latest[index] > 0:
            chosen.setdefault(steps[index], "late")
    return [_draw(evidence, delays, step, why=why, about=sorted(about.get(step, ()))) for step, why in chosen.items()]


def _shows(evidence: Evidence, delays: Floats, windowed: list[int], finding: Finding) -> int | None:
    """A step in which the finding's ranks are late: inside a window if there is one, since more is known there."""
    steps = np.array(evidence.own.steps)
    rows = np.isin(evidence.own.ranks, finding.ranks)
    named = np.isin(steps, finding.steps) if finding.steps else np.ones(len(steps), dtype=np.bool_)
    if not rows.any() or not named.any():
        return None
    worst = delays[rows].max(axis=0)
    within = np.isin(steps, windowed) & (worst >= _AS_LATE * worst[named].max())
    return int(steps[np.argmax(np.where(within if within.any() else named, worst, -np.inf))])


def _typical(evidence: Evidence, windowed: list[int]) -> int:
    """The step whose duration is nearest to the median, inside a window if there is one."""
    timed = evidence.tables.steps.filter(pl.col("step").is_in(evidence.own.steps))
    durations = timed.group_by("step").agg((pl.col("end") - pl.col("start")).mean().alias("ns")).sort("step")
    distances = durations.with_columns(distance=(pl.col("ns") - pl.col("ns").median()).abs())
    within = distances.filter(pl.col("step").is_in(windowed))
    return int((within if len(within) else distances).sort("distance", "step")["step"][0])


def _in_windows(tables: Tables) -> list[int]:
    """Steps that lie wholly inside a window on each rank that recorded one."""
    windows = tables.windows.select("rank", opened="start", closed="end")
    inside = tables.steps.join(windows, on="rank").filter(
        (pl.col("start") >= pl.col("opened")) & (pl.col("end") <= pl.col("closed"))
    )
    ranks = inside.group_by("step").agg(pl.col("rank").n_unique())
    return sorted(ranks.filter(pl.col("rank") == windows["rank"].n_unique())["step"])


def _draw(evidence: Evidence, delays: Floats, step: int, *, why: _Why, about: list[int]) -> GanttStep:
    aligned = evidence.clock.verdict != "unaligned"
    ranks = _ranks(evidence, delays, step, about)
    spans = {rank: times_of_steps(evidence.tables, rank, [step])[0] for rank in ranks}
    first = min(int(start) for start, _ in spans.values())
    bars: list[GanttBar] = []
    found = 0
    for rank, (start, end) in spans.items():
        origin = first if aligned else int(start)
        thread, pieces = _thread(evidence, rank, step, (int(start), int(end)))
        collectives = _collectives(evidence, rank, step)
        found += pieces + len(collectives)
        for lane in (thread, collectives):
            longest = sorted(lane, key=lambda bar: bar.start - bar.end)[:MOST_BARS]
            bars += [
                replace(bar, start=round((bar.start - origin) / MS, 4), end=round((bar.end - origin) / MS, 4))
                for bar in sorted(longest, key=lambda bar: (bar.start, bar.end))
            ]
    ends = [int(end) - (first if aligned else int(start)) for start, end in spans.values()]
    return GanttStep(
        step=step,
        why=why,
        about=about,
        duration=max(ends) / MS,
        aligned=aligned,
        ranks=ranks,
        bars=bars,
        left_out=found - len(bars),
    )


def _ranks(evidence: Evidence, delays: Floats, step: int, about: list[int]) -> list[int]:
    """Those that are compared; of many the ones that findings name, the latest, the earliest, and some in between."""
    ranks = evidence.own.ranks
    if len(ranks) <= MOST_RANKS:
        return ranks
    latest_first = np.argsort(-delays[:, evidence.own.steps.index(step)], kind="stable").tolist()
    rows = [*latest_first[:_LATEST], *latest_first[-_EARLIEST:]]
    rows += np.linspace(0, len(ranks) - 1, MOST_RANKS).astype(np.int64).tolist()
    chosen = dict.fromkeys([*(rank for rank in about if rank in ranks)][: MOST_RANKS // 2])
    for row in rows:
        if len(chosen) < MOST_RANKS:
            chosen.setdefault(ranks[row])
    return sorted(chosen)


def _thread(evidence: Evidence, rank: int, step: int, span: tuple[int, int]) -> tuple[list[GanttBar], int]:
    """What a rank did in a span of time: its training thread's innermost zone, or that it was blocked; in ns. Of very
    many pieces only the longest, and how many there are.

    On a device it computes while a kernel does, and is blocked while it communicates and computes nothing.
    """
    tables, waits = evidence.tables, evidence.waits[rank]
    start, end = span
    zones = training_zones(tables, rank).filter(
        ~pl.col("kind").is_in(("wait", "step")) & (pl.col("start") < end) & (pl.col("end") > start)
    )
    blocked, waiting = intervals.clip(waits.blocked, start, end), intervals.clip(waits.waits, start, end)
    computing = intervals.clip(evidence.computing.get(rank, intervals.EMPTY), start, end)
    zone_start, zone_end = zones["start"].to_numpy(), zones["end"].to_numpy()
    edges = np.concatenate(
        [zone_start, zone_end, blocked.ravel(), waiting.ravel(), computing.ravel(), np.array([start, end])]
    )
    cuts = intervals.distinct(np.clip(edges, start, end))
    begin = cuts[:-1]
    told = [("wait", ""), ("transfer", ""), ("compute", ""), ("host", "")]
    if step not in evidence.bound:
        told[:2] = [("communication", "")] * 2
    # What the thread does, by number: its zone, or from -4 on one of `told`.
    does = intervals.innermost(zone_start, zone_end, begin)
    does = np.where(intervals.contains(computing, begin), -2, does)
    does = np.where(intervals.contains(blocked, begin), -3, does)
    does = np.where(intervals.contains(waiting, begin), -4, does)
    changes = np.flatnonzero(np.append(True, np.diff(does) != 0)[: len(does)])
    since, until = begin[changes], np.append(begin[changes[1:]], end)[: len(changes)]
    longest = np.sort(np.argsort(since - until, kind="stable")[:MOST_BARS])
    names = [*zones.select("kind", "name").iter_rows(), *told]
    bars = []
    chosen = (column[longest].tolist() for column in (does[changes], since, until))
    for number, first, last in zip(*chosen, strict=True):
        kind, name = names[number]
        bars.append(GanttBar(rank=rank, lane="thread", kind=kind, name=name, start=first, end=last))
    return bars, len(changes)


def _collectives(evidence: Evidence, rank: int, step: int) -> list[GanttBar]:
    """The rank's collectives of a step, waits and transfers apart, as far as their ends are known; in ns."""
    mine = of_rank(evidence.matched, rank).filter(pl.col("step") == step)
    bars: dict[str, list[GanttBar]] = {"wait": [], "transfer": [], "communication": []}
    for name, arrived, last, ended, size, bucket in mine.select(
        "kind", "arrived", "binds_until", "ended", "bytes", "bucket"
    ).iter_rows():
        spans = (
            {"communication": (arrived, ended)}
            if last is None
            else {"wait": (arrived, last), "transfer": (last, ended)}
        )
        for kind, (at, until) in spans.items():
            if at is not None and until is not None and until > at:
                bars[kind].append(
                    GanttBar(rank, "collectives", kind=kind, name=name, start=at, end=until, bytes=size, bucket=bucket)
                )
    return [bar for of_kind in bars.values() for bar in of_kind]
