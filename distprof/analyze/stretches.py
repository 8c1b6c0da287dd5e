"""Late steps that come in stretches, as when another program shares a rank's core for a while.

What lasts for some steps is one accident and not as many. All that the rank does then takes longer by one factor, by
which a stretch differs from a reason in one place.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Spread = Literal["one place", "in proportion"]

_IN_PROPORTION = 0.5  # of what is lost elsewhere if everything takes longer by one factor: more than that, or less
_FEWER = 2.0  # standard deviations by which stretches are fewer than those of steps that do not depend on each other


def together(late: Mask) -> float:
    """How many late steps of a rank, shape (S,), come of one accident: what their number's variance is larger by than
    that of steps which do not depend on each other; at least 1."""
    away = late - late.mean()
    if not away.any():
        return 1.0
    correlation = np.correlate(away, away, "full")[len(late) - 1 :] / np.dot(away, away)
    # The sums of two lags each fall off; from the first on that is not positive they are chance.
    pairs = correlation[: len(late) // 2 * 2].reshape(-1, 2).sum(axis=1)
    counted = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    return max(1.0, 2.0 * float(pairs[:counted].sum()) - 1.0)


def stretches(late: Mask) -> int:
    """In how many stretches of consecutive steps the late ones, shape (S,), come."""
    return int(late[0]) + int(np.count_nonzero(late[1:] & ~late[:-1]))


def come_in_stretches(late: Mask) -> bool:
    """Whether late steps, shape (S,), follow on each other more than by chance (a test of Wald and Wolfowitz)."""
    steps, some = len(late), int(late.sum())
    twice = 2.0 * some * (steps - some)
    variance = twice * (twice - steps) / (steps**2 * max(steps - 1, 1))
    runs = 1 + int(np.count_nonzero(late[1:] != late[:-1]))
    return bool(variance > 0 and 1 + twice / steps - runs > _FEWER * variance**0.5)


def spread(extra: Floats, usual: Floats, noise: float) -> Spread | None:
    """Whether late steps lost their time in one place, or everywhere in proportion; None: that cannot be told.

    Args:
        extra: how much longer they took in each place, shape (S, P).
        usual: what a step takes there, shape (P,).
        noise: of a delay in a single step.
    """
    lost = extra.sum(axis=0)
    place = int(lost.argmax())
    elsewhere = float(usual.sum() - usual[place])
    # Where usually hardly anything is done nothing can be in proportion.
    in_proportion = _IN_PROPORTION * float(lost[place]) * elsewhere / max(float(usual[place]), 0.01 * elsewhere, 1.0)
    if in_proportion <= noise * len(extra) ** 0.5 / 2:
        return None
    return "one place" if lost.sum() - lost[place] < in_proportion else "in proportion"
