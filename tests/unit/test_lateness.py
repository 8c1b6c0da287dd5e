"""How late ranks are, and what they may differ by without being late: tables of times made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import t as student

from distprof.analyze.lateness import (
    Floats,
    Lateness,
    _in_other_places,
    _level,
    _levels,
    _noise,
    _noise_of_a_step,
    _quarter,
    _quarter_of_normal,
    _spread,
    _usual,
    against_usual,
    lateness,
    lower_median,
)

STEP = 100.0  # a twentieth is 5
ALL = [[0, 1, 2, 3]]


def times(*ranks: Sequence[float], steps: int = 10) -> Floats:
    """The same in all steps: for each rank what it takes in each place."""
    return np.tile(np.array(ranks, dtype=np.float64)[:, None, :], (1, steps, 1))


def chance(ranks: int, steps: int, seed: int = 7) -> Floats:
    return np.random.default_rng(seed).standard_normal((ranks, steps))


def test_one_that_always_takes_longer_is_late_by_so_much() -> None:
    found = lateness(times([40, 10], [40, 10], [70, 10], [40, 12]), ALL, STEP)
    assert found.delays[:, 0].tolist() == [0, 0, 30, 2]
    assert (found.delays == found.delays[:, :1]).all()
    assert found.holds_up.tolist() == [0, 0, 30, 2]
    assert found.late.all(axis=1).tolist() == found.late.any(axis=1).tolist() == [False, False, True, False]
    assert found.extra[:, 4].tolist() == [[0, 0], [0, 0], [30, 0], [0, 2]]
    assert found.usual.tolist() == [[40, 10]] * 4
    assert found.noise_of_median == found.noise_of_a_step == found.noise == 5


def test_noise_is_the_less_of_the_two() -> None:
    nothing = np.zeros((2, 3))
    for median, step in ((2.0, 3.0), (3.0, 2.0)):
        assert Lateness(nothing, nothing, median, step, nothing > 0, nothing, nothing).noise == 2


def test_what_all_take_longer_in_a_step_is_nobodys() -> None:
    common = np.array([0, 50, 7, 0, 90, 3, 0, 0, 12, 5.0])
    of = times([40, 10], [40, 10], [70, 10], [40, 10])
    of[:, :, 1] += common
    found = lateness(of, ALL, STEP)
    assert found.delays.tolist() == [[0] * 10, [0] * 10, [30] * 10, [0] * 10]
    assert found.usual.tolist() == [[40, 14]] * 4, "5 and 3 are the middle of what comes on top"


def test_a_step_that_takes_all_ranks_longer_may_be_noisier_as_much() -> None:
    of = times([50], [50], [50], [50])
    of[:, 3] = 150
    of[1, 3:5, 0] += 12
    of[2, 3:5, 0] += 16
    found = lateness(of, ALL, STEP)
    assert found.delays[:, 3:5].tolist() == [[0, 0], [12, 12], [16, 16], [0, 0]]
    assert found.late[:, 3:5].tolist() == [[False, False], [False, True], [True, True], [False, False]]
    short = times([50], [50], [50], [50])
    short[:, 3] = 10
    short[1, 3] += 4
    assert not lateness(short, ALL, STEP).late.any(), "and one that takes them less is not less noisy"


def test_of_many_times_zero_nothing_follows() -> None:
    found = lateness(times([0.0], [0.0], [0.0]), [[0, 1, 2]], STEP)
    assert not found.late.any() and not found.delays.any()


def test_exactly_as_much_as_noise_is_not_late() -> None:
    assert not lateness(times([50], [50], [55]), [[0, 1, 2]], STEP).late.any()
    assert lateness(times([50], [50], [55.5]), [[0, 1, 2]], STEP).late[2].all()


def test_ranks_are_compared_with_their_role_alone() -> None:
    of = times([40, 1], [90, 2], [40, 1], [90, 2], [400, 7], [50, 1], [110, 2])
    found = lateness(of, [[0, 2, 5], [1, 3, 6], [4]], STEP)
    assert found.delays[:, 0].tolist() == found.holds_up.tolist() == [0, 0, 0, 0, 0, 10, 20]
    assert found.usual.tolist() == [[40, 1], [90, 2], [40, 1], [90, 2], [0, 0], [40, 1], [90, 2]]
    assert found.extra[:, 9, 0].tolist() == [0, 0, 0, 0, 0, 10, 20]
    assert not lateness(of, [], STEP).late.any()
    assert lateness(of, [], STEP).noise == 5


def test_noise_is_that_of_the_noisiest_role() -> None:
    values = np.concatenate([20 * chance(4, 30), 2 * chance(4, 30)])
    of = (values + 500)[:, :, None]
    both = lateness(of, [[0, 1, 2, 3], [4, 5, 6, 7]], 1.0)
    noisy, quiet = lateness(of[:4], ALL, 1.0), lateness(of[4:], ALL, 1.0)
    assert both.noise_of_median == noisy.noise_of_median > quiet.noise_of_median
    assert both.noise_of_a_step == noisy.noise_of_a_step > quiet.noise_of_a_step
    excess, levels = _levels(values[:4])
    assert noisy.noise_of_median == _noise(values[:4] + 500, excess, levels)
    assert noisy.noise_of_a_step == pytest.approx(_noise_of_a_step(values[:4]))
    assert lateness(of, [[4, 5, 6, 7], [0, 1, 2, 3]], 1.0).noise == both.noise


def test_three_that_lose_in_different_places_are_late_by_what_is_usual_there() -> None:
    """Of most ranks each is late in all, and in each place most are not."""
    found = lateness(times([60, 10], [40, 40], [40, 10]), [[0, 1, 2]], STEP)
    assert found.delays[:, 0].tolist() == [20, 30, 0]
    assert found.extra[:, 0].tolist() == [[20, 0], [0, 30], [0, 0]]
    # In a single step the third rank is rather the fast one, and yet the others lost time.
    of = times([40, 10], [40, 10], [40, 10])
    of[0, 2, 0] += 20
    of[1, 2, 1] += 30
    assert lateness(of, [[0, 1, 2]], STEP).delays[:, 2].tolist() == [20, 30, -20]


def test_what_is_less_than_noise_is_lost_in_no_place() -> None:
    assert lateness(times([44, 10], [40, 14], [40, 10]), [[0, 1, 2]], STEP).delays[:, 0].tolist() == [0, 0, -4]


def test_a_rank_is_held_against_the_fastest_of_its_peers() -> None:
    found = lateness(times([40], [50], [50], [50]), ALL, STEP)
    assert found.holds_up.tolist() == [0, 10, 10, 10]
    assert found.delays[:, 0].tolist() == [-10, 0, 0, 0]


def level_by_hand(row: Floats) -> float:
    """What three of five steps reach."""
    return sorted(row)[int(0.4 * len(row))]


@pytest.mark.parametrize("seed", range(5))
def test_the_lower_half_of_ranks_has_no_level_above_the_usual(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 100, (4, 5))
    of_places = lateness(np.stack([values, values[::-1]], axis=2).astype(np.float64), ALL, STEP).extra
    for found in (against_usual(values, ALL), of_places[:, :, 0], of_places[:, :, 1]):
        assert sorted(map(level_by_hand, found))[1] == 0


def test_of_two_ranks_the_slower_one_is_late_wherever_it_is() -> None:
    found = lateness(times([60, 10], [40, 40]), [[0, 1]], STEP)
    assert found.delays[:, 0].tolist() == [0, 10]
    assert found.holds_up.tolist() == [0, 10]
    of = times([40, 10], [40, 10])
    of[0, 2, 0] += 20
    of[1, 2, 1] += 30
    assert lateness(of, [[0, 1]], STEP).delays[:, 2].tolist() == [0, 10]


def test_counts_are_compared_as_times_are() -> None:
    values = np.array([[10, 12, 11], [10, 12, 11], [15, 17, 16], [99, 1, 5], [7, 7, 7], [9, 9, 9]])
    found = against_usual(values, [[0, 1, 2], [3], [4, 5]])
    assert found.tolist() == [[0, 0, 0], [0, 0, 0], [5, 5, 5], [0, 0, 0], [0, 0, 0], [2, 2, 2]]
    assert found.dtype == np.float64


def test_a_lower_median_is_one_of_the_values() -> None:
    assert lower_median(np.array([4.0, 1.0, 3.0, 2.0])) == 2
    assert lower_median(np.array([5.0, 1.0, 3.0])) == 3
    assert lower_median(np.array([[4.0, 1.0], [9.0, 0.0]])).tolist() == [4, 0]
    many = np.tile(np.arange(999.0)[:, None], (1, 1000))
    assert (lower_median(np.random.default_rng(0).permuted(many, axis=0)) == 499).all()


@pytest.mark.parametrize(("steps", "late", "level"), [(1, 1, 9), (5, 2, 0), (5, 3, 9), (10, 5, 0), (10, 6, 9)])
def test_a_level_is_what_three_of_five_steps_reach(steps: int, late: int, level: float) -> None:
    values = np.zeros((3, steps))
    values[1, steps - late :] = 9
    excess, levels = _levels(values)
    assert levels.tolist() == [0, level, 0]
    assert excess.tolist() == values.tolist()


def test_levels_are_those_of_steps_whatever_they_are_taken_of() -> None:
    values = np.random.default_rng(0).permutation(200).reshape(4, 5, 10).astype(np.float64)
    assert _level(values).tolist() == [[level_by_hand(steps) for steps in places] for places in values]
    assert _level(values.reshape(4, 2, 25)).tolist() == [
        [level_by_hand(steps) for steps in places] for places in values.reshape(4, 2, 25)
    ]


def test_levels_tell_what_is_common() -> None:
    """Rank 2 is 3 above rank 1, and so is rank 0, but for two steps in which it is 4 faster: those are its own."""
    values = np.array([[3.0, -1, 3, -1, 3], [0, 0, 0, 0, 0], [3, 3, 3, 3, 3]])
    excess, levels = _levels(values + np.array([1, 9, 5, 0, 2]))
    assert (levels - levels[1]).tolist() == [3, 0, 3]
    assert (excess - levels[:, None]).tolist() == [[0, -4, 0, -4, 0], [0] * 5, [0] * 5]


def test_usual_is_sought_place_by_place_where_that_is_less() -> None:
    of = times([60, 10, 5], [40, 40, 5], [40, 10, 5])
    levels = of.sum(axis=2)[:, 0] - 60
    assert _usual(levels, of, 5.0) == -5, "a level of 15, 30 and -5: 20 and 30 of them are extra somewhere"
    assert _usual(levels, of, 19.9) == -5
    assert _usual(levels, of, 20.0) == 15, "what is no more than noise is nothing"
    assert _usual(levels[:2], of[:2], 5.0) == 15
    alike = times([60, 60, 40, 40], [40, 40, 60, 60], [40, 40, 40, 40])
    assert _usual(np.array([40.0, 40.0, 0.0]), alike, 20.0) == 0, (
        "less than noise is nothing, and as much as that is not"
    )
    within = times([43, 10], [40, 14], [40, 10])
    assert _usual(np.array([3.0, 4.0, 0.0]), within, 5.0) == 3


def test_what_is_lost_in_other_places_counts_as_far_as_a_peer_was_faster() -> None:
    extra = np.array([[[20, -9], [20, 4]], [[0, 30], [-20, 30]], [[3, 3], [6, 5]]], dtype=np.float64)
    total = np.array([[50, 70], [47, 52], [45, 50]], dtype=np.float64)
    no = -np.inf
    assert _in_other_places(extra, total, 5.0).tolist() == [[5, 20], [2, 2], [no, 0]]
    assert _in_other_places(extra, total, 6.0).tolist()[2] == [no, no]
    both = np.array([[[8, 3, 6], [12, -6.5, 0.5], [13, -7, 0]], [[0, 0, 0]] * 3], dtype=np.float64)
    assert _in_other_places(both, np.array([[90.0] * 3, [50.0] * 3]), 6.0).tolist()[0] == [8, no, no]


def spread_by_hand(values: Floats) -> float:
    """Of all pairs of ranks and of steps that are at most 8 apart."""
    ranks, steps = (itertools.combinations(range(count), 2) for count in values.shape)
    pairs = [(a, b) for a, b in ranks if b - a <= 8]
    apart = [
        abs((values[b, t] - values[a, t]) - (values[b, s] - values[a, s]))
        for s, t in steps
        if t - s <= 8
        for a, b in pairs
    ]
    return float(np.nanquantile(apart, 0.25)) / 0.6373


@pytest.mark.parametrize(("ranks", "steps"), [(2, 2), (2, 12), (12, 2), (3, 10), (9, 9), (10, 10), (11, 12)])
def test_the_spread_is_that_of_neighbouring_ranks_and_steps(ranks: int, steps: int) -> None:
    values = chance(ranks, steps)
    assert _spread(values) == pytest.approx(spread_by_hand(values))
    values[0, 0] = np.nan
    if ranks > 2 or steps > 2:
        assert _spread(values) == pytest.approx(spread_by_hand(values))


def test_the_spread_of_chance_is_its_standard_deviation() -> None:
    assert _spread(3 * chance(16, 2000)) == pytest.approx(3, rel=0.02)
    assert _spread(chance(4, 1)) == 0


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_a_quarter_of_chance_does_not_depend_on_the_seed(ranks: int) -> None:
    assert _quarter_of_normal(ranks) == pytest.approx(_quarter(chance(ranks, 20_000)), rel=0.05)
    assert _quarter(3 * chance(ranks, 2000)) == pytest.approx(3 * _quarter(chance(ranks, 2000)))


def test_a_quarter_by_hand() -> None:
    """All levels are 0; in each step the rank that differs by the least does not count."""
    values = np.array([[0.0, 0, 0, 0, 0], [-8, -6, 0, 2, 4], [8, 4, 0, -1, -2]])
    assert _levels(values)[1].tolist() == [0, 0, 0]
    assert _quarter(values) == pytest.approx(np.quantile([8, 8, 6, 4, 0, 0, 2, 1, 4, 2], 0.25))
    assert _quarter(values + np.array([[0], [5], [-3]])) == _quarter(values), (
        "it is what they differ by from their levels"
    )


def noise_of_a_median(deviation: float, steps: int) -> float:
    """Three standard errors of a median."""
    return float(student.ppf(0.99865, steps - 1) * 1.2533 * deviation / steps**0.5)


@pytest.mark.parametrize(
    ("differences", "deviation"),
    [
        ([3, -3, 2, -2, 1, -1, 0], 1.4826 * 2),  # half of them differ by no more than 2 from their median
        ([0, 6], 2**0.5 * 6 / 0.6373),  # they are what all show together, if that is more
        ([0, 0, 0, 40, -40], 2**0.5 * 10 / 0.6373),  # a quarter of the ten changes is less than 10
    ],
)
def test_noise_of_a_median_by_hand(differences: list[float], deviation: float) -> None:
    values = np.array([[0.0] * len(differences), differences])
    excess, levels = _levels(values)
    assert _noise(values, excess, levels) == pytest.approx(noise_of_a_median(deviation, len(differences)), rel=1e-3)


def test_noise_is_against_the_rank_that_is_usual() -> None:
    """Rank 1 is; the others differ from it by 3, and from each other by twice as much."""
    wobble = np.array([3.0, -3, 3, -3, 3, -3, 0])
    apart = np.array([10 + wobble, 0 * wobble, -10 - wobble])
    common = np.array([50.0, 7, 31, 0, 99, 12, 4])
    for by in (0.0, 50.0):
        levels = np.array([10.0, 0, -10]) + by
        found = _noise(apart + common, apart + by, levels)
        assert found == pytest.approx(noise_of_a_median(1.4826 * 3, 7), rel=1e-3)


def noise_of_a_step_by_hand(values: Floats) -> float:
    ranks, steps = values.shape
    freedom = max((ranks - 1) * (steps - 1), 1)
    several = student.ppf(1 - 0.05 / (ranks * steps), freedom) * (2**0.5 if ranks == 2 else 1.25)
    spread = _spread(values)
    if steps < 16:
        return several * spread
    if ranks > 2:
        spread = min(spread, _quarter(values) / _quarter_of_normal(min(ranks, 8)) * (1 + 8 / steps))
    excess, levels = _levels(values)
    clear = [
        [excess[rank, step] - levels[rank] > several * spread / 2 for step in range(steps)] for rank in range(ranks)
    ]
    if sum(map(any, zip(*clear, strict=True))) < 0.4 * steps:
        spread = min(spread, 1.05 * _spread(np.where(clear, np.nan, values)))
    return several * spread


@pytest.mark.parametrize("seed", [7, 8, 9, 20])
@pytest.mark.parametrize(
    ("ranks", "steps", "late"),
    [
        *(
            (ranks, steps, {})
            for ranks, steps in ((2, 1), (2, 2), (2, 5), (3, 2), (3, 15), (3, 16), (2, 20), (4, 20), (12, 18))
        ),
        *((2, steps, {1: range(0, steps, 6)}) for steps in (15, 16, 20)),
        (4, 20, {1: range(0, 20, 5)}),
        (4, 20, {1: range(7)}),
        (4, 20, {1: range(8)}),
        *((4, steps, {rank: range(rank, steps, 4) for rank in range(4)}) for steps in (16, 20)),  # in turns
    ],
)
def test_noise_of_a_step_by_hand(ranks: int, steps: int, late: dict[int, range], seed: int) -> None:
    """It is what the most alike differ by, what most differ by from the usual, or what is left without late steps."""
    values = chance(ranks, steps, seed)
    for rank, which in late.items():
        values[rank, list(which)] += 50
    assert _noise_of_a_step(values) == pytest.approx(noise_of_a_step_by_hand(values))
