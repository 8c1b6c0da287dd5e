"""Arithmetic on sets of time intervals, by sorting and counting: never a Python loop per interval.

A set is an int64 array of shape (n, 2), one half-open interval [start, end) in ns per row. Every function returns sets
in normal form: sorted, disjoint, not touching, none empty, so that equal sets are equal arrays. `union` accepts rows in
any order and overlapping; all other functions expect normal form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def union(*sets: npt.ArrayLike) -> Intervals:
    """Everything that lies in at least one of `sets`, whose rows may overlap and come in any order.

    Rows that end before they start are dropped.
    """
    rows = np.concatenate([EMPTY, *(np.asarray(a, dtype=np.int64).reshape(-1, 2) for a in sets)])
    rows = rows[rows[:, 0] < rows[:, 1]]
    if not len(rows):
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    opens = np.append(True, rows[1:, 0] > reach[:-1])
    closes = np.append(opens[1:], True)
    return np.stack([rows[opens, 0], reach[closes]], axis=1)


def total(a: Intervals) -> int:
    """Length of a set, in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both."""
    return _select(a, b, np.logical_and)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What lies in `a` and not in `b`."""
    return _select(a, b, np.greater)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` that lies in [start, end)."""
    first = np.searchsorted(a[:, 1], start, side="right")
    last = np.searchsorted(a[:, 0], end, side="left")
    return np.clip(a[first:last], start, end) if first < last and start < end else EMPTY


def contains(a: Intervals, times: npt.ArrayLike) -> Mask:
    """For each of `times` whether it lies in `a`."""
    at = np.asarray(times, dtype=np.int64)
    if not len(a):
        return np.zeros(at.shape, dtype=np.bool_)
    before = np.searchsorted(a[:, 0], at, side="right") - 1
    found: Mask = (before >= 0) & (at < a[before, 1])
    return found


def covered(a: Intervals, start: npt.ArrayLike, end: npt.ArrayLike) -> Times:
    """How much of each range [start, end) lies in `a`, in ns; `start` and `end` are scalars or arrays of one shape."""
    lengths: Times = _length_before(a, np.asarray(end, dtype=np.int64)) - _length_before(
        a, np.asarray(start, dtype=np.int64)
    )
    return lengths


def assign(start: npt.ArrayLike, end: npt.ArrayLike, sets: Sequence[Intervals]) -> Times:
    """Cut ranges into pieces that belong to the first set that claims them.

    Args:
        start, end: the ranges [start, end), scalars or arrays of one shape.
        sets: in order of priority.

    Returns:
        Lengths in ns, with the shape of `start` and one more axis at the end: one length per set and, last, the
        rest that no set claims. Along that axis they add up to `end - start`.
    """
    whole = np.asarray(end, dtype=np.int64) - np.asarray(start, dtype=np.int64)
    claimed = [np.zeros_like(whole)]
    taken = EMPTY
    for a in sets:
        taken = union(taken, a) if len(a) else taken
        claimed.append(covered(taken, start, end))
    return np.diff(np.stack([*claimed, whole], axis=-1), axis=-1)


def innermost(start: Times, end: Times, times: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """For each of `times` the innermost of nested intervals that it lies in.

    Args:
        start, end: properly nested intervals in any order; here they are no set, since they overlap.

    Returns:
        Row numbers, -1 where no interval contains the time.
    """
    at = np.asarray(times, dtype=np.int64)
    found = np.full(at.shape, -1, dtype=np.int64)
    rows = np.flatnonzero(start < end)
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    # An interval's depth: how many began before it, less those that were over by then.
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end[rows]), start[rows], side="right")
    for level in distinct(depth):
        peers = rows[depth == level]
        before = np.searchsorted(start[peers], at, side="right") - 1
        inside = (before >= 0) & (at < end[peers[before]])
        found[inside] = peers[before[inside]]
    return found


def distinct(times: Times) -> Times:
    """Each time once, ascending.

    Not `np.unique`: since numpy 2.3 it hashes, and many times that are multiples of one number take their square.
    """
    ordered = np.sort(times)
    first: Times = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return first


def _select(a: Intervals, b: Intervals, wanted: Callable[[Mask, Mask], Mask]) -> Intervals:
    # Between two neighbouring edges nothing changes, so one look at each such piece decides.
    edges = distinct(np.concatenate([a.ravel(), b.ravel()]))
    keep = wanted(contains(a, edges[:-1]), contains(b, edges[:-1]))
    return union(np.stack([edges[:-1], edges[1:]], axis=1)[keep])


def _length_before(a: Intervals, times: Times) -> Times:
    if not len(a):
        return np.zeros(times.shape, dtype=np.int64)
    before = np.searchsorted(a[:, 0], times, side="right")
    lengths = np.append(0, np.cumsum(a[:, 1] - a[:, 0]))
    beyond = np.maximum(0, a[before - 1, 1] - times)
    result: Times = lengths[before] - np.where(before > 0, beyond, 0)
    return result
