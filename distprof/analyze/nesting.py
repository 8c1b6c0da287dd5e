"""Calls that nest on a thread: the time that each has to itself, and which are the outermost of their name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from distprof.trace.intervals import Mask, Times


@dataclass(frozen=True, slots=True)
class Nesting:
    """Of each call, in the order in which they were given.

    Attributes:
        own: its length without the calls inside it, in ns. On each thread they add up to the union of its calls.
        outermost: no call of the same name is around it.
    """

    own: Times
    outermost: Mask


def nest(thread: npt.NDArray[np.int64], start: Times, end: Times, name: npt.NDArray[np.integer]) -> Nesting:
    """Find out how calls nest.

    Calls that cross each other, as in broken traces, count as far as they lie inside the one around them.

    Args:
        thread, start, end: of each call, in any order; `start` and `end` in ns.
        name: numbers, from 0.
    """
    length = end - start
    own, outermost = np.zeros(len(start), dtype=np.int64), np.ones(len(start), dtype=np.bool_)
    rows = np.flatnonzero(length > 0)
    if not len(rows):
        return Nesting(own, outermost)
    begin = _apart(thread[rows], start[rows], end[rows])
    rows, begin = _in_order(rows, begin, length)
    over = begin + length[rows]
    ends = np.sort(over)
    # How many were over when a call began: the others before it were not, and so are around it.
    ended = np.searchsorted(ends, begin, side="right")
    parent = _parents(np.arange(len(rows)) - ended)
    inside = parent >= 0
    around = parent[inside]
    within = np.maximum(0, np.minimum(over[inside], over[around]) - begin[inside])
    children = np.bincount(around, weights=within, minlength=len(rows))
    own[rows] = np.maximum(0, length[rows] - np.rint(children).astype(np.int64))
    outermost[rows] = _outermost(name[rows], ended, np.searchsorted(ends, over))
    return Nesting(own, outermost)


def _apart(thread: npt.NDArray[np.int64], start: Times, end: Times) -> Times:
    """Starts on one time axis on which each thread comes after the one before."""
    threads, number = np.unique(thread, return_inverse=True)
    first = np.full(len(threads), np.iinfo(np.int64).max)
    last = np.full(len(threads), np.iinfo(np.int64).min)
    np.minimum.at(first, number, start)
    np.maximum.at(last, number, end)
    offset = np.cumsum(last - first) - (last - first)
    apart: Times = start - (first - offset)[number]
    return apart


def _in_order(rows: npt.NDArray[np.int64], begin: Times, length: Times) -> tuple[npt.NDArray[np.int64], Times]:
    """By start; of those that start together the longest first."""
    order = np.lexsort((-length[rows], begin))
    return rows[order], begin[order]


def _parents(depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place of the call directly around each, -1 without one: the last one before it that is a level higher."""
    parent = np.full(len(depth), -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])
    for above, level in pairwise(levels):
        parent[level] = above[np.searchsorted(above, level) - 1]
    return parent


def _outermost(name: npt.NDArray[np.integer], ended: Times, end: Times) -> Mask:
    """Which begin when all before them of their name are over; times are numbers of calls that were over by then."""
    order = np.argsort(name, kind="stable")
    base = name[order].astype(np.int64) * (len(name) + 1)
    reach = np.maximum.accumulate(base + end[order])
    found = np.empty(len(name), dtype=np.bool_)
    found[order] = np.append(True, reach[:-1] < (base + ended[order])[1:])
    return found
