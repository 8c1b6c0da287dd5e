"""Distributing slices over lanes, so that a viewer can draw each lane: slices on it nest or are disjoint."""

from __future__ import annotations


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
