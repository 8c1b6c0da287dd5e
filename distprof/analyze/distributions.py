"""Distributions and fits that analyses judge by.

These few lines take the place of scipy's, whose import alone takes as long as a whole report.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import count

import numpy as np
import numpy.typing as npt

_PRECISE = 1e-14
_TINY = 1e-300

Floats = npt.NDArray[np.float64]


@cache
def student_quantile(freedom: float, probability: float) -> float:
    """The t that Student's distribution with these degrees of freedom exceeds with 1 - `probability`.

    Args:
        probability: from 0.5 to below 1.
    """

    def beyond(t: float) -> float:
        return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2

    rest = 1 - probability
    low, high = 0.0, 1.0
    while beyond(high) > rest:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > rest else (low, middle)
    return (low + high) / 2


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """How likely at least so many successes are in so many independent trials."""
    if successes <= 0:
        return 1.0
    return 0.0 if successes > trials else incomplete_beta(successes, trials - successes + 1, probability)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, for positive `a` and `b` and `x` from 0 to 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)  # where the fraction converges fast
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for step in count(1):
        m, odd = divmod(step, 2)
        if odd:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISE:
            break
    return value


def line_of_positives(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope, neither of them negative, with the least relative squared errors.

    Args:
        x, y: positive, shape (n,), of at least two different x.
    """
    columns = np.column_stack([1 / y, x / y])
    scale = np.linalg.norm(columns, axis=0)
    fitted = np.linalg.lstsq(columns / scale, np.ones(len(x)))[0] / scale
    if (fitted >= 0).all():
        return float(fitted[0]), float(fitted[1])
    # Where the best line is not allowed, the best of those allowed lacks one of the two.
    alone = columns.sum(axis=0) / scale**2
    constant, slope = np.sum((columns * alone - 1) ** 2, axis=0)
    return (float(alone[0]), 0.0) if constant <= slope else (0.0, float(alone[1]))
