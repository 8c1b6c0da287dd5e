"""The zone timeline: what the threads of a rank were doing, over the whole run.

A zone costs two clock readings and one `array.extend`. Rows wait in an array of integers (a list of
tuples would make the user's garbage collections slower) until the writer thread takes them.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distprof.run.files import Stream

if TYPE_CHECKING:
    from distprof.capture.device_time import DeviceTimer

SCHEMA = "distprof.zones.v1"
now = time.monotonic_ns
_ROW = 4
_BATCH_ROW = 3
_DEVICE_ROW = 3
_MOST_NAMES = 2000


class ZoneRecorder:
    """Collects zones of one rank and appends them to its stream.

    `add` may be called by any thread; each of its steps is atomic under the interpreter's lock.

    Attributes:
        training_thread: identity of the thread that made it.
        device: times zones on the device, where there is one.
        pulse: called with the time after each zone of the training thread, for what cannot wait for a step boundary.
        count: zones written.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rows = array("q")
        self._batches = array("q")
        self.device: DeviceTimer | None = None
        self.pulse: Callable[[int], None] | None = None
        self._ids: dict[tuple[str, str], int] = {}
        self._new_names: dict[str, tuple[str, str]] = {}
        self._threads = {threading.get_ident(): 0}
        self.training_thread = threading.get_ident()
        self.count = 0
        self._flushing = threading.Lock()
        self._naming = threading.Lock()

    def trains_here(self) -> bool:
        """Whether the calling thread is the one that trains. Until the first step boundary, whoever trains becomes it:
        the rank may have been claimed by a thread that only set things up."""
        identity = threading.get_ident()
        if identity == self.training_thread:
            return True
        if self.pulse is None:
            return False
        self._threads[self.training_thread] = len(self._threads)
        self._threads[identity] = 0
        self.training_thread = identity
        return True

    def zone(self, kind: str, name: str) -> int:
        """The id of a zone, made at its first use. A script that makes up ever new names shares one in the end."""
        key = (kind, name)
        known = self._ids.get(key)
        if known is not None:
            return known
        if len(self._ids) >= _MOST_NAMES and name != "other names":
            return self.zone(kind, "other names")
        with self._naming:
            if key not in self._ids:
                self._ids[key] = len(self._ids)
                self._new_names[str(self._ids[key])] = key
            return self._ids[key]

    def add(self, zone: int, start: int, end: int, *, pulse: bool = True) -> None:
        """Record that `zone` lasted from `start` to `end` (monotonic ns) on the calling thread."""
        identity = threading.get_ident()
        thread = self._threads.get(identity)
        if thread is None:
            thread = self._threads.setdefault(identity, len(self._threads))
        self._rows.extend((zone, thread, start, end - start))
        if pulse and self.pulse is not None and thread == 0:
            self.pulse(end)

    def add_batch(self, moment: int, samples: int, elements: int) -> None:
        """Record that a loader gave a batch."""
        self._batches.extend((moment, samples, elements))

    def flush(self) -> None:
        """Append what has come together, and a pair of clock readings, to the stream.

        Raises:
            OSError: the stream cannot be written.
        """
        with self._flushing:
            block: dict[str, Any] = {"anchors": [anchor()], "rows": _take(self._rows, _ROW)}
            self.count += len(block["rows"]) // _ROW
            if self._batches:
                block["batches"] = _take(self._batches, _BATCH_ROW)
            if self.device is not None and self.device.rows:
                block["device"] = _take(self.device.rows, _DEVICE_ROW)
            with self._naming:
                names, self._new_names = self._new_names, {}
            if names:
                block["names"] = names
            self._stream.append(block)

    def ns_per_zone(self, tries: int = 1000) -> float:
        """What recording one zone costs in this process, in ns: clock readings and `add`, timed here and now.

        Measured on a recorder without a stream, so that the run's own zones stay as they are.
        """
        probe = ZoneRecorder.__new__(ZoneRecorder)
        probe._rows, probe._threads, probe.pulse = array("q"), {threading.get_ident(): 0}, None
        begin = now()
        for _ in range(tries):
            start = now()
            probe.add(0, start, now())
        return (now() - begin) / tries


def _take(rows: array[int], width: int) -> list[int]:
    taken = len(rows) - len(rows) % width
    values = rows[:taken].tolist()
    del rows[:taken]
    return values


def anchor() -> tuple[int, int]:
    """A (monotonic, Unix) pair of clock readings in ns: the closest of three, since a reading may be preempted."""
    best: tuple[int, int, int] | None = None
    for _ in range(3):
        before = now()
        unix = time.time_ns()
        after = now()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]
