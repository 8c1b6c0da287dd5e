"""What a few repeats of several points may be believed: held against the truth in hundreds of made-up sweeps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from distprof.experiment.several import Several
from tests.unit.test_experiment_statistics import NOISES

SWEEPS = 300


def times(noise: str, true: list[float], repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Shape (points, repeats): launches in the order in which the core takes them; every other repeat reverses it."""
    found = np.empty((len(true), repeats))
    factors = iter(NOISES[noise](rng, len(true) * repeats))
    for repeat in range(repeats):
        order = list(range(len(true)))
        random.Random(repeat // 2).shuffle(order)
        for point in order[:: 1 if repeat % 2 == 0 else -1]:
            found[point, repeat] = 100.0 * true[point] * next(factors)
    return found


def told_faster(several: Several) -> set[int]:
    return {index for index in range(len(several.logs)) if several.ratio(0, index).verdict == "faster"}


@pytest.mark.parametrize(("points", "repeats"), [(4, 3), (12, 3), (5, 6)])
@pytest.mark.parametrize("noise", NOISES)
def test_where_nothing_makes_a_difference_hardly_ever_anything_is_told(noise: str, points: int, repeats: int) -> None:
    rng = np.random.default_rng(1)
    sweeps = [Several.together(times(noise, [1.0] * points, repeats, rng)) for _ in range(SWEEPS)]
    wrong = sum(bool(told_faster(sweep)) for sweep in sweeps) / SWEEPS
    assert wrong <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / SWEEPS)


@pytest.mark.parametrize("noise", NOISES)
def test_the_truly_fastest_is_hardly_ever_left_out(noise: str) -> None:
    rng = np.random.default_rng(2)
    true = [1.0, 0.8, 0.81, 0.83, 0.9, 1.1]
    sweeps = [Several.together(times(noise, true, 4, rng)) for _ in range(SWEEPS)]
    left_out = sum(1 not in sweep.may_be_fastest() for sweep in sweeps) / SWEEPS
    assert left_out <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / SWEEPS)


def test_a_clear_difference_is_seen_in_three_repeats_and_the_interval_has_it() -> None:
    rng = np.random.default_rng(3)
    true = [1.0, 0.5, 0.5, 0.7, *[1.0] * 8]
    sweeps = [Several.together(times("even", true, 3, rng)) for _ in range(100)]
    assert np.mean([{1, 2, 3} <= told_faster(sweep) for sweep in sweeps]) == 1
    assert np.mean([sweep.may_be_fastest() == [1, 2] for sweep in sweeps]) > 0.95
    ratios = [sweep.ratio(0, 3) for sweep in sweeps]
    assert all(ratio.low is not None and ratio.high is not None and ratio.low < 0.7 < ratio.high for ratio in ratios)
    assert {ratio.confidence for ratio in ratios} == {1 - 0.01 / 11}


def test_a_point_that_varies_more_than_the_others_has_a_wider_interval() -> None:
    steady = [100.0, 101.0, 100.0, 99.0]
    several = Several.together([steady, steady, steady[::-1], [80.0, 120.0, 70.0, 125.0]])
    quiet, noisy = several.ratio(0, 2), several.ratio(0, 3)
    assert quiet.low is not None
    assert noisy.low is not None
    assert noisy.verdict == "cannot_be_told"
    assert math.log(noisy.estimate / noisy.low) > 1.3 * math.log(quiet.estimate / quiet.low)


def apart(true: list[float], rng: np.random.Generator) -> Several:
    def ratios(ratio: float) -> list[float]:
        return [float(value) for value in ratio * np.exp(0.03 * rng.standard_normal(3) - 0.03 * rng.standard_normal(3))]

    return Several.apart([[1.0] * 9, *map(ratios, true)], baseline=0)


def test_points_measured_apart_are_told_by_their_ratios() -> None:
    rng = np.random.default_rng(4)
    none = [apart([1.0] * 6, rng) for _ in range(SWEEPS)]
    assert sum(bool(told_faster(sweep)) for sweep in none) / SWEEPS <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / SWEEPS)
    some = [apart([0.6, 0.6, 1.0, 1.0, 1.0, 1.0], rng) for _ in range(100)]
    assert np.mean([{1, 2} <= told_faster(sweep) for sweep in some]) == 1
    assert np.mean([sweep.may_be_fastest() == [1, 2] for sweep in some]) > 0.95
    assert some[0].ratio(0, 1).repeats == 3


@pytest.mark.parametrize("make", [Several.together, lambda times: Several.apart(times, baseline=0)])
def test_one_repeat_concludes_nothing(make: Callable[[list[list[float]]], Several]) -> None:
    several = make([[1.0], [0.5]])
    ratio = several.ratio(0, 1)
    assert (ratio.estimate, ratio.low, ratio.verdict) == (pytest.approx(0.5), None, "cannot_be_told")
    assert several.may_be_fastest() == [0, 1]
    assert several.ratio(1, 1).estimate == 1
