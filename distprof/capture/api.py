"""What a script may call itself. Where nothing records, each call does nothing."""

from __future__ import annotations

import sys
from contextlib import ContextDecorator
from typing import Any

from distprof.capture.zones import now


def _process() -> Any:
    # Without torch nothing was armed, and `import distprof` must not be what imports it.
    module = sys.modules.get("distprof.capture.process")
    return None if module is None else module.process


class zone(ContextDecorator):
    """A zone of the script's own, as a context manager or a decorator: `with distprof.zone("augment"):`.

    Args:
        name: how the report calls it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._starts: list[int] = []

    def __enter__(self) -> zone:
        self._starts.append(now())
        return self

    def __exit__(self, *_: object) -> None:
        start = self._starts.pop()
        process = _process()
        recorder = process.recorder(training=False) if process is not None else None
        if recorder is not None:
            recorder.add(recorder.zone("zone", str(self.name)), start, now())


def step() -> None:
    """Say that a step is over; from then on this, and nothing else, is the step boundary."""
    process = _process()
    recorder = process.recorder() if process is not None else None
    if recorder is not None:
        moment = now()
        recorder.add(recorder.zone("step", "distprof.step"), moment, moment)
        process.boundary("user")
