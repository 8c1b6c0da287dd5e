"""Two ranks' sequences of one group's collectives, aligned: which of one are which of the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Mask, Times
from distprof.trace.kinds import SEND_RECV, SYMMETRIC, UNKNOWN

VAGUE = (SEND_RECV, UNKNOWN)
# Ranks hand in as many bytes as the others.
_EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "reduce_scatter")
# Shifts that are tried beyond the difference in length.
FURTHEST = 256
# Spreads that differ by less do equally well.
_EQUALLY_WELL = 2, 50_000
# Ends that differ by no more than this, from what is usual, agree: so many times the usual spread, or ns.
_AGREE = 10, 200_000
_NEAR = 10, 5_000_000
# What clocks of one host and rounded times may differ by.
_TOLERANCE = 20_000
# With fewer pairs than this, a shift is no explanation of the sequences.
_MOST_AGREE = 0.8
# Of fewer than this, almost any shift makes the ends agree.
FEWEST = 3

Floats = npt.NDArray[np.float64]
_Rows = Times | slice


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far one clock is ahead of another, in ns: `offset` if symmetric collectives end together, and from `least` to
    `most` since no end comes before a start."""

    offset: int
    least: int
    most: int

    def back(self) -> Ahead:
        """How far the other clock is ahead of the one."""
        return Ahead(-self.offset, -self.most, -self.least)

    def and_then(self, next_one: Ahead) -> Ahead:
        """How far the one is ahead of a third, of which the other is `next_one` ahead."""
        return Ahead(self.offset + next_one.offset, self.least + next_one.least, self.most + next_one.most)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One rank's collectives of one group and family in their order; -1 in `size` and `step` is unknown. `binds`: each
    end comes after every start."""

    rows: Times
    start: Times
    binds: Mask
    end: Times
    has_end: Mask
    kind: npt.NDArray[np.int64]
    size: Times
    step: Times

    def __len__(self) -> int:
        return len(self.rows)


NOWHERE = np.iinfo(np.int64).min
_ANY = np.iinfo(np.int64).max // 8  # no clock is so far ahead


def ahead_by(apart: Times, least: Times, most: Times) -> Ahead | None:
    """What pairs of collectives tell of the one's clock, by how far their ends are apart and what each pair allows."""
    if not len(apart) or least.max() > most.min() + _TOLERANCE:
        return None
    low, high = sorted((int(least.max()), int(most.min())))
    return Ahead(round(median(apart)), low, high)


def speaks_against(least: Times, most: Times, clock: Ahead) -> Mask:
    """Pairs that no clock allows which is as far ahead as the known one can be."""
    against: Mask = (least - _TOLERANCE > clock.most) | (clock.least > most + _TOLERANCE)
    return against


def between(own: Sequence, a: _Rows, reference: Sequence, b: _Rows) -> tuple[Times, Times]:
    """Between what own clock must be ahead for each pair to be one collective."""
    binds = own.binds[a] & reference.binds[b]
    least, most = own.start[a] - reference.end[b], own.end[a] - reference.start[b]
    return np.where(binds, least, -_ANY), np.where(binds, most, _ANY)


def pairs(places: Times, reference: Sequence) -> tuple[Times, Times]:
    """Rows of both that are partners by `align`'s places."""
    own = np.flatnonzero((places >= 0) & (places < len(reference)))
    return own, places[own]


def sequence_of(table: pl.DataFrame, kinds: Mapping[str, int]) -> Sequence:
    """The sequence of OCCURRENCES of one rank, group and family, with a column `row`; `kinds` numbers their kinds."""
    end = pl.coalesce("ended", "started", "created")
    # What was created before the window has no time of creation, and comes first.
    ordered = table.sort(pl.col("created") < pl.col("started"), "created", end)
    sizes = pl.when(pl.col("kind").is_in(_EQUAL_SIZES)).then("bytes").fill_null(-1)
    return Sequence(
        rows=ordered["row"].to_numpy().astype(np.int64),
        start=ordered.select(pl.coalesce("started", "created")).to_series().to_numpy(),
        binds=ordered.select(pl.col("kind").is_in(SYMMETRIC) & pl.col("ended").is_not_null()).to_series().to_numpy(),
        end=ordered.select(end).to_series().to_numpy(),
        has_end=ordered["ended"].is_not_null().to_numpy(),
        kind=np.array([-1 if kind in VAGUE else kinds[kind] for kind in ordered["kind"]], dtype=np.int64),
        size=ordered.select(sizes).to_series().to_numpy(),
        step=ordered["step"].fill_null(-1).to_numpy(),
    )


