"""Interval arithmetic against figures made by hand and against sets of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from tests.unit.mutants import examples

A = intervals.union([[10, 20], [30, 50]])
B = intervals.union([[15, 35], [40, 42], [50, 60]])

rows = st.lists(st.tuples(st.integers(-30, 30), st.integers(-30, 30)), max_size=12)


def points(a: Any) -> set[int]:
    return {t for start, end in a for t in range(int(start), int(end))}


def check(result: Intervals, expected: set[int]) -> None:
    """The result is the expected set, in normal form."""
    assert points(result) == expected
    assert result.dtype == np.int64
    assert result.shape == (len(result), 2)
    assert (result[:, 0] < result[:, 1]).all()
    assert (result[1:, 0] > result[:-1, 1]).all()


def test_union_joins_what_overlaps_or_touches() -> None:
    assert intervals.union([[30, 40], [5, 10], [8, 20]], [[20, 25], [50, 50], [70, 60]]).tolist() == [[5, 25], [30, 40]]


def test_union_of_nothing() -> None:
    assert intervals.union().shape == (0, 2)
    assert intervals.union([], []).shape == (0, 2)


def test_intersect() -> None:
    assert intervals.intersect(A, B).tolist() == [[15, 20], [30, 35], [40, 42]]


def test_subtract() -> None:
    assert intervals.subtract(A, B).tolist() == [[10, 15], [35, 40], [42, 50]]
    assert intervals.subtract(B, A).tolist() == [[20, 30], [50, 60]]


def test_total() -> None:
    assert intervals.total(A) == 30
    assert intervals.total(intervals.EMPTY) == 0


def test_clip() -> None:
    assert intervals.clip(A, 12, 33).tolist() == [[12, 20], [30, 33]]
    assert intervals.clip(A, 20, 30).tolist() == []
    assert intervals.clip(A, 15, 15).tolist() == []
    assert intervals.clip(A, 0, 100).tolist() == A.tolist()


def test_contains_is_half_open() -> None:
    assert intervals.contains(A, [9, 10, 19, 20, 30, 49, 50]).tolist() == [False, True, True, False, True, True, False]


def test_covered() -> None:
    assert intervals.covered(A, [0, 15, 20, 45], [100, 32, 30, 60]).tolist() == [30, 7, 0, 5]
    assert int(intervals.covered(A, 0, 35)) == 15


def test_of_nothing_the_types_are_the_same() -> None:
    assert intervals.contains(intervals.EMPTY, [1, 2]).dtype == np.bool_
    assert intervals.covered(intervals.EMPTY, [1], [2]).dtype == np.int64
    assert intervals.covered(A, [], np.empty(0, dtype=np.int64)).dtype == np.int64
    assert intervals.covered(A, np.empty(0, dtype=np.int64), []).dtype == np.int64
    assert intervals.assign([], np.empty(0, dtype=np.int64), [A]).dtype == np.int64
    assert intervals.assign(np.empty(0, dtype=np.int64), [], [A]).dtype == np.int64


def test_assign_adds_up_to_the_range() -> None:
    # A step [0, 70): A has 30, B what A leaves of it (20), and 20 are left.
    assert intervals.assign(0, 70, [A, B]).tolist() == [30, 20, 20]
    # Two steps at once: [0, 32) has 10 + 2 of A and 10 of B, [32, 70) 18 of A and 10 of B.
    assert intervals.assign([0, 32], [32, 70], [A, B]).tolist() == [[12, 10, 10], [18, 10, 10]]
    assert intervals.assign(5, 9, []).tolist() == [4]


@pytest.fixture(params=[0, 8])
def few_levels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`innermost` looks at some levels one by one, and else finds them otherwise."""
    monkeypatch.setattr(intervals, "_FEW_LEVELS", request.param)


@pytest.mark.usefixtures("few_levels")
def test_innermost() -> None:
    # row 0 contains row 1 contains row 3; row 2 stands beside; row 4 is a mark without duration.
    start = np.array([0, 10, 60, 20, 25])
    end = np.array([50, 40, 80, 30, 25])
    at = [-1, 0, 10, 20, 25, 30, 40, 50, 60, 79, 80]
    assert intervals.innermost(start, end, at).tolist() == [-1, 0, 1, 3, 3, 1, 0, -1, 2, 2, -1]


@pytest.mark.usefixtures("few_levels")
def test_innermost_of_twins_is_the_later_row() -> None:
    assert intervals.innermost(np.array([0, 0]), np.array([9, 9]), [4]).tolist() == [1]


@pytest.mark.usefixtures("few_levels")
def test_one_that_ends_where_the_next_begins_is_not_around_it() -> None:
    assert intervals.innermost(np.array([0, 10, 20]), np.array([10, 40, 30]), [5, 15, 25, 35]).tolist() == [0, 1, 2, 1]


