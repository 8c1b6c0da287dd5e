"""How long a device worked on a zone: events recorded around it and read later, without a synchronisation.

A zone of a training on a device is host time: the host may be far ahead of the device. Two events on the current
stream tell when the device came to the zone's first and last work. They are read when the device has passed them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_MOST_PENDING = 4096


class DeviceTimer:
    """Times zones on one device. The training thread drives it.

    Args:
        new_event: makes an event with `record()`, `query()` and `elapsed_time(end)` in ms, as `torch.cuda.Event` has.
        may_record: whether an event may be recorded now; in the capture of a graph it may not.

    Attributes:
        rows: (zone, start, device ns) each, flat; start is the zone's on the host's monotonic clock.
        lost: zones whose events were never passed in time.
        failure: what the device answered when an event could not be recorded or read; from then on none is.
    """

    def __init__(self, new_event: Callable[[], Any], may_record: Callable[[], bool]) -> None:
        self._new_event = new_event
        self._may_record = may_record
        self._pool: list[Any] = []
        self._pending: deque[tuple[int, int, Any, Any]] = deque()
        self.rows = array("q")
        self.lost = 0
        self.failure: Exception | None = None

    def mark(self) -> Any | None:
        """An event recorded on the current stream now; None in the capture of a graph."""
        if self.failure is not None:
            return None
        try:
            if not self._may_record():
                return None
            event = self._pool.pop() if self._pool else self._new_event()
            event.record()
        except Exception as error:
            self.failure = error
            return None
        return event

    def zone(self, zone: int, start: int, began: Any | None) -> None:
        """A zone that `began` with this mark is over."""
        ended = self.mark() if began is not None else None
        if began is None or ended is None:
            return
        if len(self._pending) >= _MOST_PENDING:
            self._pending.popleft()
            self.lost += 1
        self._pending.append((zone, start, began, ended))

    def collect(self) -> None:
        """Read the events that the device has passed; never waits for it."""
        if self.failure is not None:
            return
        try:
            while self._pending and self._pending[0][3].query():
                zone, start, began, ended = self._pending.popleft()
                self.rows.extend((zone, start, int(began.elapsed_time(ended) * 1e6)))
                self._pool += (began, ended)
        except Exception as error:
            self.failure = error


def device_timer(device: str) -> DeviceTimer | None:
    """A timer for a device type of torch; None for one whose events cannot be timed."""
    if device == "cpu":
        return None
    module = torch.get_device_module(device)
    event = getattr(module, "Event", None)
    if event is None:
        return None
    capturing = getattr(module, "is_current_stream_capturing", None)
    return DeviceTimer(
        new_event=lambda: event(enable_timing=True), may_record=lambda: capturing is None or not capturing()
    )
