"""How much longer than is usual for its role each rank took in each step, by its own time (net of waits).

What is usual is decided once for the whole run and not step by step. In each step the lower median over a role's ranks
is taken out of them all, as what they have in common. What is left of a rank has a *level*, which three of five steps
reach. Usual is the lower median of the levels, which is what at least half of the ranks do. Of eight ranks, then, up to
four culprits are all seen as late, and of two ranks the slower one; should most ranks be slow, slow is what is usual.
Levels stand on many steps and hardly differ among healthy ranks, so taking a low one of them as usual makes nobody
late; a low one of each single step's times would, as in each step somebody is fast by chance.

Where culprits lose their time in different places, most ranks may be late in all and none in most: of three ranks one
in forward, another one in backward. So usual is also sought place by place, and the sum holds if it is less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from distprof.analyze.distributions import student_quantile

Floats = npt.NDArray[np.float64]

SMALLEST_SHARE = 0.05  # of the step: below that nobody is named, however steady it is
MOST_STEPS = 0.6  # of the steps must show a delay for it to be persistent
_CONFIDENCE = 0.99865  # of three standard deviations
_CHANCE = 0.05  # that in a healthy run any step of any rank counts as late
_TWO = 2
_ENOUGH = 16  # steps, to tell what is usual from them
_NEIGHBOURS = 8  # ranks that each is compared with to see how much they differ by chance


@dataclass(frozen=True, slots=True)
class Lateness:
    """Times in ns; R ranks, S steps.

    Attributes:
        delays: own time less what is usual, shape (R, S).
        holds_up: per rank, how much longer than the fastest of its peers it takes in most steps, shape (R,).
        noise_of_median: what a healthy rank's median delay may be by chance, or a share of the step if that is more.
        noise_of_a_step: the same of its delay in a single step.
        late: by more than that, shape (R, S). A step that takes all ranks longer may be noisier as much.
        extra: how much longer than is usual for its role it took in each of P places, shape (R, S, P).
        usual: what a step takes there, shape (R, P).
    """

    delays: Floats
    holds_up: Floats
    noise_of_median: float
    noise_of_a_step: float
    late: npt.NDArray[np.bool_]
    extra: Floats
    usual: Floats

    @property
    def noise(self) -> float:
        """What a delay per step must exceed."""
        return min(self.noise_of_median, self.noise_of_a_step)


def lateness(times: Floats, roles: list[list[int]], step: float) -> Lateness:
    """Judge times of all ranks against their peers'.

    Args:
        times: own time by rank, step and place, in ns; shape (R, S, P).
        roles: ranks by their role, as indices; a rank in none of them is late in no step.
        step: what a step takes, in ns.
    """
    total = times.sum(axis=2)
    delays, holds_up, longer = np.zeros(total.shape), np.zeros(len(total)), np.ones(total.shape)
    extra, usual_there = np.zeros(times.shape), np.zeros((len(times), times.shape[2]))
    noise = of_a_step = SMALLEST_SHARE * step
    for members in roles:
        if len(members) > 1:
            excess, levels = _levels(total[members])
            by_chance = max(_noise(total[members], excess, levels), SMALLEST_SHARE * step)
            in_a_step = max(_noise_of_a_step(total[members]), SMALLEST_SHARE * step)
            noise, of_a_step = max(noise, by_chance), max(of_a_step, in_a_step)
            usual = excess - _usual(levels, times[members], by_chance)
            extra[members] = _by_place(times[members])
            usual_there[members] = lower_median(np.median(times[members], axis=1))
            elsewhere = _in_other_places(extra[members], total[members], in_a_step)
            delays[members] = np.maximum(usual, elsewhere) if len(members) > _TWO else usual
            holds_up[members] = levels - levels.min()
            common = lower_median(total[members])
            longer[members] = np.maximum(1.0, common / max(float(np.median(common)), 1.0))
    late = delays > of_a_step * longer
    return Lateness(delays, holds_up, noise, of_a_step, late=late, extra=extra, usual=usual_there)


def against_usual(values: npt.NDArray[np.int64], roles: list[list[int]]) -> Floats:
    """Each rank's values less what is usual for its role, see the module; both of shape (R, S)."""
    result = np.zeros(values.shape, dtype=np.float64)
    for members in roles:
        if len(members) > 1:
            excess, levels = _levels(values[members].astype(np.float64))
            result[members] = excess - lower_median(levels)
    return result


