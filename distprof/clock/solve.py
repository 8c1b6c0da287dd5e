"""What causality alone tells of the clocks.

Each clock deviates from the reference by a straight line. From what is known of the clocks follows, for every meeting,
between which moments of the reference it took place; and from that, for every clock that was there, what its deviation
can be. So knowledge spreads from the reference, meeting by meeting, until nothing is added. It grows with the number of
moments and not of pairs of ranks, and holds whatever was left out.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distprof.clock.evidence import Evidence
from distprof.clock.hull import Ceiling, Corridor, Floats, corridor

Points = tuple[Floats, Floats, Floats, Floats]  # x and y of those above, x and y of those below

# What a further round brings is not worth it below this.
_LEAST_GAIN = 0.02
_MOST_ROUNDS = 100  # more than there are hosts in a chain, and a limit all the same

_NOTHING = np.empty(0)
_UNKNOWN = Corridor(Ceiling(_NOTHING, _NOTHING, 0.0, 0.0), Ceiling(_NOTHING, _NOTHING, 0.0, 0.0))
_REFERENCE = Corridor(
    Ceiling(np.zeros(1), np.zeros(1), 0.0, 0.0),
    Ceiling(np.zeros(1), np.zeros(1), 0.0, 0.0),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A clock that no straight line fits: it was set, or it ran at another rate.

    Attributes:
        first, last: between these moments, in ns since its first record.
        by: ns that it went ahead (or back), as far as both sides of it tell; else None.
    """

    first: float
    last: float
    by: float | None


@dataclass(frozen=True, slots=True)
class Solution:
    """What is known of the clocks, by their places in `Evidence.dials`.

    Attributes:
        corridors: of each clock's deviation over its own time since its first record, both in ns.
        steps: of those whose evidence contradicts itself; of them nothing is known.
    """

    reference: int
    corridors: list[Corridor]
    steps: dict[int, Step]


@dataclass(frozen=True, slots=True)
class _Side:
    """The moments of one side of all meetings: which clock, when (ns since its first record), in which meeting.

    `of_clock` are the places of each clock's moments, `firsts` where in order each meeting begins.
    """

    time: Floats
    meeting: npt.NDArray[np.int64]
    of_clock: list[npt.NDArray[np.int64]]
    firsts: npt.NDArray[np.int64]


def solve(evidence: Evidence, reference: int) -> Solution:
    """Find the corridor of each clock against the `reference`."""
    before, after = _sides(evidence)
    clocks = range(len(evidence.dials))
    spans = (evidence.spans[:, 1] - evidence.spans[:, 0]).astype(np.float64)
    corridors = [_UNKNOWN for _ in clocks]
    corridors[reference] = _REFERENCE
    steps: dict[int, Step] = {}
    widths = np.full(len(clocks), np.inf)
    for _ in range(_MOST_ROUNDS):
        # No meeting was before the latest of its starts, nor after the earliest of its ends.
        not_before = _each(before, lambda clock, time: time - corridors[clock].most(time))
        not_after = _each(after, lambda clock, time: time - corridors[clock].least(time))
        earliest = np.maximum.reduceat(not_before, before.firsts) if len(not_before) else _NOTHING
        latest = np.minimum.reduceat(not_after, after.firsts) if len(not_after) else _NOTHING
        for clock in clocks:
            if clock == reference or clock in steps:
                continue
            points = _points(before, after, clock, earliest, latest)
            found = corridor(*points)
            if found is None:
                steps[clock] = _step(*points)
            corridors[clock] = found or _UNKNOWN
        last, widths = widths, np.array([_width(corridors[clock], spans[clock]) for clock in clocks])
        known = np.isfinite(widths)
        if np.array_equal(known, np.isfinite(last)) and np.all(widths[known] >= (1 - _LEAST_GAIN) * last[known]):
            break
    return Solution(reference, corridors, steps)


def _sides(evidence: Evidence) -> tuple[_Side, _Side]:
    sides = []
    meetings = evidence.before["meeting"].unique().sort()
    for table in (evidence.before, evidence.after):
        clock = table["clock"].to_numpy()
        meeting = np.searchsorted(meetings.to_numpy(), table["meeting"].to_numpy())
        by_clock = np.argsort(clock, kind="stable")
        edges = np.searchsorted(clock[by_clock], np.arange(len(evidence.dials) + 1))
        sides.append(
            _Side(
                time=(table["time"].to_numpy() - evidence.spans[clock, 0]).astype(np.float64),
                meeting=meeting,
                of_clock=[by_clock[first:last] for first, last in itertools.pairwise(edges)],
                firsts=np.searchsorted(meeting, np.arange(len(meetings))),
            )
        )
    return sides[0], sides[1]


def _each(side: _Side, moment: Callable[[int, Floats], Floats]) -> Floats:
    """`moment(clock, times)` of all of a side's moments, clock by clock."""
    result = np.empty(len(side.time))
    for clock, places in enumerate(side.of_clock):
        result[places] = moment(clock, side.time[places])
    return result


def _points(before: _Side, after: _Side, clock: int, earliest: Floats, latest: Floats) -> Points:
    """The points that a clock's deviation passes under, and those that it passes over.

    What a clock read when a meeting was over, less the earliest that this can have been, is the most that it was ahead.
    """
    ended, started = after.of_clock[clock], before.of_clock[clock]
    over = after.time[ended] - earliest[after.meeting[ended]]
    under = before.time[started] - latest[before.meeting[started]]
    above, below = np.isfinite(over), np.isfinite(under)
    return after.time[ended][above], over[above], before.time[started][below], under[below]


def _width(found: Corridor, span: float) -> float:
    """How wide a corridor is where it is widest."""
    edges = np.array([0.0, span])
    return float(np.max(found.most(edges) - found.least(edges)))


def _step(x_over: Floats, y_over: Floats, x_under: Floats, y_under: Floats) -> Step:
    """Where points contradict each other: after the longest end of them that does not, before the longest beginning."""
    times = np.unique(np.concatenate([x_over, x_under]))

    def part(first: float, last: float) -> Corridor | None:
        above, below = ((x >= first) & (x <= last) for x in (x_over, x_under))
        return corridor(x_over[above], y_over[above], x_under[below], y_under[below])

    # bisect wants a sequence that ascends: from parts that fit to parts that do not.
    until = bisect.bisect_left(times, True, key=lambda last: part(times[0], last) is None)
    ago = bisect.bisect_left(times[::-1], True, key=lambda first: part(first, times[-1]) is None)
    first, last = float(times[::-1][ago]), float(times[until])
    earlier, later = part(times[0], np.nextafter(last, -np.inf)), part(np.nextafter(first, np.inf), times[-1])
    by = None
    if earlier is not None and later is not None:
        at = np.array([(first + last) / 2])
        with np.errstate(invalid="ignore"):  # infinite where a part is open: then it is not known
            by = float((later.most(at) + later.least(at) - earlier.most(at) - earlier.least(at))[0] / 2)
        # Set once, it reads at most what it was set back by for a second time.
        by = by if first - last <= max(0.0, -1.1 * by) else None
    return Step(min(first, last), max(first, last), by if by is not None and np.isfinite(by) else None)
