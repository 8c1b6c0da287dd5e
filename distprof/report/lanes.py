"""Distributing slices over lanes, so that a viewer can draw each lane: slices on it nest or are disjoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
        self._open: list[list[int]] = []

    def place(self, start: int, end: int) -> int:
        """The lane for a slice: the first that it does not cross another one on."""
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        self._open.append([end])
        return len(self._open) - 1


class DisjointLanes:
    """Lanes whose slices are disjoint. Slices come by start."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def place(self, start: int, end: int) -> int:
        """The lane for a slice: the first that is free."""
        for lane, busy_until in enumerate(self._ends):
            if busy_until <= start:
                self._ends[lane] = end
                return lane
        self._ends.append(end)
        return len(self._ends) - 1


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