def lower_median(values: Floats) -> Floats:
    """The lower median along the first axis."""
    middle: Floats = np.partition(values, (len(values) - 1) // 2, axis=0)[(len(values) - 1) // 2]
    return middle


def _levels(values: Floats) -> tuple[Floats, Floats]:
    """Values of one role, shape (n, S), without what its ranks have in common; and each rank's level in them."""
    level = np.zeros(len(values))
    for _ in range(3):  # the levels tell better what is common, and the other way round
        excess = values - lower_median(values - level[:, None])
        level = _level(excess)
    return excess, level


def _level(values: Floats) -> Floats:
    """What three of five steps reach: a rank that is late in fewer has the level of the others. Along the last axis."""
    place = min(int((1 - MOST_STEPS) * values.shape[-1]), values.shape[-1] - 1)
    level: Floats = np.partition(values, place, axis=-1)[..., place]
    return level


def _usual(levels: Floats, times: Floats, noise: float) -> float:
    """What is usual for a role, on the scale of its ranks' `levels`; `times` are theirs, shape (n, S, P)."""
    usual = float(lower_median(levels))
    if len(levels) > _TWO:  # of two ranks each could be called the slow one, in one place or the other
        by_place = _level(times.transpose(0, 2, 1))
        extra = by_place - lower_median(by_place)
        extra[np.abs(extra) < noise] = 0.0
        usual_there = float(np.median(levels - extra.sum(axis=1)))
        if usual - usual_there > noise:
            return usual_there
    return usual


def _by_place(times: Floats) -> Floats:
    """What each of a role's ranks took longer than is usual, in each step and place; shape (n, S, P)."""
    extra = np.empty(times.shape)
    for place in range(times.shape[2]):
        excess, levels = _levels(times[:, :, place])
        extra[:, :, place] = excess - lower_median(levels)
    return extra


def _in_other_places(extra: Floats, total: Floats, noise: float) -> Floats:
    """What each of a role's ranks lost in each step in places in which most others lost nothing, shape (n, S).

    It counts as far as some peer was faster by that much in the whole step.

    Args:
        extra: see `_by_place`.
        total: own time of all places, shape (n, S).
    """
    lost = np.where(np.abs(extra) > noise, extra, 0.0).sum(axis=2)
    return np.where(lost > noise, np.minimum(lost, total - total.min(axis=0)), -np.inf)


def _noise(values: Floats, excess: Floats, levels: Floats) -> float:
    """What a healthy rank's level may differ by.

    Three standard errors of the median difference between the noisiest rank and the usual one, by Student's
    distribution: a spread that was seen in few steps may be far too small. It is at least what all ranks show together.
    """
    usual = int(np.argmin(np.abs(np.median(excess, axis=1) - lower_median(levels))))
    differences = values - values[usual]
    middle = np.median(differences, axis=1, keepdims=True)
    deviation = 1.4826 * float(np.median(np.abs(differences - middle), axis=1).max())
    deviation = max(deviation, 2**0.5 * _spread(values))
    steps = values.shape[1]
    return float(student_quantile(max(steps - 1, 1), _CONFIDENCE) * 1.2533 * deviation / np.sqrt(steps))


def _noise_of_a_step(values: Floats) -> float:
    """What a healthy rank's delay in one step may be, so that hardly any of all steps exceeds it."""
    ranks, steps = values.shape
    spread = _spread(values)
    if ranks > _TWO and steps >= _ENOUGH:
        # Where each step has a late rank, hardly two are alike; what the others differ by from the usual tells more.
        by_usual = _quarter(values) / _quarter_of_normal(min(ranks, _NEIGHBOURS))
        spread = min(spread, by_usual * (1 + _ENOUGH / (2 * steps)))
    # A delay is what a rank differs by from one other rank or, of more, from what is usual for them.
    freedom = max((ranks - 1) * (steps - 1), 1)
    several = student_quantile(freedom, 1 - _CHANCE / values.size) * (2**0.5 if ranks == _TWO else 1.25)
    # Late steps make the spread seem larger, so those that clearly may be some are left out once.
    excess, levels = _levels(values)
    clear = excess - levels[:, None] > several * spread / 2
    if steps >= _ENOUGH and np.mean(clear.any(axis=0)) < 1 - MOST_STEPS:
        spread = min(spread, 1.05 * _spread(np.where(clear, np.nan, values)))
    return several * spread


def _spread(values: Floats) -> float:
    """A rank's standard deviation from step to step beyond what all ranks have in common; NaN does not count.

    It is that of the most alike. Of what two ranks differ by in one step and in another one, a quarter is less than
    0.64 standard deviations; that stays about what it is when some ranks are late.
    """
    ranks, steps = values.shape
    if steps < _TWO:
        return 0.0
    apart = np.concatenate([values[shift:] - values[:-shift] for shift in range(1, min(ranks, _NEIGHBOURS + 1))])
    changes = [np.abs(apart[:, shift:] - apart[:, :-shift]) for shift in range(1, min(steps, _NEIGHBOURS + 1))]
    return float(np.nanquantile(np.concatenate(changes, axis=1), 0.25)) / 0.6373


def _quarter(values: Floats) -> float:
    """A quarter of ranks and steps differ by less from the usual rank, which itself does not count."""
    excess, levels = _levels(values)
    return float(np.quantile(np.sort(np.abs(excess - levels[:, None]), axis=0)[1:], 0.25))


@cache
def _quarter_of_normal(ranks: int) -> float:
    """The same of ranks that differ by chance alone, in standard deviations."""
    return _quarter(np.random.default_rng(0).standard_normal((ranks, 2000)))
