"""The report's tables as text, for the terminal and the page alike. Durations are milliseconds per steady step."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.analyze.listed import some
from distprof.report import words
from distprof.report.parts import shown_parts
from distprof.result import GanttStep, Lateness, Result

_MOST_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Table:
    """A table of cells.

    Attributes:
        names: the columns that hold names and not figures, by index.
        ranks: the rank that each row is about; None where rows are about something else.
    """

    caption: str
    headings: list[str]
    rows: list[list[str]]
    names: frozenset[int] = frozenset()
    ranks: list[int] | None = None


def breakdown(result: Result) -> Table:
    """Where a step goes, rank by rank."""
    rows = result.breakdown
    parts = shown_parts(rows)
    return Table(
        caption=_caption("Parts of a step", rows[0].basis, rows[0].steps_used) if rows else "Parts of a step",
        headings=["rank", "step", *(part.short for part in parts)],
        rows=[[str(row.rank), words.ms(row.step), *(words.ms(part.of(row)) for part in parts)] for row in rows],
        ranks=[row.rank for row in rows],
    )


def device_use(result: Result) -> Table:
    """How busy devices are, and what they stand idle for."""
    rows = result.device_use or []
    return Table(
        caption="Devices, ms per step: busy, or idle for data, other ranks, a synchronisation, a launch, the host",
        headings=["rank", "device", "busy", "idle", "data", "ranks", "sync", "launch", "host", "queue"],
        rows=[
            [
                str(row.rank),
                words.number(row.device),
                words.ms(row.busy),
                words.ms(row.idle),
                words.ms(row.idle_because.data),
                words.ms(row.idle_because.collective),
                words.ms(row.idle_because.sync),
                words.ms(row.idle_because.launched),
                words.ms(row.idle_because.host_slow_to_launch),
                words.number(row.queue_median),
            ]
            for row in rows
        ],
        ranks=[row.rank for row in rows],
    )


def sync_waits(result: Result) -> Table:
    """Where hosts waited, the longest waits first."""
    rows = sorted(result.sync_waits or [], key=lambda row: -(row.wait or 0.0))
    devices = any(row.device_busy is not None for row in rows)
    return Table(
        caption="Waits of the host, ms per step"
        + ("; meanwhile the device was busy, or it ran dry until its next work" if devices else ""),
        headings=["kind", "rank", "count", "wait", *(["busy", "dry"] if devices else []), "longest in"],
        rows=[
            [
                row.kind.replace("_", " "),
                str(row.rank),
                str(row.count),
                words.ms(row.wait),
                *([words.ms(row.device_busy), words.ms(row.device_idle)] if devices else []),
                words.name(next(iter(row.top_callers), words.NULL)),
            ]
            for row in rows
        ],
        names=frozenset({0, 6 if devices else 4}),
    )


def steps(result: Result) -> Table:
    """How long steps take, rank by rank."""
    rows = result.steps.per_rank
    return Table(
        caption="Duration of a step, in ms",
        headings=["rank", "first", "steady steps", "median", "p10", "p90"],
        rows=[
            [
                str(row.rank),
                words.ms(row.first),
                str(row.count),
                words.ms(row.median),
                words.ms(row.p10),
                words.ms(row.p90),
            ]
            for row in rows
        ],
        ranks=[row.rank for row in rows],
    )


def communication(result: Result) -> Table:
    """Communication of a step, rank by rank."""
    part = result.communication
    return Table(
        caption=_caption("Communication", part.basis, part.steps_used),
        headings=["rank", "total", "exposed", "wait", "transfer"],
        rows=[
            [str(row.rank), words.ms(row.total), words.ms(row.exposed), words.ms(row.wait), words.ms(row.transfer)]
            for row in part.per_rank
        ],
        ranks=[row.rank for row in part.per_rank],
    )


def buckets(result: Result) -> Table:
    """DDP's gradient all-reduces; the model is told only where there are several."""
    rows = result.communication.buckets
    several = len({bucket.model for bucket in rows}) > 1
    bandwidth = any(bucket.busbw_gbps is not None for bucket in rows)
    return Table(
        caption="DDP buckets, ms per all-reduce",
        headings=[
            *("bucket", "bytes", "count", "wait", "transfer", "last rank", "in"),
            *(["bus GB/s"] if bandwidth else []),
            *(["model"] if several else []),
        ],
        rows=[
            [
                str(row.bucket),
                words.size(row.bytes),
                str(row.count),
                words.ms(row.wait),
                words.ms(row.transfer),
                words.number(row.last_rank),
                words.percent(row.last_share),
                *([words.ms(row.busbw_gbps)] if bandwidth else []),
                *([words.name(row.model)] if several else []),
            ]
            for row in rows
        ],
        names=frozenset({7 + bandwidth}),
    )


def kinds(result: Result) -> Table:
    """Collectives by kind, group and size."""
    rows = result.communication.by_kind
    bandwidth = any(row.busbw_gbps is not None for row in rows)
    return Table(
        caption="Kinds of collectives, ms per call",
        headings=["kind", "group", "bytes", "calls", "wait", "transfer", *(["bus GB/s"] if bandwidth else [])],
        rows=[
            [
                words.name(row.kind),
                words.group_name(result.groups, row.group),
                words.size(row.bytes),
                str(row.count),
                words.ms(row.wait),
                words.ms(row.transfer),
                *([words.ms(row.busbw_gbps)] if bandwidth else []),
            ]
            for row in rows
        ],
        names=frozenset({0, 1}),
    )


