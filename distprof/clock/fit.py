"""The line that is believed of each clock, and what it may be wrong by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distprof.clock.ends import Line, lines
from distprof.clock.evidence import Evidence
from distprof.clock.solve import Solution, Step, solve


@dataclass(frozen=True, slots=True)
class Fit:
    """A clock against the reference: its line, and in ns what that may be wrong by; None: not known."""

    line: Line
    bound: float | None
    error: float | None


@dataclass(frozen=True, slots=True)
class Fits:
    """The clocks that could be aligned, by their places, and those that no straight line fits."""

    reference: int
    of: dict[int, Fit]
    steps: dict[int, Step]


def fit_clocks(
    evidence: Evidence, of_rank: Mapping[int, int], *, shared: bool = False, guesses: Mapping[int, Line] | None = None
) -> Fits:
    """Align the clocks that ranks read, or their devices', with that of the first of them.

    Args:
        shared: there is but one.
        guesses: lines for clocks on which no collectives ended; nothing is claimed of them.
    """
    clocks = list(dict.fromkeys(of_rank.values()))
    same = Fit(Line(0.0, 0.0, 0.0), 0.0, 0.0)
    if shared or not clocks:
        return Fits(clocks[0] if clocks else -1, dict.fromkeys(clocks[:1], same), {})
    solution = solve(evidence, clocks[0])
    contradicted = [clock for clock in clocks if clock in solution.steps]
    if len(clocks) > 2 and 2 * len(contradicted) >= len(clocks):
        # Where most clocks contradict the reference it is rather the reference that was set.
        other = solve(evidence, contradicted[0])
        solution = min(solution, other, key=lambda found: len(set(clocks).intersection(found.steps)))
    by_ends = lines(evidence, solution.reference, without=solution.steps)
    of = {clock: _fit(evidence, clock, solution, by_ends.get(clock), (guesses or {}).get(clock)) for clock in clocks}
    fits = {clock: fit for clock, fit in of.items() if fit is not None}
    steps = {clock: step for clock, step in solution.steps.items() if clock in clocks}
    return Fits(solution.reference, {**fits, solution.reference: same}, steps)


def _fit(evidence: Evidence, clock: int, solution: Solution, by_ends: Line | None, guess: Line | None) -> Fit | None:
    """The line that is likely the least wrong: by the ends, or the middle of the corridor where that is narrower."""
    if clock in solution.steps:
        return None
    corridor, span = solution.corridors[clock], float(evidence.spans[clock, 1] - evidence.spans[clock, 0])
    edges = np.array([0.0, span])
    most, least = corridor.most(edges), corridor.least(edges)
    bounded = bool(np.all(np.isfinite(most - least)))
    line = by_ends or guess
    narrow = corridor.narrowest(span) if bounded else 0.0
    if line is not None and not (bounded and line.error >= np.max(most - least) / 2):
        # Where causality tells the most, it has the last word.
        ahead = np.array([line.at_start, line.at_end])
        there = np.interp([narrow], edges, ahead)
        ahead += np.clip(there, corridor.least(np.array([narrow])), corridor.most(np.array([narrow]))) - there
    elif bounded:
        height, slope = corridor.middle(narrow)
        ahead = height + slope * (edges - narrow)
    else:
        return None
    # The walls of the corridor bend away from a line, which is the farthest from them at an edge.
    bound = float(np.max(np.maximum(most - ahead, ahead - least))) if bounded else None
    error = None if by_ends is None else by_ends.error if bound is None else min(by_ends.error, bound)
    return Fit(Line(float(ahead[0]), float(ahead[1]), error or 0.0), bound, error)
