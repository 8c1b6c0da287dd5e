"""When ranks are late: in most steps, in some, or taking turns; and which of it is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp, lgamma
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distprof.analyze.lateness import MOST_STEPS, Floats, Lateness
from distprof.analyze.stretches import Mask, come_in_stretches, spread, stretches, together

Pattern = Literal["persistent", "intermittent", "rotating"]

FEWEST_LATE = 3  # late steps: once or twice is an accident
_MANY_LATE = 6  # late steps; fewer must be alike
_RANGE = 0.3  # of their median that delays which are alike may differ by, beside the noise
_FEW = 0.1  # of many at either end may differ by more
_SAME_PLACE = 0.8  # of the late steps lost the most in one place, if one reason makes them
# Over all steps, late steps must cost more than accidents of the peers: by so much of a step, and of a step's noise, as
# on a noisy machine one rank has more of them than another.
_SMALLEST_COST = 0.01
_COST_OF_ACCIDENTS = 0.2
# That a rank which has accidents as its peers have them is late as often: if one reason seems to make them, and if not.
_CHANCE = 0.03
_CHANCE_FOR_MANY = 0.005
_AS_LONG = 0.5  # of delays that are alike, accidents that could be taken for them
_OUTSTANDING = 2.0  # times what any rank's late steps cost which are accidents; else more than one rank has many
_APART = 0.9  # of the late steps have one late rank where ranks take turns
_ALIKE = 2.0  # times the smallest amount the largest may be where ranks take turns
_TURNS = 1 / 3  # of these steps follow on another rank's, unless what is longer has one reason
_A_MOMENT_NS = 250e6  # a busy core is shared for so long without a change
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


@dataclass(frozen=True, slots=True)
class _Reason:
    """What a rank's late steps look like.

    Attributes:
        is_one: as if one reason made them.
        lasts: so clearly that as many steps in a row are no single accident.
        shared: as if other programs used its core: everything takes longer in proportion.
        exact: in one place and so alike that ranks which take cores from each other do not make it.
    """

    is_one: bool
    lasts: bool
    shared: bool
    exact: bool


def late_ranks(found: Lateness, roles: list[list[int]], step: float, crowded: Mask | None = None) -> list[Late]:
    """Those of the ranks that are late in a way that is not chance, by index.

    Args:
        found: the delays of R ranks.
        roles: ranks by their role, as indices.
        step: a step's length, in ns.
        crowded: which ranks share cores, which hold up now one of them and now another, shape (R,); None: none.
    """
    delays = found.delays
    persistent = _in_most(found)
    everywhere = np.ones(delays.shape[1], dtype=np.bool_)
    rows = [Late(int(i), "persistent", delays[i] > found.noise, everywhere) for i in np.flatnonzero(persistent)]
    late = found.late & ~persistent[:, None]
    for members in roles:
        if len(members) > 1:
            own, extra = late[members], np.where(late[members], delays[members], 0.0)
            others = [place for place, rank in enumerate(members) if not persistent[rank]]
            reasons = [_reason(own[place], found, rank) for place, rank in enumerate(members)]
            if _take_turns(own, extra, step, reasons):
                chosen, pattern = np.flatnonzero(own.any(axis=1)), "rotating"
            else:
                at_times = np.median(np.where(own, 0.0, delays[members]), axis=1) < found.noise_of_a_step / 2
                often = _more_than_chance(own, extra, others, reasons)
                if crowded is not None:
                    often &= ~crowded[members] | [reason.exact for reason in reasons]
                smallest = max(_SMALLEST_COST * step, _COST_OF_ACCIDENTS * found.noise_of_a_step)
                costs = extra.sum(axis=1)
                beyond = _beyond_accidents(costs, others) > smallest * own.shape[1]
                chosen, pattern = np.flatnonzero(_outstanding(costs, others, often & beyond & at_times)), "intermittent"
            rows += [Late(members[i], pattern, own[i], own[i]) for i in chosen]  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: row.index)


def for_a_while(found: Lateness, late: Late, step: float) -> bool:
    """Whether it is late at times, or in most steps but in stretches, and everything takes longer in proportion then:
    as on a core that other programs use for a while. All steps are one stretch if they are over in a moment.

    Args:
        step: what a step takes, in ns.
    """
    in_stretches = come_in_stretches(late.steps) or step * len(late.steps) < _A_MOMENT_NS
    at_times = late.pattern == "intermittent" or (late.pattern == "persistent" and in_stretches)
    return at_times and in_proportion(found, late)


def in_proportion(found: Lateness, late: Late) -> bool:
    """Whether all that the rank does takes longer by one factor in its late steps."""
    extra, usual = found.extra[late.index, late.steps], found.usual[late.index]
    return spread(extra, usual, found.noise_of_a_step) == "in proportion"


def in_a_row(found: Lateness) -> Mask:
    """Which ranks are late in some steps only, which follow on each other; that may have happened once."""
    some = found.late.sum(axis=1)
    few: Mask = (some >= FEWEST_LATE) & (some < MOST_STEPS * found.late.shape[1])
    few &= [come_in_stretches(of_rank) for of_rank in found.late]
    return few


def _in_most(found: Lateness) -> Mask:
    """Which ranks are late in most steps by more than chance."""
    persistent: Mask = _in_most_steps(found, found.noise_of_median, found.noise_of_median / 2)
    # Where steps are few or a culprit's differ, its median may tell little, and yet each be more than chance by itself.
    in_each = _in_most_steps(found, found.noise_of_a_step, found.noise_of_a_step)
    persistent |= in_each & (np.sum(found.delays > found.noise_of_a_step, axis=1) >= FEWEST_LATE)
    return persistent


def _in_most_steps(found: Lateness, median: float, in_a_step: float) -> Mask:
    late: Mask = np.mean(found.delays > in_a_step, axis=1) >= MOST_STEPS
    return late & (np.median(found.delays, axis=1) > median) & (found.holds_up > median)


def _more_than_chance(late: Mask, extra: Floats, others: list[int], reasons: list[_Reason]) -> Mask:
    """Which of a role's ranks are late more often than accidents would explain that happen to its peers as well.

    Args:
        late: shape (n, S).
        extra: how long late steps are too long, shape (n, S).
        others: the places of those that are not late in most steps, which have accidents of their own.
        reasons: of all ranks.
    """
    count, steps = late.sum(axis=1), late.shape[1]
    found = np.zeros(len(late), dtype=np.bool_)
    for rank in others:
        reason = reasons[rank]
        # What takes alike long each time is no accident of another size.
        size = _AS_LONG * float(np.median(extra[rank, late[rank]])) if reason.exact else 0.0
        innocent = _innocent((late & (extra >= size)).sum(axis=1), rank, others)
        if not len(innocent):
            continue  # nobody's accidents to hold its late steps against
        # What lasts for some steps is one accident, unless it has one reason.
        at_once = 1.0 if reason.lasts else together(late[rank])
        apart = count[rank] if reason.lasts else stretches(late[rank])
        fewest = FEWEST_LATE if reason.is_one else _MANY_LATE
        if fewest <= count[rank] < MOST_STEPS * steps and apart >= FEWEST_LATE:
            # Accidents happen to one rank more often than to another, so that many tell no more than one does.
            worth = 1.0 if reason.lasts else at_once * (1.0 + float(innocent.sum()))
            seen, among = float(innocent.sum()) / worth, len(innocent) * steps / worth
            by_chance = _by_accident(int(count[rank] / at_once), round(steps / at_once), seen, among)
            chance = _CHANCE if reason.is_one else _CHANCE_FOR_MANY
            found[rank] = by_chance < chance / len(innocent)  # it could have happened to each of them
    return found


def _innocent(of_each: npt.NDArray[Any], rank: int, others: list[int]) -> npt.NDArray[Any]:
    """What accidents come to for each peer, ascending. One more may be late, unless that is known of some already."""
    peers = np.sort(of_each[[other for other in others if other != rank]])
    return peers if len(others) < len(of_each) else peers[: max(1, len(peers) - 1)]


def _beyond_accidents(costs: Floats, others: list[int]) -> Floats:
    """What the late steps of each of `others` cost beyond the accidents of its peers; shape (n,)."""
    beyond = np.zeros(len(costs))
    for rank in others:
        innocent = _innocent(costs, rank, others)
        beyond[rank] = costs[rank] - (innocent.mean() if len(innocent) else 0.0)
    return beyond


def _outstanding(costs: Floats, others: list[int], late: Mask) -> Mask:
    """Which of those that may be late cost clearly more than each of `others` that is not."""
    while True:
        accidents = max((costs[rank] for rank in others if not late[rank]), default=0.0)
        outstanding: Mask = late & (costs >= _OUTSTANDING * accidents)
        if outstanding.sum() == late.sum():
            return outstanding
        late = outstanding


def _by_accident(count: int, steps: int, seen: float, among: float) -> float:
    """How likely at least `count` accidents are in so many steps, if `seen` happened in `among` steps of others."""
    happened, did_not = seen + 0.5, among - seen + 0.5

    def log_beta(a: float, b: float) -> float:
        return lgamma(a) + lgamma(b) - lgamma(a + b)

    return sum(
        comb(steps, x) * exp(log_beta(x + happened, steps - x + did_not) - log_beta(happened, did_not))
        for x in range(count, steps + 1)
    )


def _reason(late: Mask, found: Lateness, rank: int) -> _Reason:
    """What one reason makes is in one place and, where it is seldom, about as long. What the machine does to a rank
    meets it anywhere and differs widely; while its core is shared, all that it does takes longer in proportion."""
    if not late.any():
        return _Reason(is_one=False, lasts=False, shared=False, exact=False)
    delays, extra = found.delays[rank, late], found.extra[rank, late]
    many = len(delays) >= _MANY_LATE
    low, high = np.quantile(delays, (_FEW, 1 - _FEW) if many else (0, 1))
    beyond_range = high - low - _RANGE * float(np.median(delays))
    alike = bool(beyond_range <= found.noise_of_a_step)
    in_one = bool(np.bincount(extra.argmax(axis=1)).max() >= _SAME_PLACE * len(delays))
    where = spread(extra, found.usual[rank], found.noise_of_a_step)
    return _Reason(
        is_one=in_one and (alike or (many and where == "one place")),
        lasts=in_one and alike and where is not None,
        shared=where == "in proportion",
        exact=in_one and bool(beyond_range <= 0),
    )


def _take_turns(late: Mask, extra: Floats, step: float, reasons: list[_Reason]) -> bool:
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
    lasts = all(
        reason.lasts and not reason.shared for reason, of_rank in zip(reasons, late, strict=True) if of_rank.any()
    )
    if not lasts and np.mean(turns != 0) < _TURNS:
        return False
    covered = len(at) >= MOST_STEPS * steps and late.sum(axis=1).max() <= MOST_STEPS * len(at) + 1
    return bool(covered or (even and len(at) > FEWEST_LATE))
