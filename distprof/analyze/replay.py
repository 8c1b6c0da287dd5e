"""What would have happened, had some ranks not lost the time that they lost.

A rank alternates between its own time and blocks, in which it waits for collectives. A collective is there when its
last participant has arrived; a block ends when all collectives are there that the rank waits in it for, and what the
transfer took beyond that:

    release = max(previous release + own time, arrivals needed) + transfer
    arrival = previous release + own time until then

Played with the times as they were recorded this gives the recording; with less own time of some ranks, what the others
would have made of it. Releases are computed in the order in which they came, many at once where none needs another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.own_time import OwnTime, Pieces
from distprof.analyze.waits import IN_FORWARD, ONE, RankWaits, needs
from distprof.trace.tables import Tables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Place of a rank in `OwnTime.ranks` -> the share of each of its pieces of own time that is kept.
Change = Mapping[int, Floats]
_LONGEST_CHUNK = 4096  # releases that are computed at once, at most


@dataclass(frozen=True, slots=True)
class Replayed:
    """Times in ns; K changes.

    Attributes:
        saved: how much earlier the ranks end: the mean over ranks, shape (K,).
        calls: the collectives that bind ranks: the columns of `waits.match` and `call`, the row in the arrays below.
        arrived: when a rank arrived at each, with none of the changes and with each of them, shape (calls, 1 + K).
    """

    saved: Floats
    calls: pl.DataFrame
    arrived: Floats


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's blocks, and the numbers of its nodes: its beginning, then its blocks. Times are since `base`."""

    start: Floats
    end: Floats
    span: tuple[float, float]
    node: Ints
    curves: Floats
    knots: Floats

    def own_until(self, times: Floats) -> Floats:
        """Own time until each of `times`, with none of the changes and with each of them; shape (times, 1 + K)."""
        return np.column_stack([np.interp(times, self.knots, curve) for curve in self.curves])

    def before(self, times: Floats) -> tuple[Ints, Floats]:
        """The node whose release came last before each of `times`, and the own time since then."""
        which = np.searchsorted(self.end, times, side="right")
        released = np.append(self.span[0], self.end)[which]
        return self.node[which], self.own_until(times) - self.own_until(released)


def replay(
    tables: Tables, own: OwnTime, waits: Mapping[int, RankWaits], matched: pl.DataFrame, changes: Sequence[Change]
) -> Replayed:
    """Play the steps of `own` again, with each of `changes`; `matched` is `waits.match`'s."""
    base = min(pieces.span[0] for pieces in own.pieces)
    ranks = _ranks(own, waits, changes, base)
    calls = _calls(own, ranks, matched, base)
    graph = _graph(ranks, calls, needs(tables))
    released = _released(graph, np.array([rank.span[0] for rank in ranks]))
    ends = []
    for rank in ranks:
        node, since = rank.before(np.array([rank.span[1]]))
        ends.append(released[graph.row[node[0]]] + since[0])
    end = np.mean(ends, axis=0)
    return Replayed(saved=end[0] - end[1:], calls=calls, arrived=released[graph.before] + graph.since)


def _ranks(own: OwnTime, waits: Mapping[int, RankWaits], changes: Sequence[Change], base: int) -> list[_Rank]:
    found, nodes = [], 0
    for index, rank in enumerate(own.ranks):
        pieces = own.pieces[index]
        first, last = pieces.span
        blocked = waits[rank].blocked
        blocked = np.clip(blocked[(blocked[:, 1] > first) & (blocked[:, 1] <= last)], first, None) - base
        knots = np.column_stack([pieces.begin, pieces.begin + pieces.length]).ravel() - base
        kept = [change.get(index) for change in changes]
        found.append(
            _Rank(
                start=blocked[:, 0].astype(np.float64),
                end=blocked[:, 1].astype(np.float64),
                span=(float(first - base), float(last - base)),
                node=nodes + np.arange(len(blocked) + 1),
                knots=knots.astype(np.float64),
                curves=np.stack([_curve(pieces, share) for share in (None, *kept)]),
            )
        )
        nodes += len(blocked) + 1
    return found


