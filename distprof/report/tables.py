"""The report's tables as text, for the terminal and the page alike. Durations are milliseconds per steady step."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.report import words
from distprof.report.parts import shown_parts
from distprof.result import Result


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
    return Table(
        caption="DDP buckets, ms per all-reduce",
        headings=["bucket", "bytes", "count", "wait", "transfer", "last rank", "in", *(["model"] if several else [])],
        rows=[
            [
                str(row.bucket),
                words.size(row.bytes),
                str(row.count),
                words.ms(row.wait),
                words.ms(row.transfer),
                words.number(row.last_rank),
                words.percent(row.last_share),
                *([words.name(row.model)] if several else []),
            ]
            for row in rows
        ],
        names=frozenset({7}),
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
    rows = result.clock.ranks
    return Table(
        caption="Clocks against the reference rank's, in us",
        headings=["rank", "offset", "drift ppm", "bound", "error"],
        rows=[
            [
                str(row.rank),
                words.microseconds(row.offset_us),
                words.microseconds(row.drift_ppm),
                words.microseconds(row.bound_us),
                words.microseconds(row.error_us),
            ]
            for row in rows
        ],
        ranks=[row.rank for row in rows],
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


def _caption(what: str, basis: str, steps_used: int) -> str:
    where = "whole run" if basis == "zones" else "Kineto window"
    return f"{what}, ms per step ({where}, {words.count(steps_used, 'steady step')})"
