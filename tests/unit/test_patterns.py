"""Late steps: what accidents explain, and what only one reason does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import betabinom

from distprof.analyze.lateness import Lateness
from distprof.analyze.patterns import _by_accident, for_a_while, in_a_row, in_proportion, late_ranks
from distprof.analyze.stretches import come_in_stretches, stretches, together

STEPS = 18
USUAL = np.array([25.0, 10.0, 5.0])  # ms in each place
LONG = float(USUAL.sum())
EVERYWHERE = -1
MS = 1e6  # ns


def found(
    late: dict[int, dict[int, float]],
    *,
    ranks: int = 4,
    places: dict[int, list[int]] | None = None,
    crowded: bool = False,
) -> list[int]:
    """Who is late now and then, of ranks that lose ms in these steps, each in one place unless told otherwise."""
    of = lateness(late, ranks, places or {})
    rows = late_ranks(of, [list(range(ranks))], LONG, np.full(ranks, crowded))
    return [row.index for row in rows if row.pattern == "intermittent"]


def lateness(late: dict[int, dict[int, float]], ranks: int, places: dict[int, list[int]]) -> Lateness:
    """`places`: where a rank loses its time in each of its late steps; EVERYWHERE: as it takes time there."""
    extra = np.zeros((ranks, STEPS, len(USUAL)))
    for rank, of_rank in late.items():
        for (step, ms), place in zip(of_rank.items(), places.get(rank, [0] * len(of_rank)), strict=True):
            extra[rank, step] += ms * (USUAL / LONG if place == EVERYWHERE else np.eye(len(USUAL))[place])
    delays = extra.sum(axis=2)
    usual = np.tile(USUAL, (ranks, 1))
    return Lateness(delays, np.median(delays, axis=1), 2.0, 4.0, late=delays > 4.0, extra=extra, usual=usual)


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


def test_what_costs_less_than_a_fifth_of_a_steps_noise_may_be_the_machine() -> None:
    """Seen with two healthy ranks on two cores: one had four times as many accidents, alike and in one place."""
    often = steps(4.4, 4.4, 4.4), steps(5.0, 5.0, 5.0)
    assert [found({1: late}) for late in often] == [[], [1]], "of 18 steps, at a noise of 4"


def test_what_costs_hardly_more_than_the_peers_accidents_may_be_the_machine() -> None:
    often = steps(*7 * [4.6])
    assert found({1: often, 2: {8: 10.0}, 3: {9: 10.0}}) == [1]
    assert found({1: often, 2: {8: 40.0}, 3: {9: 40.0}}) == [], (
        "one of them may be no accident, and the other costs more"
    )


def test_two_ranks_that_share_a_core_have_more_accidents_than_the_others() -> None:
    """Seen with four healthy ranks on two cores: the one with the most was held against the two with the fewest."""
    one = dict(zip((2, 6, 7, 9, 12, 14, 17), (4.2, 4.5, 5.0, 4.4, 4.4, 8.5, 4.3), strict=True))
    other = dict(zip((0, 2, 7, 11, 13, 16), (7.0, 5.4, 4.6, 4.2, 5.0, 4.8), strict=True))
    third = {4: 4.9, 10: 4.3, 15: 4.3}
    places = {2: [1, 0, 0, 0, 2, 0]}
    assert found({1: one, 2: other, 3: third}, places=places) == []
    assert found({1: one, 2: other, 3: {4: 4.9}}, places=places) == []
    assert found({1: one, 2: {11: 4.2, 13: 5.0}, 3: {4: 4.9}}) == [1], "it stands out"


def test_ranks_that_share_cores_make_delays_that_differ_and_hardly_any_that_are_alike() -> None:
    """Seen with four healthy ranks on two cores: one was late in 9 of 26 steps, by 4 to 9 ms, in backward."""
    slices = dict(zip(range(1, 18, 2), (4.7, 9.3, 5.2, 6.3, 6.7, 5.7, 4.3, 4.1, 6.5), strict=True))
    assert [found({1: slices}, crowded=crowded) for crowded in (False, True)] == [[1], []]
    assert found({1: steps(30, 31, 29)}, crowded=True) == [1]
    assert found({1: steps(30, 31, 42)}, crowded=True) == []
    assert found({1: steps(*7 * [30])}, places={1: [0, 1, 2, 0, 1, 2, 0]}, crowded=True) == []


def test_delays_of_different_size_or_in_different_places_are_accidents() -> None:
    assert found({1: steps(30, 12, 55)}) == []
    assert found({1: steps(30, 31, 29)}, places={1: [0, 1, 2]}) == []
    assert found({1: steps(30, 12, 55, 20, 41, 33)}) == [1], "so many in one place have one reason"


def test_what_happens_to_peers_as_well_is_no_pattern() -> None:
    assert found({1: steps(30, 31, 29), 2: {8: 35.0}, 3: {9: 28.0, 15: 33.0}}) == []


def test_what_is_alike_each_time_is_not_held_against_accidents_of_another_size() -> None:
    """Seen with three ranks: one was late by 60 ms in each fourth step, and peers now and then by 2, which was late."""
    small: dict[int, dict[int, float]] = {2: {8: 5.0, 12: 4.5}, 3: {9: 4.5, 15: 6.0}}
    assert found({1: steps(30, 31, 29, 30), **small}) == [1]
    assert found({1: steps(30, 31, 29, 30), 2: {8: 16.0, 12: 20.0}, 3: {9: 17.0, 15: 21.0}}) == []


def test_many_accidents_of_peers_tell_no_more_than_one_of_a_rank_that_may_have_more() -> None:
    """Seen with four ranks on two cores: slices of time lost in one place or another, by one rank more often."""
    slices = dict(zip((4, 5, 6, 8, 10, 12, 13), (5.0, 21.0, 7.0, 5.0, 4.5, 10.0, 4.5), strict=True))
    busy: dict[int, dict[int, float]] = {1: slices, 2: {6: 7, 9: 5, 11: 9}, 3: {2: 8, 9: 10, 15: 7}}
    places = {1: [1, 1, 2, 1, 1, 0, 1]}
    assert found(busy, places=places) == []
    assert found({1: slices}, places=places) == [1], "its peers have none"


def test_accidents_of_one_that_is_always_late_are_not_known() -> None:
    always = dict.fromkeys(range(STEPS), 50.0)
    assert found({0: always, 1: steps(30, 31, 29)}) == [1]
    assert found({0: always, 1: steps(30, 31, 29)}, ranks=3) == []
    assert found({0: always, 1: steps(30, 31, 29, 30)}, ranks=2) == [], "there is nobody to compare with"


def block(*ms: float) -> dict[int, float]:
    """Late by so much from step 6 on."""
    return dict(enumerate(ms, 6))


DIFFERENT = (30, 12, 55, 20, 41, 33, 18)


def test_a_stretch_in_one_place_is_one_accident_unless_its_delays_are_alike() -> None:
    assert found({1: block(*[30, 31, 29, 30, 31, 30])}) == [1]
    assert found({1: block(*DIFFERENT)}) == []
    assert found({1: steps(*DIFFERENT)}) == [1], "the same at different times"


@pytest.mark.parametrize("count", [4, 7, 10])
def test_a_stretch_in_which_everything_takes_longer_is_told_from_one_in_one_place(count: int) -> None:
    shared = {1: block(*[30] * count)}
    of = lateness(shared, 4, {1: [EVERYWHERE] * count})
    (late,) = late_ranks(of, [[0, 1, 2, 3]], LONG)
    assert for_a_while(of, late, LONG * MS) and in_proportion(of, late)
    assert in_a_row(of).tolist() == [False, True, False, False]
    assert not for_a_while(lateness(shared, 4, {}), late, LONG * MS)


def test_stretches_of_several_ranks_are_no_turns() -> None:
    turns = {rank: dict.fromkeys(range(1 + 4 * rank, 5 + 4 * rank), 30.0) for rank in range(4)}

    def patterns(place: int) -> set[str]:
        rows = late_ranks(lateness(turns, 4, {rank: [place] * 4 for rank in turns}), [[0, 1, 2, 3]], LONG)
        return {row.pattern for row in rows}

    assert patterns(0) == {"rotating"}
    assert patterns(EVERYWHERE) == set()


@pytest.mark.parametrize(("which", "shared"), [(range(5, 18), True), (range(18), False)])
def test_a_core_shared_for_most_of_the_run_is_no_persistent_culprit(which: range, shared: bool) -> None:
    always = {1: dict.fromkeys(which, 30.0)}
    of = lateness(always, 4, {1: [EVERYWHERE] * len(which)})
    (late,) = late_ranks(of, [[0, 1, 2, 3]], LONG)
    assert (late.index, late.pattern) == (1, "persistent")
    assert in_proportion(of, late)
    assert for_a_while(of, late, LONG * MS) == shared
    assert not for_a_while(lateness(always, 4, {}), late, LONG * MS)


def test_all_steps_of_a_moment_are_one_stretch() -> None:
    """Seen in steps of 1 ms: for 15 of them a rank had the slower core, and in the next launch it had not."""
    always = {1: dict.fromkeys(range(18), 30.0)}
    of = lateness(always, 4, {1: [EVERYWHERE] * 18})
    (late,) = late_ranks(of, [[0, 1, 2, 3]], LONG)
    assert for_a_while(of, late, 1 * MS)
    assert not for_a_while(lateness(always, 4, {}), late, 1 * MS), "one place is no core"


def test_late_steps_that_depend_on_each_other_are_fewer() -> None:
    def of(picture: str) -> np.ndarray:
        return np.array([mark == "X" for mark in picture])

    apart, every_other, burst = of("..X..X.X....X..X..X."), of("X.X.X.X.X.X.X.X.X.X."), of("....XXXXXXXX.....XX.")
    assert together(apart) == together(every_other) == 1
    assert together(burst) > 2
    assert together(of("." * 20)) == together(of("X" * 20)) == 1
    assert (stretches(apart), stretches(burst), stretches(of("XX.X"))) == (6, 2, 2)
    assert [come_in_stretches(each) for each in (apart, every_other, burst)] == [False, False, True]
    assert not come_in_stretches(of("." * 20)) and not come_in_stretches(of("X" * 20))
