"""The zone timeline: what the threads of a rank were doing, over the whole run.

A zone costs two clock readings and one `array.extend`. Rows wait in an array of integers (a list of
tuples would make the user's garbage collections slower) until the writer thread takes them.
"""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any

from distprof.run.files import Stream

SCHEMA = "distprof.zones.v1"
now = time.monotonic_ns
_ROW = 4


class ZoneRecorder:
    """Collects zones of one rank and appends them to its stream.

    `add` may be called by any thread; each of its steps is atomic under the interpreter's lock.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rows = array("q")
        self._ids: dict[tuple[str, str], int] = {}
        self._new_names: dict[str, tuple[str, str]] = {}
        self._threads = {threading.get_ident(): 0}
        self.training_thread = threading.get_ident()
        self.count = 0
        self._flushing = threading.Lock()

    def zone(self, kind: str, name: str) -> int:
        """The id of a zone, made at its first use."""
        key = (kind, name)
        known = self._ids.get(key)
        if known is None:
            known = self._ids.setdefault(key, len(self._ids))
            self._new_names[str(known)] = key
        return known

    def add(self, zone: int, start: int, end: int) -> None:
        """Record that `zone` lasted from `start` to `end` (monotonic ns) on the calling thread."""
        identity = threading.get_ident()
        thread = self._threads.get(identity)
        if thread is None:
            thread = self._threads.setdefault(identity, len(self._threads))
        self._rows.extend((zone, thread, start, end - start))

    def flush(self) -> None:
        """Append what has come together, and a pair of clock readings, to the stream.

        Raises:
            OSError: the stream cannot be written.
        """
        with self._flushing:
            rows = self._rows
            taken = len(rows) - len(rows) % _ROW
            block: dict[str, Any] = {"anchors": [anchor()], "rows": rows[:taken].tolist()}
            del rows[:taken]
            names, self._new_names = self._new_names, {}
            if names:
                block["names"] = names
            self.count += taken // _ROW
            self._stream.append(block)

    def ns_per_zone(self, tries: int = 1000) -> float:
        """What recording one zone costs in this process, in ns: clock readings and `add`, timed here and now.

        Measured on a recorder without a stream, so that the run's own zones stay as they are.
        """
        probe = ZoneRecorder.__new__(ZoneRecorder)
        probe._rows, probe._threads = array("q"), {threading.get_ident(): 0}
        begin = now()
        for _ in range(tries):
            start = now()
            probe.add(0, start, now())
        return (now() - begin) / tries


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
