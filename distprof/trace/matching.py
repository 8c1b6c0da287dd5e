"""Which collectives of different ranks are one: by sequence number, else by aligning the ranks' sequences.

Windows are cut at different places, so the k-th of one rank need not be the k-th of another. Two ranks' sequences of
one group and family are shifted against each other until kinds, sizes and steps fit and the ends agree: a symmetric
collective ends on all ranks together, but for a constant by which the ranks' clocks differ. Of shifts that do equally
well, as in a training whose steps are alike, the one with the smallest constant holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Mask, Times
from distprof.trace.kinds import SEND_RECV, SYMMETRIC, UNKNOWN

# A trace's collectives before they are matched. `group` is an id, and null where only the `lane` is known: what of a
# rank's belongs to one group. `family` is what the backend itself calls the collective; that can be less than its kind.
OCCURRENCES: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "group": pl.Int32,
    "lane": pl.Int64,
    "seq": pl.Int64,
    "kind": pl.String,
    "family": pl.String,
    "bytes": pl.Int64,
    "dtype": pl.String,
    "created": pl.Int64,
    "started": pl.Int64,
    "ended": pl.Int64,
    "step": pl.Int64,
}

_VAGUE = (SEND_RECV, UNKNOWN)
# Ranks hand in as many bytes as the others.
_EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "reduce_scatter")
# Shifts that are tried beyond the difference in length.
_FURTHEST = 256
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
_FEWEST = 3

Floats = npt.NDArray[np.float64]


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


_Clocks = dict[tuple[int, int], Ahead]  # (rank, other rank) -> the one's clock


@dataclass(frozen=True, slots=True)
class _Sequence:
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


def with_sequence_numbers(occurrences: pl.DataFrame) -> pl.DataFrame:
    """Fill `seq` so that (group, seq) is the same on all ranks that took part in a collective, and nowhere else.

    Sequence numbers of torch are kept where they are unique on their rank. Others are given in the order of time, below
    zero in a group that has some of torch's. Kinds that one rank's trace tells hold for the other ranks'.
    """
    table = occurrences.with_row_index("row")
    told = pl.col("seq").is_not_null() & (pl.len().over("rank", "window", "group", "seq", "family") == 1)
    table = table.with_columns(seq=pl.when(told).then("seq"))
    numbers = table["seq"].to_list()
    unnumbered = table.filter(pl.col("seq").is_null())
    partial = set(table.filter(pl.col("seq").is_not_null())["group"].unique())
    # The long sequences come first: what they tell of the clocks holds for the short ones.
    sequences = sorted(unnumbered.partition_by("group", "window", "family", maintain_order=True), key=len, reverse=True)
    clocks: _Clocks = {}
    times: dict[int, dict[tuple[int, int], int]] = {}
    ids: dict[int, dict[int, tuple[int, int]]] = {}
    for key, of_key in enumerate(sequences):
        group = of_key["group"][0]
        of_group = times.setdefault(group, {})
        for row, (number, time) in _match(of_key, clocks).items():
            ids.setdefault(group, {})[row] = (key, number)
            of_group[key, number] = min(time, of_group.get((key, number), time))
    for group, rows in ids.items():
        order = {one: place for place, one in enumerate(sorted(times[group], key=lambda one: (times[group][one], one)))}
        first = -len(order) if group in partial else 0
        for row, one in rows.items():
            numbers[row] = first + order[one]
    table = table.with_columns(seq=pl.Series(numbers, dtype=pl.Int64))
    clear = pl.col("kind").filter(~pl.col("kind").is_in(_VAGUE))
    same = ("group", "seq", "family")
    agreed = pl.when(pl.col("kind").is_in(_VAGUE) & (clear.n_unique().over(same) == 1)).then(clear.first().over(same))
    return table.with_columns(kind=agreed.fill_null(pl.col("kind"))).drop("row")


@dataclass(frozen=True, slots=True)
class Likeness:
    """How well two lanes fit, by the collectives that would be partners.

    Attributes:
        apart: one's ends less the other's, in ns.
        least, most: between these must lie what the one's clock is ahead, in ns, since ends come after all starts.
        share: of the shorter lane's collectives.
    """

    apart: Times
    least: Times
    most: Times
    share: float

    @property
    def offset(self) -> float:
        """What the one's clock is ahead if all of them end together."""
        return float(np.median(self.apart)) if len(self.apart) else 0.0

    @property
    def spread(self) -> float:
        """How far the ends are from that, in the median."""
        return float(np.median(np.abs(self.apart - self.offset))) if len(self.apart) else 0.0

    @property
    def ahead(self) -> Ahead | None:
        """The one's clock; None where no clock allows all of them."""
        return _ahead_by(self.apart, self.least, self.most)

    def impossible(self, clock: Ahead) -> int:
        """How many of them cannot be partners by a known clock."""
        return int(np.count_nonzero(_speaks_against(self.least, self.most, clock)))


