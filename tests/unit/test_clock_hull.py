"""The corridor of lines between points above and points below."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.clock.hull import MOST_DRIFT, Floats, corridor, lower_hull
from tests.unit.mutants import examples

points = st.lists(st.tuples(st.integers(0, 10**9), st.integers(-(10**6), 10**6)), min_size=1, max_size=30)


def columns(of: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    both = np.array(of, dtype=np.float64)
    return both[:, 0], both[:, 1]


@given(points)
@examples(200, always_the_same=True)
def test_the_hull_lies_under_all_points_and_bends_upwards(of: list[tuple[int, int]]) -> None:
    x, y = columns(of)
    corners = lower_hull(x, y)
    assert (np.diff(x[corners]) > 0).all()
    assert (np.interp(x, x[corners], y[corners]) <= y + 1e-6).all()
    slopes = np.diff(y[corners]) / np.diff(x[corners])
    assert (np.diff(slopes) > 0).all()
    assert {x.min(), x.max()} == {x[corners[0]], x[corners[-1]]}


@given(
    points,
    points,
    st.floats(-MOST_DRIFT / 2, MOST_DRIFT / 2),
    st.floats(-1e6, 1e6),
    st.lists(st.floats(0, 1e6), min_size=60, max_size=60),
)
@examples(200, always_the_same=True)
def test_the_true_line_lies_within_and_so_does_the_middle(
    over: list[tuple[int, int]], under: list[tuple[int, int]], drift: float, offset: float, slack: list[float]
) -> None:
    x_over, x_under = columns(over)[0], columns(under)[0]
    y_over = offset + drift * x_over + np.array(slack[: len(over)])
    y_under = offset + drift * x_under - np.array(slack[-len(under) :])
    found = corridor(x_over, y_over + 1e-3, x_under, y_under - 1e-3)
    assert found is not None
    x = np.concatenate([x_over, x_under, np.linspace(-1e9, 2e9, 20)])
    most, least = found.most(x), found.least(x)
    assert (least <= offset + drift * x + 1e-3).all()
    assert (offset + drift * x <= most + 1e-3).all()
    narrow = found.narrowest(1e9)
    inside = (x >= 0) & (x <= 1e9)
    at_narrow = float((found.most(np.array([narrow])) - found.least(np.array([narrow])))[0])
    assert at_narrow <= (most - least)[inside].min() + 1e-3
    height, slope = found.middle(narrow)
    assert height == pytest.approx(float((found.most(np.array([narrow])) + found.least(np.array([narrow])))[0]) / 2)
    line = height + slope * (x - narrow)
    assert (line <= most + 1e-2).all()
    assert (line >= least - 1e-2).all()


def test_a_corridor_by_hand() -> None:
    """Points 100 above at 0 and at 1e6, points at 0 in the middle: through the gaps go slopes of up to 100 in 5e5."""
    found = corridor(np.array([0.0, 1e6]), np.array([100.0, 100.0]), np.array([5e5]), np.array([0.0]))
    assert found is not None
    x = np.array([0.0, 5e5, 1e6, 2e6])
    assert found.most(x).tolist() == pytest.approx([100, 100, 100, 300])
    assert found.least(x).tolist() == pytest.approx([-100, 0, -100, -300])
    assert found.narrowest(1e6) == 5e5
    assert found.middle(5e5) == pytest.approx((50, 0))


def test_no_line_fits_points_that_contradict_each_other() -> None:
    x = np.array([0.0, 1e9])
    assert corridor(x, np.array([10.0, 10.0]), x, np.array([0.0, 20.0])) is None
    steep = np.array([0.0, 3e6])  # 3 ms in a second: no clock drifts so much
    assert corridor(x, steep + 10, x, steep - 10) is None


def test_without_points_on_a_side_that_side_is_open() -> None:
    none = np.empty(0)
    found = corridor(np.array([5.0]), np.array([7.0]), none, none)
    assert found is not None
    x = np.array([5.0, 1005.0])
    assert found.most(x).tolist() == pytest.approx([7, 8])
    assert found.least(x).tolist() == [-np.inf, -np.inf]


def test_one_line_that_touches_all_points_is_a_corridor() -> None:
    x, y = np.array([0.0, 1e6]), np.array([0.0, 100.0])
    found = corridor(x, y, x, y)
    assert found is not None
    at = np.array([-1e6, 0.0, 5e5, 3e6])
    assert found.most(at).tolist() == found.least(at).tolist() == pytest.approx([-100, 0, 50, 300])


def test_points_that_no_line_reaches_bend_no_wall() -> None:
    """A line over the point at 7e5 passes the one at 5e5 with a slope of -100 in 2e5 at least: at 0 it is at 350."""
    x, y = np.array([0.0, 5e5, 1e6]), np.array([1000.0, 100.0, 100.0])
    found = corridor(x, y, np.array([7e5]), np.array([0.0]))
    assert found is not None
    assert found.most(np.array([0.0, 5e5, 1e6])).tolist() == pytest.approx([350, 100, 100])
    mirrored = corridor(1e6 - x, y, np.array([3e5]), np.array([0.0]))
    assert mirrored is not None
    assert mirrored.most(np.array([0.0, 5e5, 1e6])).tolist() == pytest.approx([100, 100, 350])


def test_the_narrowest_place_is_sought_where_the_clock_was_read() -> None:
    found = corridor(np.array([-1e6, 2e6]), np.array([1.0, 2.0]), np.array([-1e6, 2e6]), np.array([0.0, 0.0]))
    assert found is not None
    assert found.narrowest(1e6) == 0
    found = corridor(np.array([-1e6, 2e6]), np.array([2.0, 1.0]), np.array([-1e6, 2e6]), np.array([0.0, 0.0]))
    assert found is not None
    assert found.narrowest(1e6) == 1e6


def test_of_points_at_one_moment_the_lowest_counts() -> None:
    x, y = np.array([1.0, 0, 1, 0, 1]), np.array([5.0, 2, 0, 0, 3])
    assert lower_hull(x, y).tolist() == [3, 2]


def test_points_a_nanosecond_apart() -> None:
    found = corridor(np.array([1.0]), np.array([0.0]), np.array([0.0]), np.array([0.0005]))
    assert found is not None
    assert found.least(np.array([-1000.0])).tolist() == pytest.approx([0.0005 + 0.5])


def test_all_points_of_a_curve_that_bends_upwards_are_corners_and_none_inside_an_edge() -> None:
    x = np.arange(-8.0, 9.0)
    assert lower_hull(x, x**2).tolist() == list(range(17))
    assert lower_hull(x, np.abs(x)).tolist() == [0, 8, 16]
    assert lower_hull(x, -(x**2)).tolist() == [0, 16]
