"""What a few repeats may be believed: held against the truth in thousands of experiments that are made up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from distprof.experiment.core import Experiment
from distprof.experiment.settings import Point
from distprof.experiment.statistics import CONFIDENCE, confidence_of_looks, ratio
from distprof.experiment.trial import Trial
from distprof.experiment.validate import judge, looks, settled

Noise = Callable[[np.random.Generator, int], np.ndarray]
EXPERIMENTS = 350

# Factors of a step in the order of the launches, two launches to a repeat.
NOISES: dict[str, Noise] = {
    "even": lambda rng, n: np.exp(0.03 * rng.standard_normal(n)),
    "heavy": lambda rng, n: np.exp(0.03 * np.clip(rng.standard_t(2, n), -30, 30)),
    "hiccups": lambda rng, n: np.exp(0.01 * rng.standard_normal(n)) + 0.5 * (rng.random(n) < 0.1),
    "drifting": lambda rng, n: np.exp(0.02 * rng.standard_normal(n) + 0.1 * np.cumsum(rng.standard_normal(n)) / 10),
    "slower and slower": lambda rng, n: np.exp(0.02 * rng.standard_normal(n)) * (1 + 0.01 * np.arange(n)),
}


def measured(factors: np.ndarray, true_ratio: float, repeats: int) -> Experiment:
    """Launches in turn, every other repeat backwards, that take 100 ms and `true_ratio` times that."""
    trials = []
    for repeat in range(repeats):
        names = ["baseline", "candidate"][:: 1 if repeat % 2 == 0 else -1]
        for place, name in enumerate(names):
            step = 100.0 * factors[2 * repeat + place] * (true_ratio if name == "candidate" else 1.0)
            trials.append(Trial(name, repeat, 1.0, step_ms=[step]))
    points = [Point("baseline"), Point("candidate")]
    return Experiment("validate", "", [], points, warmup=0, steps=1, trials=trials)


def verdict(factors: np.ndarray, true_ratio: float, planned: int) -> str:
    """The verdict as the command comes to it: it looks half-way, too, where there are many repeats."""
    for repeats in looks(planned):
        experiment = measured(factors, true_ratio, repeats)
        if repeats == planned or settled(experiment, repeats, planned):
            return judge(experiment, planned).verdict
    raise AssertionError


@pytest.mark.parametrize("planned", [3, 5, 8])
@pytest.mark.parametrize("noise", NOISES)
def test_of_a_setting_against_itself_nothing_can_be_told(noise: str, planned: int) -> None:
    rng = np.random.default_rng(1)
    verdicts = [verdict(NOISES[noise](rng, 2 * planned), 1.0, planned) for _ in range(EXPERIMENTS)]
    wrong = 1 - verdicts.count("cannot_be_told") / EXPERIMENTS
    assert wrong <= 0.01 + 3 * np.sqrt(0.01 * 0.99 / EXPERIMENTS)


@pytest.mark.parametrize("true_ratio", [0.8, 1.25])
def test_a_clear_difference_is_seen_and_the_interval_has_it(true_ratio: float) -> None:
    rng = np.random.default_rng(2)
    experiments = [measured(NOISES["even"](rng, 16), true_ratio, 8) for _ in range(300)]
    found = [judge(experiment, 8) for experiment in experiments]
    assert {each.verdict for each in found} == {"faster" if true_ratio < 1 else "slower"}
    ratios = [each.ratio for each in found if each.ratio is not None]
    inside = [
        told for told in ratios if told.low is not None and told.high is not None and told.low < true_ratio < told.high
    ]
    assert len(inside) >= 0.98 * len(found)
    assert np.mean([told.estimate for told in ratios]) == pytest.approx(true_ratio, rel=0.01)


def test_small_differences_are_seen_with_more_repeats() -> None:
    rng = np.random.default_rng(3)
    seen = {
        planned: sum(verdict(NOISES["even"](rng, 2 * planned), 0.95, planned) == "faster" for _ in range(150))
        for planned in (4, 24)
    }
    assert seen[4] < 75
    assert seen[24] > 120


def test_few_repeats_conclude_nothing() -> None:
    assert ratio([], []) is None
    one = ratio([100.0], [50.0])
    assert one is not None
    assert (one.low, one.high, one.verdict) == (None, None, "cannot_be_told")
    assert one.estimate == pytest.approx(0.5)
    two = ratio([100.0, 101.0], [50.0, 50.5])
    assert two is not None
    assert two.verdict == "cannot_be_told"


def test_repeats_that_are_all_the_same_are_no_accident() -> None:
    same = ratio([100.0] * 3, [100.0] * 3)
    assert same is not None
    assert (same.low, same.high, same.verdict) == (1.0, 1.0, "cannot_be_told")
    half = ratio([100.0] * 3, [50.0] * 3)
    assert half is not None
    assert half.verdict == "faster"


def test_looks_share_what_they_may_err() -> None:
    assert looks(7) == [7]
    assert looks(9) == [4, 9]
    assert confidence_of_looks(1) == CONFIDENCE
    assert confidence_of_looks(2) == pytest.approx(0.995)
