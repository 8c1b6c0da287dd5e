"""Telling our own failures from what the script's signal handlers raise.

A handler runs wherever Python happens to be, also inside our code. What it raises, such as a preemption notice, is the
script's and must reach it.
"""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import Any


def is_the_scripts(error: BaseException) -> bool:
    """Whether it came out of a signal handler that is installed now."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: Any) -> CodeType | None:
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
