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

# So many levels of nested intervals are looked at one by one, which is faster.
_FEW_LEVELS = 8

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
    levels = distinct(depth)
    if len(levels) > _FEW_LEVELS:
        found = _innermost_of_many(start[rows], end[rows], depth, at)
        return np.where(found >= 0, rows[found], -1)
    for level in levels:
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


def _innermost_of_many(start: Times, end: Times, depth: Times, at: Times) -> Times:
    """`innermost` of intervals that come by their start and are nested deep, or cross: then a look at each level would
    take the square. The deepest level that holds a time is searched for by halves of the levels that are left."""
    begin, over, moment = _ranked(start, _until_next(start, end, depth), at)
    level = np.zeros(at.shape, dtype=np.int64)
    for half in reversed(range(int(depth.max()).bit_length())):
        deeper = 2 * level + 1
        level = np.where(_last_around(begin, over, depth >> half, moment, deeper) >= 0, deeper, 2 * level)
    return _last_around(begin, over, depth, moment, level)


def _until_next(start: Times, end: Times, depth: Times) -> Times:
    """Where intervals end, at the latest where the next of the same depth begins; they come by their start."""
    peers = np.argsort(depth, kind="stable")
    ends, following = end[peers], start[peers[1:]]
    ends[:-1] = np.where(depth[peers[1:]] == depth[peers[:-1]], np.minimum(ends[:-1], following), ends[:-1])
    clipped = np.empty_like(ends)
    clipped[peers] = ends
    return clipped


def _ranked(start: Times, end: Times, at: Times) -> tuple[Times, Times, Times]:
    """Small numbers in the place of times: `at` lies in [start, end) if its number is above the one of `start` and at
    most the one of `end`."""
    edges = np.sort(np.concatenate([start, end]))
    return np.searchsorted(edges, start), np.searchsorted(edges, end), np.searchsorted(edges, at, side="right")


def _last_around(begin: Times, over: Times, block: Times, at: Times, wanted: Times) -> Times:
    """Of the intervals of block `wanted` the last to begin before `at`, if one of that block holds it; else -1.

    Args:
        begin, over, at: as `_ranked` makes them; intervals come by their start.
    """
    order = np.argsort(block, kind="stable")
    after = block[order] * (2 * len(begin) + 1)  # blocks come one after the other on one axis
    starts, reach = after + begin[order], np.maximum.accumulate(after + over[order])
    place = wanted * (2 * len(begin) + 1) + at
    last = np.searchsorted(starts, place) - 1
    rows: Times = np.where((last >= 0) & (reach[last] >= place), order[last], -1)
    return rows


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
