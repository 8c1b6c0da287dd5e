"""What repeated measurements say about a ratio, and what they do not.

A repeat gives one figure for each point, taken one after the other; their ratio is free of what has become faster or
slower with the machine meanwhile. The interval is of the geometric mean of these ratios. A bootstrap of few repeats is
too narrow, since it knows no value outside of those it saw; so the interval is the wider one of the bootstrap's and
Student's. Steps within a run are no repeats: what makes one run faster than the next is the same for all of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from distprof.result import doc

Verdict = Literal["faster", "slower", "cannot_be_told"]

FEWEST_REPEATS = 3
# Of a hundred settings that make no difference one is told faster or slower, so that of twenty hardly ever two are.
CONFIDENCE = 0.99
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times, candidate over baseline: below 1 the candidate is faster."""

    estimate: Annotated[float, doc("Geometric mean over the repeats.")]
    low: Annotated[float | None, doc("Lower end of the interval; null: fewer than two repeats.")]
    high: Annotated[float | None, doc("Upper end.")]
    confidence: Annotated[float, doc("Of the interval, 0 to 1.")]
    repeats: Annotated[int, doc("Repeats in which both were measured.")]

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.low is None or self.high is None or self.repeats < FEWEST_REPEATS:
            return "cannot_be_told"
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "cannot_be_told"


def ratio(baseline: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> Ratio | None:
    """The ratio of two rows of positive figures, the k-th of both from the k-th repeat; None of none.

    Args:
        baseline, candidate: shape (repeats,).
        confidence: of the interval.
    """
    if not baseline:
        return None
    logs = np.log(np.asarray(candidate, dtype=float)) - np.log(np.asarray(baseline, dtype=float))
    middle, count = float(logs.mean()), len(logs)
    low, high = _interval(logs, confidence) if count > 1 else (None, None)
    return Ratio(
        estimate=math.exp(middle),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        confidence=confidence,
        repeats=count,
    )


def _interval(logs: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> tuple[float, float]:
    from scipy import stats

    middle, deviation = float(logs.mean()), float(logs.std(ddof=1))
    if deviation == 0:
        return middle, middle
    half = float(stats.t.ppf((1 + confidence) / 2, len(logs) - 1)) * deviation / math.sqrt(len(logs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few values give few different resamples
        resampled = stats.bootstrap(
            (logs,),
            np.mean,
            confidence_level=confidence,
            n_resamples=_RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
    return min(middle - half, float(resampled.low)), max(middle + half, float(resampled.high))


def confidence_of_looks(looks: int) -> float:
    """Confidence at each of so many looks at growing data that together err as seldom as one look."""
    return 1 - (1 - CONFIDENCE) / looks