def operators(result: Result) -> Table:
    """Operators by the time that they have to themselves."""
    rows = result.operators or []
    per = "step" if not rows or rows[0].per == "step" else "window"
    return Table(
        caption=f"Operators, ms per {per}",
        headings=["operator", "calls", "self", "inclusive", "spread", "slowest"],
        rows=[
            [
                words.name(row.name),
                words.number(row.calls),
                words.ms(row.self),
                words.ms(row.inclusive),
                words.ms(row.spread),
                words.number(row.slowest_rank),
            ]
            for row in rows
        ],
        names=frozenset({0}),
    )


def kernels(result: Result) -> Table:
    """What devices did, by name."""
    rows = result.kernels or []
    per = "step" if not rows or rows[0].per == "step" else "window"
    return Table(
        caption=f"Kernels and copies, ms per {per}",
        headings=["kernel", "calls", "total", "spread", "slowest"],
        rows=[
            [
                words.name(row.name),
                words.number(row.calls),
                words.ms(row.total),
                words.ms(row.spread),
                words.number(row.slowest_rank),
            ]
            for row in rows
        ],
        names=frozenset({0}),
    )


def memory(result: Result) -> Table:
    """Peaks of memory, rank by rank."""
    rows = result.memory or []
    return Table(
        caption="Memory at its peak",
        headings=["rank", "of", "peak", "reserved", "in"],
        rows=[
            [
                str(row.rank),
                words.name(row.device),
                words.size(row.peak_bytes),
                words.size(row.reserved_bytes),
                words.name(row.zone or words.NULL),
            ]
            for row in rows
        ],
        names=frozenset({1, 4}),
        ranks=[row.rank for row in rows],
    )


def loading(result: Result) -> Table:
    """The input pipeline, rank by rank."""
    part = result.data_loading
    return Table(
        caption=_caption("Waiting for data", part.basis, part.steps_used),
        headings=["rank", "wait", "of step", "start-up", "workers", "pinned"],
        rows=[
            [
                str(row.rank),
                words.ms(row.wait),
                words.percent(row.share_of_step),
                words.ms(row.startup),
                words.number(row.num_workers),
                words.yes_no(row.pin_memory),
            ]
            for row in part.per_rank
        ],
        ranks=[row.rank for row in part.per_rank],
    )


def clocks(result: Result) -> Table:
    """The ranks' clocks, in microseconds."""
    rows = [*result.clock.ranks, *result.clock.devices]
    hosts = len(result.clock.ranks)
    return Table(
        caption="Clocks against the reference rank's, in us",
        headings=["rank", "offset", "drift ppm", "bound", "error"],
        rows=[
            [
                str(row.rank) if place < hosts else f"{row.rank}, device",
                words.microseconds(row.offset_us),
                words.microseconds(row.drift_ppm),
                words.microseconds(row.bound_us),
                words.microseconds(row.error_us),
            ]
            for place, row in enumerate(rows)
        ],
        ranks=[row.rank for row in rows],
    )


def lateness(late: Lateness) -> Table:
    """How late ranks are, the latest first."""
    rows = words.latest(late)
    return Table(
        caption="Lateness, ms per step, the latest rank first",
        headings=["rank", "median", "largest", "in step"],
        rows=[
            [str(row.rank), words.ms(row.median), words.ms(row.largest), words.number(row.largest_step)] for row in rows
        ],
        ranks=[row.rank for row in rows],
    )


def lateness_by_step(late: Lateness) -> Table:
    """The picture of lateness: rows are steps, columns ranks; of many ranks the latest."""
    shown = words.latest(late)[:_MOST_COLUMNS]
    rows = sorted(shown, key=lambda row: row.rank)
    of = "" if len(rows) == len(late.ranks) else f", the latest {len(rows)} of {len(late.ranks)} ranks"
    return Table(
        caption=f"Lateness step by step, in ms{of}",
        headings=["steps", *(f"rank {row.rank}" for row in rows)],
        rows=[
            [_steps(first, last), *(words.ms(row.late[index]) for row in rows)]
            for index, (first, last) in enumerate(zip(late.first_steps, late.last_steps, strict=True))
        ],
    )


def gantt(step: GanttStep) -> Table:
    """What ranks did in a step, bar by bar."""
    return Table(
        caption=words.capital(words.gantt_step(step)) + "; times in ms",
        headings=["rank", "where", "what", "name", "from", "to", "takes"],
        rows=[
            [
                str(bar.rank),
                bar.lane,
                bar.kind,
                words.name(bar.name or words.NULL),
                f"{bar.start:.2f}",
                f"{bar.end:.2f}",
                words.ms(bar.end - bar.start),
            ]
            for bar in step.bars
        ],
        names=frozenset({1, 2, 3}),
        ranks=[bar.rank for bar in step.bars],
    )


def ranks(result: Result) -> Table:
    """The ranks and what they left."""
    rows = result.ranks
    return Table(
        caption="Ranks",
        headings=["rank", "host", "device", "status", "reason", "trace", "requested", "observed"],
        rows=[
            [
                str(row.rank),
                words.name(row.host or words.NULL),
                words.name(row.device or words.NULL),
                row.status,
                row.reason or words.NULL,
                row.trace or words.NULL,
                ", ".join(row.requested) or words.NULL,
                ", ".join(row.observed) or words.NULL,
            ]
            for row in rows
        ],
        names=frozenset(range(1, 8)),
        ranks=[row.rank for row in rows],
    )


def _steps(first: int, last: int) -> str:
    """Neighbouring steps, by the ends alone: traces of others number them as they like."""
    return some(range(first, last + 1)) if last - first < 2 else f"{first}–{last}"


def _caption(what: str, basis: str, steps_used: int) -> str:
    where = "whole run" if basis == "zones" else "Kineto window"
    return f"{what}, ms per step ({where}, {words.count(steps_used, 'steady step')})"