def compare(own: pl.DataFrame, other: pl.DataFrame, clock: Ahead | None = None) -> Likeness:
    """Align two ranks' OCCURRENCES as if they were one group's, by what is known of the one's clock."""
    kinds = {kind: number for number, kind in enumerate({*own["kind"], *other["kind"]})}
    nothing = np.empty(0, dtype=np.int64)
    found = [(nothing, nothing, nothing)]
    # The long sequences come first: what they tell of the clock holds for the short ones.
    mine = sorted(own.with_row_index("row").partition_by("window", "family"), key=len, reverse=True)
    for of_key in mine:
        theirs = other.with_row_index("row").filter(window=of_key["window"][0], family=of_key["family"][0])
        if not len(theirs):
            continue
        a, b = _sequence(of_key, kinds), _sequence(theirs, kinds)
        places, _ = _align(a, b, clock)
        i, j = _pairs(places, b)
        found.append((a.end[i] - b.end[j], *_between(a, i, b, j)))
        if clock is None and len(i) >= _FEWEST:
            clock = _ahead_by(*found[-1])
    apart, least, most = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Likeness(apart, least, most, share=len(apart) / max(1, min(len(own), len(other))))


def _match(table: pl.DataFrame, clocks: _Clocks) -> dict[int, tuple[int, int]]:
    """Number one group's and family's collectives: row -> number, the same on all ranks, and a time for its order.

    What is known of `clocks` serves, and what is found is added.
    """
    kinds = {kind: number for number, kind in enumerate(table["kind"].unique().sort())}
    ranks = {
        rank: _sequence(of_rank, kinds)
        for (rank,), of_rank in table.partition_by("rank", as_dict=True, maintain_order=True).items()
    }
    first = max(ranks, key=lambda rank: len(ranks[rank]))
    reference = ranks[first]
    found: dict[int, tuple[int, int]] = {
        row: (number, time)
        for number, (row, time) in enumerate(zip(reference.rows.tolist(), reference.end.tolist(), strict=True))
    }
    # Numbers that no other rank can have.
    alone = len(reference) * 4 + _FURTHEST
    for rank, own in ranks.items():
        if rank == first:
            continue
        known = _ahead(clocks, rank, first)
        if known is not None and min(len(own), len(reference)) < _FEWEST:
            places, offset = _nearest(own, reference, known.offset, 0.0), known.offset
        else:
            places, offset = _align(own, reference, known)
            i, j = _pairs(places, reference)
            found_clock = _ahead_by(own.end[i] - reference.end[j], *_between(own, i, reference, j))
            if known is None and found_clock is not None:
                clocks[rank, first], clocks[first, rank] = found_clock, found_clock.back()
        for index, row in enumerate(own.rows.tolist()):
            number = int(places[index])
            if number == _NOWHERE:
                alone += 1
                number = alone
            found[row] = (number, int(own.end[index]) - offset)
    return found


def _ahead(clocks: _Clocks, rank: int, other: int) -> Ahead | None:
    """What is known of how far a rank's clock is ahead of another's, be it by way of a third."""
    if (rank, other) in clocks:
        return clocks[rank, other]
    ways = (
        ahead.and_then(clocks[third, other])
        for (one, third), ahead in clocks.items()
        if one == rank and (third, other) in clocks
    )
    return next(ways, None)


