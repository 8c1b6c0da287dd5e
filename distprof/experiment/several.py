"""What repeated measurements say about several points: which are faster than one of them, which may be the fastest.

A few repeats of one pair say little about how much it varies; those of all points together say it well, if they vary
alike. So a difference's standard error is that of all of them, or the pair's own where that one is larger: a point that
varies more than the others is not taken for one that varies like them. Intervals are Student's, made wider for the
number of comparisons (Bonferroni's correction), so that of a hundred sweeps in which nothing makes a difference about
one says that something does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distprof.experiment.statistics import CONFIDENCE, Ratio

_Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Several:
    """Logarithms of the times of several points; of points measured apart, of their ratios to their own baseline.

    Attributes:
        logs: of each point, shape (repeats,).
        variance: of one of them, what the points and the repeats have in common taken out; None: it takes more repeats.
        freedom: its degrees of freedom.
        paired: the k-th of all points are from one repeat.
        exact: of points measured apart, the baseline: its ratios to itself are 1, and vary not at all.
    """

    logs: tuple[_Array, ...]
    variance: float | None
    freedom: int
    paired: bool
    exact: int | None = None

    @classmethod
    def together(cls, times: Sequence[Sequence[float]]) -> Several:
        """Of points whose repeats were taken in turn.

        Args:
            times: positive, shape (points, repeats).
        """
        logs = np.log(np.asarray(times, dtype=float))
        points, repeats = logs.shape
        freedom = (points - 1) * (repeats - 1)
        if freedom < 1:
            return cls(tuple(logs), None, 0, True)
        rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
        return cls(tuple(logs), float((rest**2).sum()) / freedom, freedom, True)

    @classmethod
    def apart(cls, ratios: Sequence[Sequence[float]], baseline: int) -> Several:
        """Of points that were each measured in turn with a baseline of their own.

        Args:
            ratios: time over the baseline's of the same repeat, for each point; points may have other repeats.
            baseline: which of them is the baseline itself.
        """
        logs = tuple(np.log(np.asarray(row, dtype=float)) for row in ratios)
        varying = [row for index, row in enumerate(logs) if index != baseline]
        freedom = sum(len(row) - 1 for row in varying)
        if freedom < 1:
            return cls(logs, None, 0, False, baseline)
        squares = sum(float(((row - row.mean()) ** 2).sum()) for row in varying)
        return cls(logs, squares / freedom, freedom, False, baseline)

    @property
    def comparisons(self) -> int:
        """How many points are held against one of them."""
        return max(1, len(self.logs) - 1)

    def ratio(self, baseline: int, candidate: int) -> Ratio:
        """Time of one point over that of another, its interval corrected for the number of comparisons."""
        confidence = 1 - (1 - CONFIDENCE) / self.comparisons
        middle = float(self.logs[candidate].mean() - self.logs[baseline].mean())
        varying = [self.logs[index] for index in (baseline, candidate) if index != self.exact]
        repeats = min(map(len, varying or [self.logs[baseline]]))
        if baseline == candidate:
            return Ratio(1.0, 1.0, 1.0, confidence, repeats)
        error = None
        if self.variance is not None and repeats > 1:
            error = self._error(varying, self.variance)
        if error is None:
            return Ratio(math.exp(middle), None, None, confidence, repeats)
        from scipy import stats

        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * error
        return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), confidence, repeats)

    def _error(self, rows: Sequence[_Array], variance: float) -> float:
        """Standard error of the difference of two means."""
        if self.paired:
            differences = rows[1] - rows[0]
            return math.sqrt(max(2 * variance, float(differences.var(ddof=1))) / len(differences))
        common = sum(variance / len(row) for row in rows)
        own = sum(float(row.var(ddof=1)) / len(row) for row in rows)
        return math.sqrt(max(common, own))

    def fastest(self) -> int:
        """The point with the smallest mean."""
        return int(np.argmin([row.mean() for row in self.logs]))

    def may_be_fastest(self) -> list[int]:
        """Points that cannot be told from the fastest one, it among them: in 99 of 100 sweeps the truly fastest is."""
        best = self.fastest()
        return [
            index
            for index in range(len(self.logs))
            if index == best or (told := self.ratio(best, index)).low is None or told.low <= 1
        ]
