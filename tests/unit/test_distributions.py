"""Distributions and fits, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.special import bdtrc, betainc, stdtrit

from distprof.analyze.distributions import binomial_tail, incomplete_beta, line_of_positives, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 40, 399, 12_345, 2_000_000])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.975, 0.99865, 1 - 1e-6, 1 - 1e-9])
def test_students_quantiles(freedom: int, probability: float) -> None:
    expected = float(stdtrit(freedom, probability))
    assert student_quantile(freedom, probability) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("trials", [1, 5, 60, 4_000])
@pytest.mark.parametrize("probability", [1e-3, 0.125, 0.5, 0.9, 1.0])
def test_tails_of_the_binomial_distribution(trials: int, probability: float) -> None:
    for successes in {0, 1, 2, trials // 8, trials // 2, trials, trials + 1}:
        expected = 1.0 if successes == 0 else float(bdtrc(successes - 1, trials, probability))
        assert binomial_tail(successes, trials, probability) == pytest.approx(expected, rel=1e-9, abs=1e-280)


def test_the_incomplete_beta_function() -> None:
    random = np.random.default_rng(1)
    for a, b, x in zip(*10 ** random.uniform(-1, 4, (2, 500)), random.random(500), strict=True):
        assert incomplete_beta(a, b, x) == pytest.approx(float(betainc(a, b, x)), rel=1e-8, abs=1e-250)


@pytest.mark.parametrize("latency, slope", [(0.3, 2e-6), (0.0, 2e-6), (0.3, 0.0), (2.0, -1e-7), (-0.5, 2e-6)])
def test_lines_without_negative_parts(latency: float, slope: float) -> None:
    x = np.array([1e6, 3e6, 8e6])
    y = (latency + slope * x) * np.array([1.02, 0.97, 1.01])
    expected, _ = nnls(np.column_stack([np.ones(3), x]) / y[:, None], np.ones(3))
    assert line_of_positives(x, y) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-15)
