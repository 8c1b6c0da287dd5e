"""How calls nest: the time each has to itself, and the outermost of a name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.nesting import Nesting, nest
from distprof.trace import intervals

Call = tuple[int, int, int, int]  # thread, start, end, name


def of(calls: Sequence[Call]) -> Nesting:
    thread, start, end, name = np.array(calls, dtype=np.int64).reshape(-1, 4).T
    return nest(thread, start, end, name)


def test_what_is_directly_inside_is_not_its_own() -> None:
    found = of([(1, 0, 100, 0), (1, 10, 40, 1), (1, 20, 30, 2), (1, 50, 60, 1)])
    assert found.own.tolist() == [60, 20, 10, 10]
    assert found.outermost.all()


def test_the_order_does_not_matter() -> None:
    found = of([(1, 20, 30, 2), (1, 50, 60, 1), (1, 0, 100, 0), (1, 10, 40, 1)])
    assert found.own.tolist() == [10, 10, 60, 20]


def test_threads_do_not_nest_in_each_other() -> None:
    found = of([(1, 0, 100, 0), (2, 10, 40, 0), (9, 0, 100, 0)])
    assert found.own.tolist() == [100, 30, 100]
    assert found.outermost.all()


def test_of_calls_of_one_name_the_outermost_counts() -> None:
    # 0 calls 1, which calls 0 again; then 0 once more, beside.
    found = of([(1, 0, 100, 0), (1, 10, 90, 1), (1, 20, 80, 0), (1, 100, 110, 0)])
    assert found.outermost.tolist() == [True, True, False, True]
    assert found.own.tolist() == [20, 20, 60, 10]


def test_of_two_that_are_equal_one_is_inside() -> None:
    found = of([(1, 0, 10, 0), (1, 0, 10, 1)])
    assert sorted(found.own.tolist()) == [0, 10]


def test_calls_without_duration_have_no_time_and_take_none() -> None:
    found = of([(1, 0, 10, 0), (1, 5, 5, 1), (1, 10, 10, 1)])
    assert found.own.tolist() == [10, 0, 0]


def test_no_calls() -> None:
    assert len(of([]).own) == 0


def test_what_crosses_counts_as_far_as_it_is_inside() -> None:
    found = of([(1, 0, 10, 0), (1, 5, 15, 1)])
    assert found.own.tolist() == [5, 10]


@st.composite
def nested(draw: st.DrawFn) -> list[Call]:
    """Calls as programs make them, on up to three threads."""
    calls: list[Call] = []
    for thread in range(draw(st.integers(1, 3))):
        now, stack = draw(st.integers(0, 50)), []
        for step in draw(st.lists(st.integers(-3, 9), max_size=40)):
            now += abs(step)
            if step < 0 and stack:
                start, name = stack.pop()
                calls.append((thread, start, now, name))
            elif step >= 0:
                stack.append((now, step % 4))
        while stack:
            now += 1
            start, name = stack.pop()
            calls.append((thread, start, now, name))
    return calls


@given(nested())
def test_own_times_of_a_thread_add_up_to_its_union(calls: list[Call]) -> None:
    found = of(calls)
    rows = np.array(calls, dtype=np.int64).reshape(-1, 4)
    assert (found.own >= 0).all()
    for thread in np.unique(rows[:, 0]):
        mine = rows[:, 0] == thread
        assert found.own[mine].sum() == intervals.total(intervals.union(rows[mine, 1:3]))


@given(nested())
def test_outermost_ones_of_a_name_cover_it_without_overlap(calls: list[Call]) -> None:
    found = of(calls)
    rows = np.array(calls, dtype=np.int64).reshape(-1, 4)
    for thread, name in {(call[0], call[3]) for call in calls}:
        mine = (rows[:, 0] == thread) & (rows[:, 3] == name)
        outer = rows[mine & found.outermost, 1:3]
        assert (outer[:, 1] - outer[:, 0]).sum() == intervals.total(intervals.union(rows[mine, 1:3]))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30), st.integers(0, 3)), max_size=30))
def test_whatever_a_broken_trace_holds_nobody_has_more_than_its_length(calls: list[Call]) -> None:
    calls = [(thread, min(a, b), max(a, b), name) for thread, a, b, name in calls]
    found = of(calls)
    lengths = np.array([end - start for _, start, end, _ in calls], dtype=np.int64)
    assert ((found.own >= 0) & (found.own <= lengths)).all()
