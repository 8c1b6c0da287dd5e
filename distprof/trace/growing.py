"""Columns that grow while a trace is read."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from distprof.trace.intervals import Mask


class Texts:
    """Texts as numbers: there are few, and each of them comes many times."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def numbers(self, texts: list[str]) -> npt.NDArray[np.uint32]:
        """The number of each text."""
        return np.frombuffer(array("I", map(self._numbers.__getitem__, texts)), dtype=np.uint32)

    def __contains__(self, text: str) -> bool:
        return text in self._numbers

    def __iter__(self) -> Iterator[str]:
        """The texts in the order of their numbers."""
        return iter(self._numbers)


class GrowingColumn:
    """An array that grows. It lies in one piece, so that all of it is given back to the system at once."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: npt.NDArray[Any] = np.empty(1 << 12, dtype)
        self._length = 0

    @property
    def values(self) -> npt.NDArray[Any]:
        """What has been added."""
        return self._room[: self._length]

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        length = self._length + len(values)
        if length > len(self._room):
            room = np.empty(max(length, 2 * len(self._room)), self._room.dtype)  # what is not used takes no memory
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : length] = values
        self._length = length

    def keep(self, kept: Mask) -> None:
        """Keep only some of them."""
        self._room = self.values[kept]
        self._length = len(self._room)