def align(own: Sequence, reference: Sequence, clock: Ahead | None = None) -> tuple[Times, int]:
    """Each one's place in the reference's sequence, which may lie before or after it; and own clock less the
    reference's, by the ends. What is known of the clock speaks against shifts under which collectives would have been
    over on one rank before they began on the other."""
    slack = abs(len(reference) - len(own)) + FURTHEST
    least = max(1, min(len(own), len(reference)) // 2)
    misfits: dict[int, float] = {}
    for shift in range(max(least - len(own), -slack), min(len(reference) - least, slack) + 1):
        mine, theirs = _facing(own, reference, shift)
        misfit = ~_fits(own, mine, reference, theirs)
        if clock is not None:
            misfit |= speaks_against(*between(own, mine, reference, theirs), clock)
        misfits[shift] = np.count_nonzero(misfit) / len(misfit)
    fewest = min(misfits.values())
    fitting: list[tuple[float, float, int]] = []
    for shift in (shift for shift, misfit_share in misfits.items() if misfit_share <= fewest):
        mine, theirs = _facing(own, reference, shift)
        apart = (own.end[mine] - reference.end[theirs]).astype(np.float64)
        offset = median(apart)
        fitting.append((median(np.abs(apart - offset)), offset, shift))
    narrowest = min(score[0] for score in fitting)
    ratio, more = _EQUALLY_WELL
    whole = _may_be_whole(own, reference)
    good = [score for score in fitting if score[0] <= ratio * narrowest + more or (whole and score[2] == 0)]
    spread, offset, shift = min(good, key=lambda score: (abs(score[1]), abs(score[2])))
    a, b = _overlap(own, reference, shift)
    by_ends = nearest(own, reference, offset, spread)
    if whole and shift == 0:
        return np.arange(len(own)), round(offset)
    agree = _can_be(own, a, reference, b, offset) & _is_closest(own, a, reference, b, offset=offset, spread=spread)
    if np.mean(agree) < _MOST_AGREE:
        return by_ends, round(offset)
    places = np.arange(len(own)) + shift
    # Where an event is lost in the middle, those after it are one place further.
    places[a[~agree]] = NOWHERE
    free = (places == NOWHERE) & ~np.isin(by_ends, places)
    places[free] = by_ends[free]
    return places, round(offset)


def median(values: Floats | Times) -> float:
    """The median of few values, of which `np.median` would take ten times as long."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _may_be_whole(own: Sequence, reference: Sequence) -> bool:
    """Whether nothing is missing on either side, and nothing speaks against pairing them from first to last."""
    if len(own) != len(reference):
        return False
    a = np.arange(len(own))
    clock = ahead_by(own.end - reference.end, *between(own, a, reference, a))
    return clock is not None and bool(_fits(own, a, reference, a).all())


def _facing(own: Sequence, reference: Sequence, shift: int) -> tuple[slice, slice]:
    """Rows that face each other when own row i faces the reference's row i + shift."""
    first, end = max(0, -shift), min(len(own), len(reference) - shift)
    return slice(first, end), slice(first + shift, end + shift)


def _overlap(own: Sequence, reference: Sequence, shift: int) -> tuple[Times, Times]:
    """The numbers of the rows that face each other."""
    a, b = _facing(own, reference, shift)
    return np.arange(a.start, a.stop), np.arange(b.start, b.stop)


def _fits(own: Sequence, a: _Rows, reference: Sequence, b: _Rows) -> Mask:
    """Whether pairs agree in what both of them tell: kind, size, step."""
    fits: Mask = _alike(own.kind[a], reference.kind[b])
    fits &= _alike(own.size[a], reference.size[b])
    fits &= _alike(own.step[a], reference.step[b])
    return fits


def _alike(mine: Times, theirs: Times) -> Mask:
    """Where two are the same, or one of them is unknown."""
    alike: Mask = (mine == theirs) | (np.minimum(mine, theirs) < 0)
    return alike


def _can_be(own: Sequence, a: Times, reference: Sequence, b: Times, offset: float) -> Mask:
    """Whether nothing speaks against a pair."""
    possible: Mask = _fits(own, a, reference, b) & ~_over_before_it_began(own, a, reference, b, offset)
    return possible


def _is_closest(own: Sequence, a: Times, reference: Sequence, b: Times, *, offset: float, spread: float) -> Mask:
    """Whether a pair's ends agree, or agree better than they would with the reference's neighbours."""
    ratio, least = _AGREE
    known = own.has_end[a] & reference.has_end[b]
    mine = (own.end[a] - reference.end[b]).astype(np.float64) - offset
    beaten = np.zeros(len(a), dtype=np.bool_)
    for step in (-1, 1):
        other = np.clip(b + step, 0, len(reference) - 1)
        beaten |= np.abs((own.end[a] - reference.end[other]).astype(np.float64) - offset) < np.abs(mine)
    closest: Mask = ~known | (np.abs(mine) <= max(ratio * spread, least)) | ~beaten
    return closest


def _over_before_it_began(own: Sequence, a: Times, reference: Sequence, b: Times, offset: float) -> Mask:
    """Pairs that cannot be one: it would have been over on one rank before the other one began, be the clocks one or as
    far apart as the ends say."""
    over = own.binds[a] & reference.binds[b]
    for shift in (0, round(offset)):
        earlier = np.minimum(own.end[a] - shift, reference.end[b])
        later = np.maximum(own.start[a] - shift, reference.start[b])
        over &= earlier + _TOLERANCE < later
    return over


def nearest(own: Sequence, reference: Sequence, offset: float, spread: float) -> Times:
    """Places by the ends alone, for sequences that are no shifted copies: pairs that are each other's nearest."""
    mine, theirs = own.end - round(offset), reference.end
    forth, back = _closest(mine, theirs), _closest(theirs, mine)
    index = np.arange(len(own))
    mutual = back[forth] == index
    agree = np.zeros(len(own), dtype=np.bool_)
    agree[mutual] = _can_be(own, index[mutual], reference, forth[mutual], offset)
    ratio, least = _NEAR
    agree &= np.abs(mine - theirs[forth]) <= max(ratio * spread, least)
    return np.where(agree, forth, NOWHERE)


def _closest(values: Times, among: Times) -> Times:
    """For each of `values` the row of the closest one in `among`."""
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    after = np.clip(np.searchsorted(ordered, values), 0, len(ordered) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.abs(values - ordered[before]) <= np.abs(ordered[after] - values)
    closest: Times = order[np.where(nearer, before, after)]
    return closest
