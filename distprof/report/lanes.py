"""Distributing slices over lanes, so that a viewer can draw each lane: slices on it nest or are disjoint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, cast

import numpy as np
import polars as pl

from distprof.trace.intervals import Mask, Times, distinct

# Categories of what runs on a device, also as older torch calls them.
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events")
_ANNOTATION = "gpu_user_annotation"
_STREAM = re.compile(r"(stream)? *[0-9]{1,18} *\Z")


class NestingLanes:
    """Lanes whose slices nest or are disjoint. Slices come by start, of equal starts the longest first."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # ends of a lane's open slices, the innermost last
        self._next: list[tuple[int, int]] = []  # a heap of all these ends, with their lanes
        self._room = _Room()

    def place(self, start: int, end: int) -> int:
        """The lane for a slice: the first that it does not cross another one on."""
        while self._next and self._next[0][0] <= start:
            _, lane = heappop(self._next)
            ends = self._open[lane]
            ends.pop()
            self._room.set(lane, ends[-1] if ends else math.inf)
        lane = self._room.first(end)
        if lane == len(self._open):
            self._open.append([])
        self._open[lane].append(end)
        self._room.set(lane, end)
        heappush(self._next, (end, lane))
        return lane


class _Room:
    """Up to when each lane has room, and which is the first that has as much: a tree of maxima, so that this takes no
    look at each lane where there are many. All of a lane that was never used is room."""

    def __init__(self) -> None:
        self._most = [math.inf, math.inf]  # of the lanes below each node; the last half are the lanes themselves

    def set(self, lane: int, until: float) -> None:
        """Tell up to when a lane has room."""
        node = lane + len(self._most) // 2
        self._most[node] = until
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])

    def first(self, until: float) -> int:
        """The first lane that has room up to then."""
        if self._most[1] < until:
            self._grow()
        node = 1
        while node < len(self._most) // 2:
            node *= 2
            node += self._most[node] < until
        return node - len(self._most) // 2

    def _grow(self) -> None:
        lanes = self._most[len(self._most) // 2 :]
        level = lanes + [math.inf] * len(lanes)
        self._most = level
        while len(level) > 1:
            level = [max(pair) for pair in zip(level[::2], level[1::2], strict=True)]
            self._most = level + self._most
        self._most.insert(0, math.inf)


class DisjointLanes:
    """Lanes whose slices are disjoint. Slices come by start."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # heaps: until when a lane is busy, and the lanes that are not
        self._free: list[int] = []

    def place(self, start: int, end: int) -> int:
        """The lane for a slice: the first that is free."""
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        lane = heappop(self._free) if self._free else len(self._busy)
        heappush(self._busy, (end, lane))
        return lane


# Which row of slices one belongs to: what it is, its device, and its thread or stream.
Row = tuple[Literal["host", "device", "annotation"], int, int]


def row_of(cat: object, process: object, thread: object) -> Row | None:
    """The row of a slice as its trace tells its category, process and thread; None where the thread is no number."""
    number = int(thread.removeprefix("stream")) if isinstance(thread, str) and _STREAM.match(thread) else thread
    if not isinstance(number, int):
        return None
    if cat in _DEVICE:
        return ("device", process, number) if isinstance(process, int) else None
    return ("annotation" if cat == _ANNOTATION else "host"), 0, number


@dataclass(frozen=True, slots=True)
class Displaced:
    """The slices of a trace that cross another one of their thread or stream. They are few: host and device are timed
    by different clocks, and a window cuts what it begins in.

    Attributes:
        lanes: row, start and end of a slice -> how many lanes further down it has room.
        starts: when they start, ascending.
    """

    lanes: dict[tuple[Row, int, int], int]
    starts: Times

    def possible(self, start: Times) -> Mask:
        """Which slices may be among them, by their starts."""
        found: Mask = np.isin(start, self.starts)
        return found


def displaced(events: pl.DataFrame, kernels: pl.DataFrame) -> Displaced:
    """Find the slices of one trace that cross others.

    Args:
        events, kernels: its rows of `Tables`, on the rank's own clock.
    """
    kind = pl.when(pl.col("cat") == _ANNOTATION).then(pl.lit("annotation")).otherwise(pl.lit("host"))
    host = events.filter(~pl.col("cat").is_in(_DEVICE)).select("thread", "start", "end", kind=kind, device=0)
    device = kernels.drop_nulls(["device", "stream"]).select(
        "device", "start", "end", thread="stream", kind=pl.lit("device")
    )
    lanes: dict[tuple[Row, int, int], int] = {}
    for table in (host, device):
        for row, own in table.partition_by("kind", "device", "thread", as_dict=True).items():
            ordered = own.sort("start", "end", descending=[False, True])
            starts, ends = ordered["start"].to_numpy(), ordered["end"].to_numpy()
            if _all_nest(starts, ends):
                continue
            for lane, start, end in _crossing(starts.tolist(), ends.tolist()):
                lanes[cast(Row, row), start, end] = lane
    return Displaced(lanes, distinct(np.array([start for _, start, _ in lanes], dtype=np.int64)))


def _all_nest(starts: Times, ends: Times) -> bool:
    """Whether slices nest or are disjoint; they come as `NestingLanes` takes them."""
    if (starts[1:] >= ends[:-1]).all():
        return True  # disjoint, as on most streams
    starts, ends = 2 * starts, 2 * ends + (starts == ends)  # so that none is empty
    index = np.arange(len(starts))
    ended = np.searchsorted(np.sort(ends), starts, side="right")  # before each began
    begun = np.searchsorted(starts, ends, side="left")  # before each ended
    # If they nest, there end before a slice those that had ended when it began, and those that began meanwhile. Of
    # slices that cross, the first of all ends before one of those that began meanwhile.
    place = np.empty_like(index)
    place[np.lexsort((-index, -starts, ends))] = index
    return bool((place == ended + begun - index - 1).all())


def _crossing(starts: list[int], ends: list[int]) -> Iterator[tuple[int, int, int]]:
    """(lane, start, end) of slices that do not nest on the first lane; they come as `NestingLanes` takes them."""
    further = NestingLanes()
    within: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        while within and within[-1] <= start:
            within.pop()
        if not within or end <= within[-1]:
            within.append(end)
        else:
            yield 1 + further.place(start, end), start, end