_NOWHERE = np.iinfo(np.int64).min
_ANY = np.iinfo(np.int64).max // 8  # no clock is so far ahead


def _ahead_by(apart: Times, least: Times, most: Times) -> Ahead | None:
    """What pairs of collectives tell of the one's clock, by how far their ends are apart and what each pair allows."""
    if not len(apart) or least.max() > most.min() + _TOLERANCE:
        return None
    low, high = sorted((int(least.max()), int(most.min())))
    return Ahead(round(float(np.median(apart))), low, high)


def _speaks_against(least: Times, most: Times, clock: Ahead) -> Mask:
    """Pairs that no clock allows which is as far ahead as the known one can be."""
    against: Mask = (least - _TOLERANCE > clock.most) | (clock.least > most + _TOLERANCE)
    return against


def _between(own: _Sequence, a: Times, reference: _Sequence, b: Times) -> tuple[Times, Times]:
    """Between what own clock must be ahead for each pair to be one collective."""
    binds = own.binds[a] & reference.binds[b]
    least, most = own.start[a] - reference.end[b], own.end[a] - reference.start[b]
    return np.where(binds, least, -_ANY), np.where(binds, most, _ANY)


def _pairs(places: Times, reference: _Sequence) -> tuple[Times, Times]:
    """Rows of both that are partners by `_align`'s places."""
    own = np.flatnonzero((places >= 0) & (places < len(reference)))
    return own, places[own]


def _sequence(table: pl.DataFrame, kinds: dict[str, int]) -> _Sequence:
    end = pl.coalesce("ended", "started", "created")
    # What was created before the window has no time of creation, and comes first.
    ordered = table.sort(pl.col("created") < pl.col("started"), "created", end)
    sizes = pl.when(pl.col("kind").is_in(_EQUAL_SIZES)).then("bytes").fill_null(-1)
    return _Sequence(
        rows=ordered["row"].to_numpy().astype(np.int64),
        start=ordered.select(pl.coalesce("started", "created")).to_series().to_numpy(),
        binds=ordered.select(pl.col("kind").is_in(SYMMETRIC) & pl.col("ended").is_not_null()).to_series().to_numpy(),
        end=ordered.select(end).to_series().to_numpy(),
        has_end=ordered["ended"].is_not_null().to_numpy(),
        kind=np.array([-1 if kind in _VAGUE else kinds[kind] for kind in ordered["kind"]], dtype=np.int64),
        size=ordered.select(sizes).to_series().to_numpy(),
        step=ordered["step"].fill_null(-1).to_numpy(),
    )


