"""When ranks are late: in most steps, in some, or taking turns; and which of it is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from distprof.analyze.lateness import MOST_STEPS, Lateness

Pattern = Literal["persistent", "intermittent", "rotating"]
Mask = npt.NDArray[np.bool_]

FEWEST_LATE = 3  # late steps: once or twice is an accident
_MANY_LATE = 6  # late steps that are no accident, however they differ
_OF_ONE_ORDER = 3.0  # times the smallest delay the largest may be where they are fewer
_SMALLEST_COST = 0.01  # of all steps' time
_CHANCE = 0.02  # that a rank which has as many accidents as its peers is late as often
_APART = 0.9  # of the late steps have one late rank where ranks take turns
_ALIKE = 2.0  # times the smallest amount the largest may be where ranks take turns
_EVEN = 0.8  # of the gaps between these are equal where they come at regular intervals


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that is late.

    Attributes:
        index: of the rank.
        pattern: how its late steps are spread.
        steps: which steps they are, shape (S,); of a persistent one those that exceed the noise.
        counted: steps that its delay is measured in: all of a persistent one, else the late ones; shape (S,).
    """

    index: int
    pattern: Pattern
    steps: Mask
    counted: Mask


def late_ranks(found: Lateness, roles: list[list[int]], step: float) -> list[Late]:
    """Those of the ranks that are late in a way that is not chance, by index; `step` is a step's length in ns."""
    delays = found.delays
    persistent = _in_most_steps(found, found.noise_of_median, found.noise_of_median / 2)
    # Where steps are few or a culprit's differ, its median may tell little, and yet each be more than chance by itself.
    in_each = _in_most_steps(found, found.noise_of_a_step, found.noise_of_a_step)
    persistent |= in_each & (np.sum(delays > found.noise_of_a_step, axis=1) >= FEWEST_LATE)
    everywhere = np.ones(delays.shape[1], dtype=np.bool_)
    rows = [Late(int(i), "persistent", delays[i] > found.noise, everywhere) for i in np.flatnonzero(persistent)]
    late = found.late & ~persistent[:, None]
    for members in roles:
        if len(members) > 1:
            own, extra = late[members], np.where(late[members], delays[members], 0.0)
            if _take_turns(own, extra, step):
                chosen, pattern = np.flatnonzero(own.any(axis=1)), "rotating"
            else:
                at_times = np.median(np.where(own, 0.0, delays[members]), axis=1) < found.noise_of_a_step / 2
                chosen, pattern = np.flatnonzero(_more_than_chance(own, extra, step) & at_times), "intermittent"
            rows += [Late(members[i], pattern, own[i], own[i]) for i in chosen]  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: row.index)


def _in_most_steps(found: Lateness, median: float, in_a_step: float) -> Mask:
    late: Mask = np.mean(found.delays > in_a_step, axis=1) >= MOST_STEPS
    return late & (np.median(found.delays, axis=1) > median) & (found.holds_up > median)


def _more_than_chance(late: Mask, extra: npt.NDArray[np.float64], step: float) -> Mask:
    """Which of a role's ranks are late so often that it costs something, and more often than accidents would explain
    that happen to its peers as well."""
    from scipy.special import bdtrc  # scipy.stats takes a second to import

    count, steps = late.sum(axis=1), late.shape[1]
    usual = int(np.sort(count)[(len(count) - 1) // 3])  # of three ranks two may be culprits
    by_chance = bdtrc(count - 1, steps, min((usual + 0.5) / steps, 1.0))
    costs = extra.sum(axis=1) > _SMALLEST_COST * step * steps
    some = (count >= FEWEST_LATE) & (count < MOST_STEPS * steps) & ((count >= _MANY_LATE) | _alike(late, extra))
    found: Mask = some & (by_chance < _CHANCE) & costs
    return found


def _alike(late: Mask, extra: npt.NDArray[np.float64]) -> Mask:
    """Whose delays are all of one order, as one reason makes them; what the machine does to a rank differs widely."""
    smallest = np.where(late, extra, np.inf).min(axis=1)
    alike: Mask = extra.max(axis=1) <= _OF_ONE_ORDER * smallest
    return alike


def _take_turns(late: Mask, extra: npt.NDArray[np.float64], step: float) -> bool:
    """Whether a role's ranks are late one after the other: in most steps, or at regular intervals."""
    ranks, steps = late.sum(axis=0), late.shape[1]
    at = np.flatnonzero(ranks)
    several = int(np.count_nonzero(late.any(axis=1)))
    if several < 2 or len(at) < max(FEWEST_LATE, several) or np.mean(ranks[at] == 1) < _APART:
        return False
    amounts = [float(np.median(extra[rank, late[rank]])) for rank in np.flatnonzero(late.any(axis=1))]
    if extra.sum() < _SMALLEST_COST * step * steps or max(amounts) > _ALIKE * min(amounts):
        return False
    turns = np.diff(late[:, at].argmax(axis=0))
    gaps = np.diff(at)
    even = np.mean(gaps == np.median(gaps)) >= _EVEN and np.mean(turns != 0) >= _EVEN
    covered = len(at) >= MOST_STEPS * steps and late.sum(axis=1).max() <= MOST_STEPS * len(at) + 1
    return bool(covered or (even and len(at) > FEWEST_LATE))
