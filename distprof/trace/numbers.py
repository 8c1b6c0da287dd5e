"""Numbers as traces write them, in columns: missing, far too large, or in the place of something else."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Times

_INT64 = 2**63
NONE = -(2**62)  # in columns of integers: there is none


def whole(values: list[Any], number: Callable[[Any], object] = lambda value: value) -> Times:
    """Numbers as int64, and `NONE` for what is missing, too large, or none that `number` makes one of."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        numbers = map(number, values)
        fitting = [value if type(value) is int and -_INT64 <= value < _INT64 else NONE for value in numbers]
        return np.array(fitting, dtype=np.int64)


def number_in(thread: object) -> object:
    """A thread's number; some producers write a text with it: `stream 7`."""
    if isinstance(thread, str):
        number = thread.removeprefix("stream").strip()
        return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None
    return thread


def int_or_none(value: Any) -> int | None:
    """An integer of 64 bits; None for anything else."""
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def floats(values: list[int | float | None]) -> npt.NDArray[np.float64]:
    """Numbers as floats, missing ones as NaN."""
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:  # hundreds of digits
        return np.array(
            [np.inf if isinstance(value, int) and value >= _INT64 else value for value in values], np.float64
        )


def nanoseconds(microseconds: npt.NDArray[np.float64]) -> Times:
    """Whole and broken part apart: their product with 1000 would not fit into a float."""
    full = np.floor(microseconds)
    thousandths = np.rint((microseconds - full) * 1000)
    result: Times = full.astype(np.int64) * 1000 + thousandths.astype(np.int64)
    return result


def known(values: Times) -> pl.Series:
    """Integers with nulls for missing ones."""
    series = pl.Series(values)
    missing = values == NONE
    return series.set(pl.Series(missing), None) if missing.any() else series
