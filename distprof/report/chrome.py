"""A timeline as a Chrome trace: JSON that Perfetto and chrome://tracing read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from distprof.report.drawing import Lane, Slice
from distprof.report.window_events import Batch

# Chrome's names of colours, so that waiting and transfer stay apart also where names do not fit.
_COLOURS = {"wait": "thread_state_iowait", "transfer": "thread_state_running"}
_ARROW = {"name": "last arrival", "cat": "last_arrival"}
_TOGETHER = 10_000  # events that are encoded at a time


class ChromeWriter:
    """Writes strict JSON; times are microseconds, with three decimals, since `baseTimeNanoseconds`."""

    def __init__(self, file: BinaryIO, base: int) -> None:
        """Begin.

        Args:
            base: the timeline's beginning, in Unix ns.
        """
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._pending: list[dict[str, Any]] = []
        self._separator = b""
        header = self._encoder.encode({"displayTimeUnit": "ms", "baseTimeNanoseconds": base})
        file.write(header[:-1] + b',"traceEvents":[')

    def process(self, process: int, name: str, order: int) -> None:
        """See `Writer`."""
        self._metadata("process_name", process, 0, {"name": name})
        self._metadata("process_sort_index", process, 0, {"sort_index": order})

    def lane(self, lane: Lane, name: str, order: int) -> None:
        """See `Writer`."""
        self._metadata("thread_name", lane.process, lane.number, {"name": name})
        self._metadata("thread_sort_index", lane.process, lane.number, {"sort_index": order})

    def slice(self, drawn: Slice) -> None:
        """See `Writer`."""
        lane, name, category, start, end, args, colour, leaving, arriving = drawn
        event = {"ph": "X", "name": name, "cat": category, **_place(lane, start), "dur": (end - start) / 1e3}
        if colour:
            event["cname"] = _COLOURS[colour]
        self._emit({**event, "args": args})
        for arrow in leaving:
            self._emit({**_ARROW, "ph": "s", "id": arrow, **_place(lane, start)})
        for arrow in arriving:
            # Viewers drop an arrow that does not end after its beginning, be it by a nanosecond.
            self._emit({**_ARROW, "ph": "f", "bp": "e", "id": arrow, **_place(lane, start + 1)})

    def instant(self, lane: Lane, name: str, category: str, at: int) -> None:
        """See `Writer`."""
        self._emit({"ph": "i", "s": "t", "name": name, "cat": category, **_place(lane, at)})

    def counter(self, process: int, name: str, unit: str, values: Sequence[tuple[int, float]]) -> None:
        """See `Writer`."""
        of = {"ph": "C", "name": name, "pid": process}
        self._flush()
        self._write(self._encoder.encode([{**of, "ts": at / 1e3, "args": {unit: value}} for at, value in values]))

    def recorded(self, batch: Batch) -> None:
        """See `Writer`."""
        events, process = batch.events, batch.process
        places = zip(batch.lanes.tolist(), (batch.start / 1e3).tolist(), (batch.length / 1e3).tolist(), strict=True)
        for event, (lane, start, length) in zip(events, places, strict=True):
            event.pid = process
            event.tid = lane
            event.ts = start
            event.dur = length
        for row in np.flatnonzero(~batch.slices).tolist():
            events[row].dur = msgspec.UNSET
        self._flush()
        self._write(batch.ids.renamed(self._encoder.encode(events)))

    def close(self, about: dict[str, Any]) -> None:
        """See `Writer`."""
        self._flush()
        self._file.write(b'\n],"otherData":' + self._encoder.encode(about) + b"}\n")

    def _metadata(self, name: str, process: int, thread: int, args: dict[str, Any]) -> None:
        self._emit({"ph": "M", "name": name, "pid": process, "tid": thread, "args": args})

    def _emit(self, event: dict[str, Any]) -> None:
        self._pending.append(event)
        if len(self._pending) >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._write(self._encoder.encode(self._pending))
            self._pending.clear()

    def _write(self, array: bytes) -> None:
        """Write a JSON array's elements."""
        if len(array) > 2:
            self._file.write(self._separator + b"\n" + array[1:-1])
            self._separator = b","


def _place(lane: Lane, at: int) -> dict[str, Any]:
    return {"pid": lane.process, "tid": lane.number, "ts": at / 1e3}
