"""What is known of one clock: the corridor that its deviation, a straight line over time, runs in.

Each piece of evidence is a point over or under which the line must pass. Of the points above only their lower convex
hull matters, of those below their upper one; and all lines between the two hulls fill a corridor that is the hulls
themselves in the middle and the two steepest of these lines at the ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# A crystal is some 50 parts per million off, and Linux slews a clock by no more than 500. Without a limit, evidence of
# a single moment would tell nothing of any other.
MOST_DRIFT = 1e-3


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A convex broken line: `x` (ascending) and `y` of its corners, and its slopes beyond the first and the last."""

    x: Floats
    y: Floats
    before: float
    after: float

    def at(self, x: Floats) -> Floats:
        """Its height at each `x`; infinite where nothing is known."""
        if not len(self.x):
            return np.full(len(x), np.inf)
        beyond = self.before * np.minimum(x - self.x[0], 0.0) + self.after * np.maximum(x - self.x[-1], 0.0)
        height: Floats = np.interp(x, self.x, self.y) + beyond
        return height


@dataclass(frozen=True, slots=True)
class Corridor:
    """Between what heights a clock's deviation lies: under `ceiling`, and over the mirror image of `floor`."""

    ceiling: Ceiling
    floor: Ceiling

    def most(self, x: Floats) -> Floats:
        """The largest deviation that it may have at each `x`, in ns; infinite where evidence is lacking."""
        return self.ceiling.at(x)

    def least(self, x: Floats) -> Floats:
        """The smallest one."""
        return -self.floor.at(x)

    def narrowest(self, span: float) -> float:
        """Where, between 0 and `span`, it is narrowest."""
        x = np.clip(np.concatenate([[0.0, span], self.ceiling.x, self.floor.x]), 0.0, span)
        return float(x[np.argmin(self.most(x) - self.least(x))])

    def middle(self, x: float) -> tuple[float, float]:
        """A line inside it: its height at `x`, midway between the walls, and its slope, midway between the possible."""
        at = np.array([x])
        height = float((self.most(at) + self.least(at))[0]) / 2
        point = np.array([x]), np.array([height])
        below, above = (_slopes(self.ceiling.x, self.ceiling.y, *point), _slopes(*point, self.floor.x, -self.floor.y))
        least, most = (pick(below[which], above[which]) for which, pick in ((0, max), (1, min)))
        return height, (least + most) / 2


def corridor(x_over: Floats, y_over: Floats, x_under: Floats, y_under: Floats) -> Corridor | None:
    """The corridor of all lines that pass under the points `over` and over the points `under`.

    Returns:
        It, open where there are no points; None where no line does so, since the points contradict each other.
    """
    over, under = lower_hull(x_over, y_over), lower_hull(x_under, -y_under)
    x_over, y_over, x_under, y_under = x_over[over], y_over[over], x_under[under], y_under[under]
    run, rise = np.subtract.outer(x_over, x_under), np.subtract.outer(y_over, y_under)
    least, most = _slopes(x_over, y_over, x_under, y_under)
    if least > most or np.any(rise[run == 0] < 0):
        return None
    return Corridor(_bent(x_over, y_over, least, most), _bent(x_under, -y_under, -most, -least))


def lower_hull(x: Floats, y: Floats) -> Places:
    """Places of the corners of the points' lower convex hull, with `x` ascending."""
    if not len(x):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((y, x))
    lowest = order[np.append(True, np.diff(x[order]) > 0)]  # of points at one x
    corners = [0, len(lowest) - 1]
    px, py = x[lowest], y[lowest]
    todo = [(0, len(lowest) - 1)]
    while todo:  # between two corners the point that lies farthest below their chord is one
        left, right = todo.pop()
        if right - left < 2:
            continue
        slope = (py[right] - py[left]) / (px[right] - px[left])
        inside = slice(left + 1, right)
        below = py[inside] - py[left] - slope * (px[inside] - px[left])
        farthest = int(np.argmin(below))
        if below[farthest] < 0:
            corner = left + 1 + farthest
            corners.append(corner)
            todo += [(left, corner), (corner, right)]
    found: Places = lowest[np.unique(corners)]
    return found


def _slopes(x_over: Floats, y_over: Floats, x_under: Floats, y_under: Floats) -> tuple[float, float]:
    """The least and the most slope of a line between the points; of no line at all the least is more than the most."""
    run, rise = np.subtract.outer(x_over, x_under), np.subtract.outer(y_over, y_under)
    most = np.min(rise[run > 0] / run[run > 0], initial=MOST_DRIFT)
    least = np.max(rise[run < 0] / run[run < 0], initial=-MOST_DRIFT)
    return float(least), float(most)


def _bent(x: Floats, y: Floats, least: float, most: float) -> Ceiling:
    """A lower hull as far as its slopes lie within these, which it goes on with at its ends."""
    slopes = np.diff(y) / np.diff(x)
    kept = slice(int(np.count_nonzero(slopes < least)), len(x) - int(np.count_nonzero(slopes > most)))
    return Ceiling(x[kept], y[kept], least, most)