def _align(own: _Sequence, reference: _Sequence, clock: Ahead | None = None) -> tuple[Times, int]:
    """Each one's place in the reference's sequence, which may lie before or after it; and own clock less the
    reference's, by the ends. What is known of the clock speaks against shifts under which collectives would have been
    over on one rank before they began on the other."""
    slack = abs(len(reference) - len(own)) + _FURTHEST
    least = max(1, min(len(own), len(reference)) // 2)
    scores: list[tuple[float, float, float, int]] = []
    for shift in range(max(least - len(own), -slack), min(len(reference) - least, slack) + 1):
        a, b = _overlap(own, reference, shift)
        apart = (own.end[a] - reference.end[b]).astype(np.float64)
        offset = float(np.median(apart))
        misfit = ~_fits(own, a, reference, b)
        if clock is not None:
            misfit |= _speaks_against(*_between(own, a, reference, b), clock)
        scores.append((float(np.mean(misfit)), float(np.median(np.abs(apart - offset))), offset, shift))
    fewest = min(score[0] for score in scores)
    fitting = [score for score in scores if score[0] <= fewest]
    narrowest = min(score[1] for score in fitting)
    ratio, more = _EQUALLY_WELL
    whole = _may_be_whole(own, reference)
    good = [score for score in fitting if score[1] <= ratio * narrowest + more or (whole and score[3] == 0)]
    _, spread, offset, shift = min(good, key=lambda score: (abs(score[2]), abs(score[3])))
    a, b = _overlap(own, reference, shift)
    nearest = _nearest(own, reference, offset, spread)
    if whole and shift == 0:
        return np.arange(len(own)), round(offset)
    agree = _can_be(own, a, reference, b, offset) & _is_closest(own, a, reference, b, offset=offset, spread=spread)
    if np.mean(agree) < _MOST_AGREE:
        return nearest, round(offset)
    places = np.arange(len(own)) + shift
    # Where an event is lost in the middle, those after it are one place further.
    places[a[~agree]] = _NOWHERE
    free = (places == _NOWHERE) & ~np.isin(nearest, places)
    places[free] = nearest[free]
    return places, round(offset)


def _may_be_whole(own: _Sequence, reference: _Sequence) -> bool:
    """Whether nothing is missing on either side, and nothing speaks against pairing them from first to last."""
    if len(own) != len(reference):
        return False
    a = np.arange(len(own))
    clock = _ahead_by(own.end - reference.end, *_between(own, a, reference, a))
    return clock is not None and bool(_fits(own, a, reference, a).all())


def _overlap(own: _Sequence, reference: _Sequence, shift: int) -> tuple[Times, Times]:
    """Rows that face each other when own row i faces the reference's row i + shift."""
    a = np.arange(max(0, -shift), min(len(own), len(reference) - shift))
    return a, a + shift


def _fits(own: _Sequence, a: Times, reference: _Sequence, b: Times) -> Mask:
    """Whether pairs agree in what both of them tell: kind, size, step."""
    fits = np.ones(len(a), dtype=np.bool_)
    for mine, theirs in (
        (own.kind, reference.kind),
        (own.size, reference.size),
        (own.step, reference.step),
    ):
        fits &= (mine[a] == theirs[b]) | (mine[a] < 0) | (theirs[b] < 0)
    return fits


def _can_be(own: _Sequence, a: Times, reference: _Sequence, b: Times, offset: float) -> Mask:
    """Whether nothing speaks against a pair."""
    possible: Mask = _fits(own, a, reference, b) & ~_over_before_it_began(own, a, reference, b, offset)
    return possible


def _is_closest(own: _Sequence, a: Times, reference: _Sequence, b: Times, *, offset: float, spread: float) -> Mask:
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


def _over_before_it_began(own: _Sequence, a: Times, reference: _Sequence, b: Times, offset: float) -> Mask:
    """Pairs that cannot be one: it would have been over on one rank before the other one began, be the clocks one or as
    far apart as the ends say."""
    over = own.binds[a] & reference.binds[b]
    for shift in (0, round(offset)):
        earlier = np.minimum(own.end[a] - shift, reference.end[b])
        later = np.maximum(own.start[a] - shift, reference.start[b])
        over &= earlier + _TOLERANCE < later
    return over


def _nearest(own: _Sequence, reference: _Sequence, offset: float, spread: float) -> Times:
    """Places by the ends alone, for sequences that are no shifted copies: pairs that are each other's nearest."""
    mine, theirs = own.end - round(offset), reference.end
    forth, back = _closest(mine, theirs), _closest(theirs, mine)
    index = np.arange(len(own))
    mutual = back[forth] == index
    agree = np.zeros(len(own), dtype=np.bool_)
    agree[mutual] = _can_be(own, index[mutual], reference, forth[mutual], offset)
    ratio, least = _NEAR
    agree &= np.abs(mine - theirs[forth]) <= max(ratio * spread, least)
    return np.where(agree, forth, _NOWHERE)


def _closest(values: Times, among: Times) -> Times:
    """For each of `values` the row of the closest one in `among`."""
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    after = np.clip(np.searchsorted(ordered, values), 0, len(ordered) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.abs(values - ordered[before]) <= np.abs(ordered[after] - values)
    closest: Times = order[np.where(nearer, before, after)]
    return closest