@pytest.mark.usefixtures("few_levels")
def test_innermost_of_many_levels() -> None:
    """Thirty one in another, twice, of which the second is around a mark and two more beside each other."""
    start = np.concatenate([np.arange(30), np.arange(100, 130), [140, 141, 150]])
    end = np.concatenate([60 - np.arange(30), 200 - np.arange(30), [140, 145, 155]])
    order = np.random.default_rng(0).permutation(63)
    at = np.array([-1, 0, 12, 29, 30, 31, 32, 58, 59, 60, 100, 129, 140, 141, 145, 152, 155, 171, 172, 199, 200])
    rows = [-1, 0, 12, 29, 29, 28, 27, 1, 0, -1, 30, 59, 59, 61, 59, 62, 59, 58, 57, 30, -1]
    found = intervals.innermost(start[order], end[order], at)
    assert [-1 if row < 0 else int(order[row]) for row in found] == rows
    now = 1_790_857_026_123_456_789
    assert intervals.innermost(start[order] + now, end[order] + now, at + now).tolist() == found.tolist()


def test_intervals_that_cross_are_looked_at_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for levels in (0, 8):
        monkeypatch.setattr(intervals, "_FEW_LEVELS", levels)
        found.append(intervals.innermost(np.array([0, 8, 12]), np.array([10, 40, 14]), np.arange(45)).tolist())
    assert found[0] == found[1]


def test_innermost_looks_as_often_as_intervals_are_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[list[int]] = []

    def distinct(depth: Intervals) -> Intervals:
        levels.append(sorted(set(depth.tolist())))
        return np.array(levels[-1])

    monkeypatch.setattr(intervals, "distinct", distinct)
    outer = np.arange(0, 1000, 10)
    start, end = np.concatenate([outer, outer + 3]), np.concatenate([outer + 9, outer + 5])
    assert intervals.innermost(start, end, [14, 16]).tolist() == [101, 1]
    assert levels == [[0, 1]]


def test_nanoseconds_since_1970_stay_exact() -> None:
    now = 1_790_857_026_123_456_789
    a = intervals.union([[now, now + 3]])
    assert intervals.intersect(a, intervals.union([[now + 1, now + 9]])).tolist() == [[now + 1, now + 3]]
    assert intervals.covered(a, now + 2, now + 5) == 1


@given(rows, rows)
@examples(100)
def test_set_algebra(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = intervals.union(a), intervals.union(b)
    check(x, points(a))
    check(intervals.union(a, b), points(a) | points(b))
    check(intervals.intersect(x, y), points(a) & points(b))
    check(intervals.subtract(x, y), points(a) - points(b))
    assert intervals.total(x) == len(points(a))


@given(rows, st.integers(-40, 40), st.integers(0, 50))
@examples(100)
def test_ranges(a: list[tuple[int, int]], start: int, length: int) -> None:
    x, end = intervals.union(a), start + length
    inside = points(a) & set(range(start, end))
    check(intervals.clip(x, start, end), inside)
    assert intervals.covered(x, start, end) == len(inside)
    assert points(a) == {t for t in range(-31, 31) if intervals.contains(x, t)}


@given(st.lists(rows, max_size=4), st.integers(-40, 40), st.integers(0, 50))
@examples(100)
def test_assign_is_first_come_first_served(sets: list[list[tuple[int, int]]], start: int, length: int) -> None:
    left = set(range(start, start + length))
    expected = []
    for a in sets:
        expected.append(len(left & points(a)))
        left -= points(a)
    got = intervals.assign(start, start + length, [intervals.union(a) for a in sets])
    assert got.tolist() == [*expected, len(left)]


@given(st.data())
@examples(100)
def test_innermost_agrees_with_a_search(data: st.DataObject) -> None:
    nested: list[tuple[int, int]] = []

    def grow(start: int, end: int, depth: int) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(start, end), max_size=4, unique=True)))
        for left, right in zip(cuts[::2], cuts[1::2], strict=False):
            nested.append((left, right))
            if depth:
                grow(left, right, depth - 1)

    grow(0, 40, 2)
    order = data.draw(st.permutations(nested))
    start = np.array([a for a, _ in order], dtype=np.int64)
    end = np.array([b for _, b in order], dtype=np.int64)
    found = intervals.innermost(start, end, np.arange(-1, 42))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_FEW_LEVELS", 0)
        assert intervals.innermost(start, end, np.arange(-1, 42)).tolist() == found.tolist()
    for at, row in zip(range(-1, 42), found, strict=True):
        lengths = [b - a for a, b in nested if a <= at < b]
        assert (row == -1) == (not lengths)
        if lengths:
            assert start[row] <= at < end[row]
            assert end[row] - start[row] == min(lengths)


def test_large_sets() -> None:
    count = 200_000
    start = np.arange(count) * 10
    a = intervals.union(np.stack([start, start + 4], axis=1))
    b = intervals.union(np.stack([start + 2, start + 8], axis=1))
    assert intervals.total(intervals.intersect(a, b)) == 2 * count
    assert intervals.assign(0, 10 * count, [a, b]).tolist() == [4 * count, 4 * count, 2 * count]


def test_distinct_times() -> None:
    for times, found in (([], []), ([7], [7]), ([7, 7], [7]), ([3, 1, 3, 2, 1, 1], [1, 2, 3]), ([2, 1], [1, 2])):
        assert intervals.distinct(np.array(times, dtype=np.int64)).tolist() == found


@given(st.lists(st.integers(-(2**62), 2**62)))
@examples(100)
def test_distinct_times_are_in_order_and_each_once(times: list[int]) -> None:
    assert intervals.distinct(np.array(times, dtype=np.int64)).tolist() == sorted(set(times))
