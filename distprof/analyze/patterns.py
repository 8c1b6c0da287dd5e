"""When ranks are late: in most steps, in some, or taking turns; and which of it is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp, lgamma
from typing import Literal

import numpy as np
import numpy.typing as npt

from distprof.analyze.lateness import MOST_STEPS, Lateness

Pattern = Literal["persistent", "intermittent", "rotating"]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
# What makes a rank late: one reason; something in one place, by different times; or whatever it may be.
_Reason = Literal["one", "place", "any"]

FEWEST_LATE = 3  # late steps: once or twice is an accident
_MANY_LATE = 6  # late steps; fewer must be alike
_RANGE = 0.3  # of their median that delays which are alike may differ by, beside the noise
_FEW_DIFFER = 0.0  # of them at either end may differ more
_SAME_PLACE = 0.8  # of the late steps lost the most in one place, if one reason makes them
_IN_PROPORTION = 0.5  # of what is lost elsewhere if everything takes longer by one factor
_SMALLEST_COST = 0.01  # of all steps' time
# That a rank which has accidents as its peers have them is late as often: if one reason seems to make them, and if not.
_CHANCE = 0.03
_CHANCE_FOR_MANY = 0.005
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
            others = [place for place, rank in enumerate(members) if not persistent[rank]]
            if _take_turns(own, extra, step):
                chosen, pattern = np.flatnonzero(own.any(axis=1)), "rotating"
            else:
                at_times = np.median(np.where(own, 0.0, delays[members]), axis=1) < found.noise_of_a_step / 2
                reasons = _reasons(own, extra, found.extra[members], found.usual[members], found.noise_of_a_step)
                often = _more_than_chance(own, others, reasons)
                costs = extra.sum(axis=1) > _SMALLEST_COST * step * own.shape[1]
                chosen, pattern = np.flatnonzero(often & costs & at_times), "intermittent"
            rows += [Late(members[i], pattern, own[i], own[i]) for i in chosen]  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: row.index)


def _in_most_steps(found: Lateness, median: float, in_a_step: float) -> Mask:
    late: Mask = np.mean(found.delays > in_a_step, axis=1) >= MOST_STEPS
    return late & (np.median(found.delays, axis=1) > median) & (found.holds_up > median)


def _more_than_chance(late: Mask, others: list[int], reasons: list[_Reason]) -> Mask:
    """Which of a role's ranks are late more often than accidents would explain that happen to its peers as well.

    Args:
        late: shape (n, S).
        others: the places of those that are not late in most steps, which have accidents of their own.
        reasons: what makes each of them late.
    """
    count, steps = late.sum(axis=1), late.shape[1]
    found = np.zeros(len(late), dtype=np.bool_)
    for rank in others:
        peers = np.sort(count[[other for other in others if other != rank]])
        if not len(peers):
            continue  # nobody's accidents to hold its late steps against
        reason = reasons[rank]
        if FEWEST_LATE <= count[rank] < MOST_STEPS * steps and (reason == "one" or count[rank] >= _MANY_LATE):
            # Another one may be late, too, unless that is known of one already.
            innocent = peers if len(others) < len(late) else peers[: max(1, len(peers) - 1)]
            # What lasts for some steps and is not one reason's is one accident.
            together = 1.0 if reason == "one" else _together(late[rank])
            if count[rank] < FEWEST_LATE * together:
                continue
            by_chance = _by_accident(
                int(count[rank] / together),
                round(steps / together),
                float(innocent.sum()) / together,
                len(innocent) * steps / together,
            )
            chance = _CHANCE_FOR_MANY if reason == "any" else _CHANCE
            found[rank] = by_chance < chance / len(innocent)  # it could have happened to each of them
    return found


def _together(late: Mask) -> float:
    """How many late steps of a rank, shape (S,), come of one accident: what their number's variance is larger by than
    that of as many which do not depend on each other."""
    away = late - late.mean()
    correlation = np.correlate(away, away, "full")[len(late) - 1 :] / np.dot(away, away)
    # Of lags taken two by two the sums fall off to zero; beyond that they are chance.
    pairs = correlation[: len(late) // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)]
    return max(1.0, 2.0 * float(positive.sum()) - 1.0)


def _by_accident(count: int, steps: int, seen: float, among: float) -> float:
    """How likely at least `count` accidents are in so many steps, if `seen` happened in `among` steps of others."""
    happened, did_not = seen + 0.5, among - seen + 0.5

    def log_beta(a: float, b: float) -> float:
        return lgamma(a) + lgamma(b) - lgamma(a + b)

    return sum(
        comb(steps, x) * exp(log_beta(x + happened, steps - x + did_not) - log_beta(happened, did_not))
        for x in range(count, steps + 1)
    )


def _reasons(late: Mask, delays: Floats, extra: Floats, usual: Floats, noise: float) -> list[_Reason]:
    """What makes each of a role's ranks late.

    One reason's delays are in one place and about as long. The machine meets a rank anywhere and for as long as others
    want its core; while they do, all that the rank does takes longer in proportion.

    Args:
        late, delays: shape (n, S).
        extra: see `Lateness`, shape (n, S, P).
        usual: the same, shape (n, P).
        noise: what a delay in one step may be by chance.
    """
    found: list[_Reason] = []
    for rank in range(len(late)):
        if not late[rank].any():
            found.append("any")
            continue
        of_rank = delays[rank, late[rank]]
        low, high = np.quantile(of_rank, [_FEW_DIFFER, 1 - _FEW_DIFFER])
        alike = high - low <= _RANGE * np.median(of_rank) + noise
        in_one = _in_one_place(extra[rank, late[rank]], usual[rank])
        many = len(of_rank) >= _MANY_LATE
        found.append("one" if in_one and alike else "place" if in_one and many else "any")
    return found


def _in_one_place(extra: Floats, usual: Floats) -> bool:
    """Whether late steps lost the most in one place, shape (S, P), and elsewhere clearly less than what usually is done
    there, shape (P,), would take longer by the same factor."""
    places = np.bincount(extra.argmax(axis=1), minlength=extra.shape[1])
    place = int(places.argmax())
    if places[place] < _SAME_PLACE * len(extra):
        return False
    lost = extra.sum(axis=0)
    in_proportion = lost[place] * (usual.sum() - usual[place]) / max(float(usual[place]), 1.0)
    return bool(lost.sum() - lost[place] < _IN_PROPORTION * in_proportion)


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