def _curve(pieces: Pieces, kept: Floats | None) -> Floats:
    """Own time up to the beginning and the end of each piece, of which a share is kept."""
    length = pieces.length.astype(np.float64)
    if kept is not None:
        length *= kept
    after = np.cumsum(length)
    return np.column_stack([after - length, after]).ravel()


def _calls(own: OwnTime, ranks: list[_Rank], matched: pl.DataFrame, base: int) -> pl.DataFrame:
    """Collectives that bind somebody, inside of their ranks' spans. `index` is the place of the rank, `arrived_at` and
    `bound_at` are times since `base`; `one` is the number of what must be there before the collective is over."""
    spans = pl.DataFrame(
        [(rank, index, *(base + int(edge) for edge in ranks[index].span)) for index, rank in enumerate(own.ranks)],
        schema={"rank": pl.Int32, "index": pl.Int64, "first": pl.Int64, "last": pl.Int64},
        orient="row",
    )
    bound = matched.filter(pl.col("binds_until").is_not_null()).join(spans, on="rank", how="inner")
    inside = bound.filter((pl.col("arrived") > pl.col("first")) & (pl.col("arrived") <= pl.col("last")))
    by_itself = pl.when(IN_FORWARD).then(pl.col("rank"))
    return (
        inside.sort("index", "arrived")
        .with_columns(
            arrived_at=(pl.col("arrived") - base).cast(pl.Float64),
            bound_at=(pl.col("binds_until") - base).cast(pl.Float64),
            one=pl.struct(*ONE, by_itself.alias("by")).rank("dense").cast(pl.Int64) - 1,
        )
        .with_row_index("call")
        .cast({"call": pl.Int64})
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    """What needs what. Releases are the rows of an array, in the order in which they came; first come the beginnings.

    Attributes:
        row: where the release of a node stands.
        before, since: for each call the row of the release before it, and the own time since then, (calls, 1 + K).
        previous, gained: for each release that of the same rank before it, and the own time between, (rows, 1 + K).
        transfer: what each release came later than the last arrival that it needed.
        arrivals: pairs (collective, call), sorted: what must be there. Collectives are numbered in the order in which
            releases need them first.
        needed_by: pairs (row, collective), sorted: what a release waits for.
    """

    row: Ints
    before: Ints
    since: Floats
    previous: Ints
    gained: Floats
    transfer: Floats
    arrivals: Ints
    needed_by: Ints


def _graph(ranks: list[_Rank], calls: pl.DataFrame, tree: pl.DataFrame) -> _Graph:
    """`tree` is `waits.needs`'."""
    end = np.concatenate([np.append(-np.inf, rank.end) for rank in ranks])
    row = np.empty(len(end), dtype=np.int64)
    row[np.argsort(end, kind="stable")] = np.arange(len(end))

    before, since, previous, gained = [], [], np.full(len(end), -1), np.zeros((len(end), ranks[0].curves.shape[0]))
    start, waits_in = np.full(len(end), -np.inf), []
    of_rank = calls.partition_by("index", as_dict=True)
    for index, rank in enumerate(ranks):
        own = of_rank.get((index,), calls.clear())
        arrived = own["arrived_at"].to_numpy()
        node, gain = rank.before(arrived)
        before.append(row[node])
        since.append(gain)
        # It is waited for in the first block that ends after it was created, and after it was there.
        ends_after = np.searchsorted(rank.end, arrived, side="right")
        block = np.maximum(ends_after, np.searchsorted(rank.end, own["bound_at"].to_numpy(), side="left"))
        waits_in.append(np.append(row[rank.node[1:]], -1)[block])
        blocks = row[rank.node[1:]]
        previous[blocks], start[blocks] = row[rank.node[:-1]], rank.start
        gained[blocks] = rank.own_until(rank.start) - rank.own_until(np.append(rank.span[0], rank.end[:-1]))
    of_calls, needed_in = np.concatenate(before), np.concatenate(waits_in)

    awaited = needed_in >= 0
    one = calls["one"].to_numpy()
    first_need = np.full(int(one.max(initial=-1)) + 1, len(end))
    np.minimum.at(first_need, one[awaited], needed_in[awaited])
    by_need = np.argsort(first_need, kind="stable")
    number = np.empty(len(by_need), dtype=np.int64)
    number[by_need] = np.arange(len(by_need))

    symmetric = ~calls.select(IN_FORWARD).to_series()
    pairs = calls.filter(symmetric).select("one", "call")
    others = calls.filter(~symmetric)
    came = others.select(*ONE, "call", needed="rank")
    in_tree = others.select(*ONE, "rank", "one").join(tree, on=["group", "rank"]).join(came, on=[*ONE, "needed"])
    pairs = pl.concat([pairs, in_tree.select("one", "call")])
    arrivals = np.column_stack([number[pairs["one"].to_numpy()], pairs["call"].to_numpy()])
    # By clocks that differ a little a rank may arrive after the release that needed it: then it was not needed.
    arrivals = arrivals[of_calls[arrivals[:, 1]] < first_need[by_need][arrivals[:, 0]]]
    arrivals = arrivals[np.argsort(arrivals[:, 0], kind="stable")]

    there = np.full(len(by_need), -np.inf)
    np.maximum.at(there, arrivals[:, 0], calls["arrived_at"].to_numpy()[arrivals[:, 1]])
    needed_by = np.column_stack([needed_in[awaited], number[one[awaited]]])
    needed_by = needed_by[np.argsort(needed_by[:, 0], kind="stable")]
    latest = start.copy()
    np.maximum.at(latest, needed_by[:, 0], there[needed_by[:, 1]])
    in_order = np.empty_like(end)
    in_order[row] = end
    return _Graph(
        row=row,
        before=of_calls,
        since=np.concatenate(since),
        previous=previous,
        gained=gained,
        transfer=np.maximum(in_order, 0.0) - np.maximum(latest, 0.0),
        arrivals=arrivals,
        needed_by=needed_by,
    )


def _released(graph: _Graph, begins: Floats) -> Floats:
    """When each release comes, with none of the changes and with each of them; shape (rows, 1 + K)."""
    released = np.full(graph.gained.shape, -np.inf)
    released[: len(begins)] = begins[:, None]
    collectives = int(graph.arrivals[:, 0].max(initial=-1)) + 1
    there = np.full((max(collectives, int(graph.needed_by[:, 1].max(initial=-1)) + 1), graph.gained.shape[1]), -np.inf)
    done = 0
    for first, last in _chunks(graph, len(begins)):
        rows = slice(first, last)
        begin, end = np.searchsorted(graph.needed_by[:, 0], [first, last])
        needs_of = graph.needed_by[begin:end]
        upto = max(done, int(needs_of[:, 1].max(initial=-1)) + 1)
        begin, end = np.searchsorted(graph.arrivals[:, 0], [done, upto])
        collective, call = graph.arrivals[begin:end].T
        _latest(there, collective, released[graph.before[call]] + graph.since[call])
        done = upto
        released[rows] = released[graph.previous[rows]] + graph.gained[rows]
        _latest(released, needs_of[:, 0], there[needs_of[:, 1]])
        released[rows] += graph.transfer[rows, None]
    return released


def _latest(table: Floats, rows: Ints, values: Floats) -> None:
    """Raise rows of a table to the largest of their values; `rows` are sorted."""
    if len(rows):
        first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        table[rows[first]] = np.maximum(table[rows[first]], np.maximum.reduceat(values, first, axis=0))


def _chunks(graph: _Graph, begins: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of which none needs another."""
    count = len(graph.previous)
    newest = np.full(int(graph.needed_by[:, 1].max(initial=-1)) + 1, -1)
    known = graph.arrivals[graph.arrivals[:, 0] < len(newest)]
    np.maximum.at(newest, known[:, 0], graph.before[known[:, 1]])
    newest_needed = graph.previous.copy()
    np.maximum.at(newest_needed, graph.needed_by[:, 0], newest[graph.needed_by[:, 1]])
    first = begins
    while first < count:
        inside = newest_needed[first + 1 : first + _LONGEST_CHUNK] >= first
        last = first + 1 + (int(inside.argmax()) if inside.any() else len(inside))
        yield first, last
        first = last
