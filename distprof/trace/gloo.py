"""Joining gloo's spans in a Kineto window with the flight recorder's entries: when each collective started and ended.

A span carries neither group nor sequence number. What is known is how gloo works: a process group has its own worker
threads, made when the group is, and they take its collectives in the order of their creation as soon as one of them is
free. So a reading of a window says which threads belong to which group, and which entry a group's first span is; the
others follow in order. Its lag, the time that work would have lain about beside idle workers, is small for the true
reading only. Spans that two plausible readings join differently stay unjoined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Times

SPAN = "gloo:"
# Point-to-point operations run on the calling thread and are not in gloo's flight recorder.
_NOT_QUEUED = r"^gloo:(send|recv)"
# torch gives a group two workers; more are understood where only one group is in use.
_WORKERS = 2
# The clocks behind a span and an entry may differ by so much.
_TOLERANCE_NS = 50_000
# At most so many of a group's collectives are thought to be under way when a window opens.
_PENDING = 64
# So many readings are no reading at all.
_MOST_READINGS = 1000
# A reading is plausible up to so many times the best one's lag, and so much more per span.
_PLAUSIBLE_RATIO = 2
_PLAUSIBLE_NS = 50_000


@dataclass(frozen=True, slots=True)
class _Queue:
    """A group's entries in the order of creation; `first` is the first one created inside the window."""

    rows: Times
    created: Times
    op: npt.NDArray[np.str_]
    first: int


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of some worker threads in the order of their start; `free` is since when their worker had nothing to do."""

    rows: Times
    thread: Times
    start: Times
    free: Times
    op: npt.NDArray[np.str_]

    def of(self, threads: Times) -> _Spans:
        chosen = np.isin(self.thread, threads)
        return _Spans(self.rows[chosen], self.thread[chosen], self.start[chosen], self.free[chosen], self.op[chosen])


@dataclass(frozen=True, slots=True)
class _Reading:
    """Which entry belongs to which span (row numbers of both), and the lag in ns."""

    entries: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    lag: int = 0

    def __add__(self, other: _Reading) -> _Reading:
        return _Reading(self.entries + other.entries, self.spans + other.spans, self.lag + other.lag)


def join_spans(entries: pl.DataFrame, events: pl.DataFrame, start: int, end: int) -> dict[int, int]:
    """Join one rank's spans of one window with its entries.

    Args:
        entries: the rank's ENTRIES in the order of `record`; a column `made` puts its groups into the order in which
            it made them.
        events: the rank's and the window's KINETO_EVENTS.
        start, end: of the window, on the same clock.

    Returns:
        Row of `entries` -> row of `events`. Empty where entries that belong into the window were lost.
    """
    record, created = entries["record"].to_numpy(), entries["created"].to_numpy()
    lost = np.flatnonzero(np.diff(record, prepend=-1) > 1)
    if any(created[row] >= start and (row == 0 or created[row - 1] <= end) for row in lost):
        return {}
    whole_from = int(lost[-1]) if len(lost) and created[lost[-1]] < start else 0
    spans = _queued_spans(events, start)
    queues = _queues(entries, whole_from, start, end)
    if not len(spans.rows) or not queues:
        return {}
    return _agreed(_readings(queues, spans, end))


def _queued_spans(events: pl.DataFrame, start: int) -> _Spans:
    name = pl.col("name")
    spans = (
        events.with_row_index("row")
        .filter((pl.col("cat") == "user_annotation") & name.str.starts_with(SPAN) & ~name.str.contains(_NOT_QUEUED))
        .sort("start")
        .with_columns(free=pl.col("end").shift(1).over("thread").fill_null(start))
    )
    row, thread, begin, free = (spans[column].to_numpy() for column in ("row", "thread", "start", "free"))
    return _Spans(row, thread, begin, free, spans["name"].to_numpy().astype(np.str_))


def _queues(entries: pl.DataFrame, whole_from: int, start: int, end: int) -> list[_Queue]:
    relevant = (
        entries.with_row_index("row")
        .slice(whole_from)
        .filter(~pl.col("p2p") & (pl.col("created") <= end))
        .sort("made", "record")
    )
    queues = []
    for queue in relevant.partition_by("made", maintain_order=True):
        created = queue["created"].to_numpy()
        first = int(np.count_nonzero(created < start))
        op = queue["op"].to_numpy().astype(np.str_)
        queues.append(_Queue(queue["row"].to_numpy(), created, op, first))
    return queues


def _alignments(queue: _Queue, spans: _Spans, end: int) -> list[_Reading]:
    """Plausible readings of one group, if `spans` are all of its spans; the best one first."""
    count = len(spans.rows)
    if not count:
        return [_Reading(lag=_never_taken(queue, 0, end))]
    found: list[_Reading] = []
    # The earlier the first entry, the larger the lag.
    for first in range(queue.first, max(-1, queue.first - _PENDING - 1), -1):
        taken = slice(first, first + count)
        created = queue.created[taken]
        if len(created) < count or (queue.op[taken] != spans.op).any() or (created > spans.start + _TOLERANCE_NS).any():
            continue
        waited = int(np.abs(spans.start - np.maximum(created, spans.free)).sum())
        lag = waited + _never_taken(queue, first + count, end)
        if found and lag > _limit(found[0].lag, count):
            break
        found.append(_Reading(tuple(queue.rows[taken].tolist()), tuple(spans.rows.tolist()), lag))
    return found


def _never_taken(queue: _Queue, done: int, end: int) -> int:
    """Lag of entries that were created inside the window and have no span in it."""
    return int((end - queue.created[max(done, queue.first) :]).sum())


def _limit(best: int, spans: int) -> int:
    """The largest lag that is plausible beside the best one."""
    return _PLAUSIBLE_RATIO * best + _PLAUSIBLE_NS * spans


def _readings(queues: list[_Queue], spans: _Spans, end: int) -> list[_Reading]:
    """Plausible readings of all groups. Groups and their threads were made one after the other, so both have one order:
    each group has the next few threads, or none that was busy in the window."""
    threads = np.unique(spans.thread)
    workers = _WORKERS if len(queues) > 1 else len(threads)

    @cache
    def alignments(group: int, thread: int, count: int) -> list[_Reading]:
        return _alignments(queues[group], spans.of(threads[thread : thread + count]), end)

    @cache
    def least_lag(group: int, thread: int) -> float:
        """Of the groups from `group` on, with the threads from `thread` on."""
        if group == len(queues):
            return 0 if thread == len(threads) else math.inf
        return min(
            (
                alignments(group, thread, count)[0].lag + least_lag(group + 1, thread + count)
                for count in range(min(workers, len(threads) - thread) + 1)
                if alignments(group, thread, count)
            ),
            default=math.inf,
        )

    def divide(group: int, thread: int, before: _Reading, limit: int) -> Iterator[_Reading]:
        if group == len(queues):
            yield before
            return
        for count in range(min(workers, len(threads) - thread) + 1):
            for reading in alignments(group, thread, count):
                so_far = before + reading
                if so_far.lag + least_lag(group + 1, thread + count) <= limit:
                    yield from divide(group + 1, thread + count, so_far, limit)

    best = least_lag(0, 0)
    if math.isinf(best):
        return []
    return list(islice(divide(0, 0, _Reading(), _limit(int(best), len(spans.rows))), _MOST_READINGS))


def _agreed(readings: list[_Reading]) -> dict[int, int]:
    """The pairs that stand in all readings."""
    if not 0 < len(readings) < _MOST_READINGS:
        return {}
    return dict(set.intersection(*(set(zip(r.entries, r.spans, strict=True)) for r in readings)))
