"""Late steps: what accidents explain, and what only one reason does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import betabinom

from distprof.analyze.lateness import Lateness
from distprof.analyze.patterns import _by_accident, late_ranks

STEPS = 18
LONG = 40.0


def found(
    late: dict[int, dict[int, float]], *, ranks: int = 4, places: dict[int, list[int]] | None = None
) -> list[int]:
    """Who is late now and then, of ranks that lose ms in these steps, each in one place unless told otherwise."""
    delays = np.zeros((ranks, STEPS))
    place = np.zeros((ranks, STEPS), dtype=np.int64)
    for rank, of_rank in late.items():
        delays[rank, list(of_rank)] = list(of_rank.values())
        place[rank, list(of_rank)] = (places or {}).get(rank, 0)
    holds_up = np.median(delays, axis=1)
    lateness = Lateness(delays, holds_up, 2.0, 4.0, late=delays > 4.0, place=place)
    rows = late_ranks(lateness, [list(range(ranks))], LONG)
    return [row.index for row in rows if row.pattern == "intermittent"]


def steps(*ms: float) -> dict[int, float]:
    """Late by so much, at no regular intervals."""
    return dict(zip((2, 5, 6, 11, 13, 16, 17), ms, strict=False))


@pytest.mark.parametrize(("count", "steps", "seen", "among"), [(3, 16, 0, 16), (4, 25, 1, 75), (9, 40, 5, 240)])
def test_accidents_are_as_likely_as_the_peers_have_them(count: int, steps: int, seen: int, among: int) -> None:
    expected = betabinom.sf(count - 1, steps, seen + 0.5, among - seen + 0.5)
    assert _by_accident(count, steps, seen, among) == pytest.approx(expected)


def test_three_alike_steps_are_a_pattern_if_several_peers_have_none() -> None:
    assert found({1: steps(30, 31, 29)}) == [1]
    assert found({1: steps(30, 31)}) == [], "twice is an accident"
    assert found({1: steps(30, 31, 29)}, ranks=2) == []
    assert found({1: steps(30, 31, 29, 30)}, ranks=2) == [1]


def test_delays_of_different_size_or_in_different_places_are_accidents() -> None:
    assert found({1: steps(30, 12, 55)}) == []
    assert found({1: steps(30, 31, 29)}, places={1: [0, 1, 2]}) == []
    assert found({1: steps(30, 12, 55, 20, 41, 33)}) == [1], "so many in one place have one reason"


def test_what_happens_to_peers_as_well_is_no_pattern() -> None:
    assert found({1: steps(30, 31, 29), 2: {8: 35.0}, 3: {9: 28.0, 15: 33.0}}) == []


def test_accidents_of_one_that_is_always_late_are_not_known() -> None:
    always = dict.fromkeys(range(STEPS), 50.0)
    assert found({0: always, 1: steps(30, 31, 29)}) == [1]
    assert found({0: always, 1: steps(30, 31, 29)}, ranks=3) == []
    assert found({0: always, 1: steps(30, 31, 29, 30)}, ranks=2) == [], "there is nobody to compare with"
