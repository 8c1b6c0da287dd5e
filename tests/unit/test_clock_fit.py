"""Which line is believed of a clock, by its corridor and by the ends of collectives; times are ns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from distprof.clock.ends import Line
from distprof.clock.evidence import Evidence, gather
from distprof.clock.fit import Fit, Fits, _fit, fit_clocks
from distprof.clock.hull import Corridor, corridor
from distprof.clock.solve import Solution, Step
from tests.unit.tables import Call, tables

FIRST, SPAN = 5_000, 1_000_000
NONE = np.empty(0)


def evidence() -> Evidence:
    """Of two clocks, the second of which began at 5000 and was read for a ms."""
    made = tables(ranks=[0, 1], facts={rank: {"host": str(rank), "boot_id": "x"} for rank in (0, 1)})
    return replace(gather(made), spans=np.array([[0, 0], [FIRST, FIRST + SPAN]]))


def bounded() -> Corridor:
    """It is 180 to 200 wide in the middle, from 60 to 100 at first and from 260 to 300 at last."""
    found = corridor(np.array([0.0, 1e6]), np.array([100.0, 300.0]), np.array([5e5]), np.array([180.0]))
    assert found is not None
    edges = np.array([0.0, 5e5, 1e6])
    assert found.most(edges).tolist() == pytest.approx([100, 200, 300])
    assert found.least(edges).tolist() == pytest.approx([60, 180, 260])
    return found


def open_below() -> Corridor:
    found = corridor(np.array([5e5]), np.array([100.0]), NONE, NONE)
    assert found is not None
    return found


def fitted(
    within: Corridor, ends: Line | None = None, guess: Line | None = None, steps: Mapping[int, Step] | None = None
) -> Fit | None:
    return _fit(evidence(), 1, Solution(0, [within, within], dict(steps or {})), ends, guess)


def figures(fit: Fit | None) -> list[float | None]:
    assert fit is not None
    return [fit.line.at_start, fit.line.at_end, fit.line.error, fit.bound, fit.error]


def test_without_ends_it_is_the_middle_of_the_corridor() -> None:
    assert figures(fitted(bounded())) == pytest.approx([90, 290, 0, 30, None], abs=1e-6)
    assert fitted(open_below()) is None


def test_a_line_by_the_ends_is_believed_where_it_is_the_more_precise() -> None:
    """The corridor says 20 more or less at the edges."""
    assert figures(fitted(bounded(), Line(95.0, 280.0, 5.0))) == pytest.approx([95, 280, 5, 35, 5], abs=1e-6)
    assert figures(fitted(bounded(), Line(95.0, 280.0, 15.0))) == pytest.approx([95, 280, 15, 35, 15], abs=1e-6)
    assert figures(fitted(bounded(), Line(95.0, 280.0, 20.0))) == pytest.approx([90, 290, 20, 30, 20], abs=1e-6)
    assert figures(fitted(bounded(), Line(95.0, 280.0, 50.0))) == pytest.approx([90, 290, 30, 30, 30], abs=1e-6)


def test_where_causality_tells_the_most_it_has_the_last_word() -> None:
    assert figures(fitted(bounded(), Line(80.0, 240.0, 5.0))) == pytest.approx([100, 260, 5, 40, 5], abs=1e-6)
    assert figures(fitted(bounded(), Line(130.0, 320.0, 5.0))) == pytest.approx([105, 295, 5, 45, 5], abs=1e-6)


def test_a_corridor_that_is_open_bounds_nothing_and_still_has_a_wall() -> None:
    """At 0.5 ms it is no more than 100 ahead, so that at first it is no more than 600."""
    assert figures(fitted(open_below(), Line(30.0, 40.0, 5.0))) == pytest.approx([30, 40, 5, None, 5], abs=1e-6)
    assert figures(fitted(open_below(), Line(700.0, 40.0, 5.0))) == pytest.approx([600, -60, 5, None, 5], abs=1e-6)


def test_of_a_guess_nothing_is_claimed() -> None:
    assert figures(fitted(open_below(), guess=Line(30.0, 40.0, 5.0))) == pytest.approx(
        [30, 40, 0, None, None], abs=1e-6
    )
    both = fitted(open_below(), Line(30.0, 40.0, 5.0), Line(70.0, 80.0, 1.0))
    assert figures(both) == pytest.approx([30, 40, 5, None, 5], abs=1e-6)


def test_a_clock_that_was_set_has_no_line() -> None:
    assert fitted(bounded(), Line(95.0, 280.0, 5.0), steps={1: Step(0, 1, None)}) is None
    assert fitted(bounded(), steps={0: Step(0, 1, None)}) is not None


def test_the_reference_is_the_first_and_not_off() -> None:
    none = Fits(0, {0: Fit(Line(0.0, 0.0, 0.0), 0.0, 0.0)}, {})
    assert fit_clocks(evidence(), {0: 0, 1: 1}) == none
    assert fit_clocks(evidence(), {0: 0, 1: 0}, shared=True) == none
    assert fit_clocks(evidence(), {}) == Fits(-1, {}, {})
    guess = Line(30.0, 40.0, 5.0)
    guessed = fit_clocks(evidence(), {0: 0, 1: 1}, guesses={1: guess})
    assert guessed.of == {**none.of, 1: Fit(Line(30.0, 40.0, 0.0), None, None)}


def meetings(was_set: Collection[int], groups: Sequence[Sequence[int]]) -> Evidence:
    """Each group's hosts meet every 20 ms, and in the middle of the run some clocks are set by 50 ms."""
    calls = [
        Call(rank, seq, created=start, ended=start + 0.5, group=group)
        for group, ranks in enumerate(groups)
        for seq in range(1, 41)
        for rank in ranks
        for start in [20.0 * seq + (50 if rank in was_set and seq > 20 else 0)]
    ]
    ranks = sorted({rank for group in groups for rank in group})
    facts = {rank: {"host": str(rank), "boot_id": "x"} for rank in ranks}
    return gather(tables(ranks=ranks, calls=calls, groups=groups, facts=facts))


@pytest.mark.parametrize("count", [3, 4, 5])
def test_where_most_contradict_the_reference_it_is_the_reference_that_was_set(count: int) -> None:
    of = meetings({0}, [range(count)])
    found = fit_clocks(of, of.of_host())
    assert (found.reference, sorted(found.of), list(found.steps)) == (1, list(range(1, count)), [0])


def test_half_of_them_are_enough_as_others_may_not_tell() -> None:
    of = meetings({0}, [[0, 1, 2], [3]])
    found = fit_clocks(of, of.of_host())
    assert (found.reference, sorted(found.of), list(found.steps)) == (1, [1, 2], [0])


def test_where_fewer_than_half_contradict_the_reference_it_is_believed() -> None:
    of = meetings({0}, [[0, 1, 2], [3], [4]])
    found = fit_clocks(of, of.of_host())
    assert (found.reference, sorted(found.steps)) == (0, [1, 2])


@pytest.mark.parametrize(("count", "was_set"), [(2, [1]), (3, [2]), (4, [2, 3])])
def test_else_it_is_the_others(count: int, was_set: list[int]) -> None:
    of = meetings(was_set, [range(count)])
    found = fit_clocks(of, of.of_host())
    assert (found.reference, sorted(found.steps)) == (0, was_set)


def test_a_clock_that_was_set_tells_nothing_of_those_it_met() -> None:
    of = meetings({1}, [[0, 1, 3], [1, 2]])
    found = fit_clocks(of, of.of_host())
    assert (found.reference, sorted(found.of), list(found.steps)) == (0, [0, 3], [1])
