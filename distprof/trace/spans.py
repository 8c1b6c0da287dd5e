"""The collectives of a trace without kernels: gloo's spans with the operators that created them, or these alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from distprof.trace.gloo import SPAN
from distprof.trace.kernels import CARRIED_OUT, size_of
from distprof.trace.kinds import POINT_TO_POINT, kind_of

_ENQUEUED = r"^c10d::\w+_?$"
_OTHER_SPANS = r"^(?:nccl|rccl|xccl|ccl|hccl|ucc|mpi):"
# What gloo calls a collective that torch makes of another one.
_AS = {"reduce_scatter": "all_reduce"}
# A group's two workers take turns, so that one with much to do is hardly alone: it costs so much for each of its spans,
# and a pair costs what the numbers of its threads differ.
_ALONE = 2
# The clock of a span and of an operator is one, but times are rounded.
_TOLERANCE_NS = 1_000


def read_spans(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """CARRIED_OUT of a trace in which no device appears; `ended` is null where a span was cut by the window's end.

    A span of gloo lasts from when a worker took the collective until it was over. The operator of torch that created it
    comes before; of one group both have one order, and the first spans may have been created before the window. The
    kind is the operator's, since gloo names what it does and not what was asked for. Spans of other backends are in the
    calling thread and tell only when a collective was created.
    """
    numbered = events.with_row_index("row").join(calls.select("row", "elements", "dtype", "root"), on="row", how="left")
    annotations = numbered.filter(pl.col("cat") == "user_annotation").with_columns(
        family=pl.col("name").map_elements(kind_of, return_dtype=pl.String)
    )
    name = pl.col("name")
    kept = ~pl.col("family").is_in(POINT_TO_POINT)
    spans = annotations.filter(name.str.starts_with(SPAN) & kept).sort("start")
    if len(spans):
        return _of_gloo(spans, numbered)
    others = annotations.filter(name.str.contains(_OTHER_SPANS) & kept).sort("start")
    return _table(
        others.with_columns(kind=pl.col("family"), created=pl.col("start"), started=None, ended=None, lane=None)
    )


def _of_gloo(spans: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    lanes = _lanes(dict(spans["thread"].value_counts().sort("thread").iter_rows()))
    kind, created, root = spans["family"].to_list(), spans["start"].to_list(), spans["root"].to_list()
    # Workers of several groups take their collectives in no common order, and operators do not tell the group.
    for rows, operators in _operators(spans, events) if len(set(lanes.values())) == 1 else ():
        told = operators.select("kind", "start", "root").iter_rows()
        for row, (name, start, of) in zip(rows, told, strict=False):
            kind[row], created[row], root[row] = name, start, of
    return _table(
        spans.with_columns(
            kind=pl.Series(kind, dtype=pl.String),
            created=pl.Series(created, dtype=pl.Int64),
            root=pl.Series(root, dtype=pl.Int64),
            started=pl.col("start"),
            ended=pl.when("finished").then("end"),
            lane=pl.col("thread").replace_strict(lanes),
        )
    )


def _operators(spans: pl.DataFrame, events: pl.DataFrame) -> Iterator[tuple[list[int], pl.DataFrame]]:
    """For each family: rows of the spans whose operators are in the window, and these operators with their `kind`."""
    operators = events.filter((pl.col("cat") == "cpu_op") & pl.col("name").str.contains(_ENQUEUED)).sort("start")
    kinds = operators["name"].map_elements(kind_of, return_dtype=pl.String)
    operators = operators.with_columns(kind=kinds, family=kinds.replace(_AS))
    for (family,), own in operators.partition_by("family", as_dict=True, maintain_order=True).items():
        rows = np.flatnonzero((spans["family"] == family).to_numpy())
        first = _first_created_inside(own["start"].to_numpy(), spans["start"].to_numpy()[rows])
        if first is not None:
            yield rows[first:].tolist(), own


def _lanes(spans: Mapping[int, int]) -> dict[int, int]:
    """Which workers belong to one group: two that were made one after the other, or one where the other had nothing to
    do. Of all ways the cheapest one; `spans` counts those of each thread, in the order of the threads' numbers."""
    threads = list(spans)
    best: list[tuple[int, list[tuple[int, ...]]]] = [(0, [])]
    for index, thread in enumerate(threads):
        cost, before = best[index]
        choices = [(cost + _ALONE * spans[thread], [*before, (thread,)])]
        if index:
            cost, before = best[index - 1]
            choices.append((cost + thread - threads[index - 1], [*before, (threads[index - 1], thread)]))
        best.append(min(choices))
    return {thread: lane for lane, workers in enumerate(best[-1][1]) for thread in workers}


def _first_created_inside(created: np.ndarray, started: np.ndarray) -> int | None:
    """How many spans come before the first operator's, so that no span starts before its operator; None: no way."""
    for first in range(len(started)):
        count = min(len(created), len(started) - first)
        if (created[:count] <= started[first : first + count] + _TOLERANCE_NS).all():
            return first
    return None


def _table(spans: pl.DataFrame) -> pl.DataFrame:
    nothing = dict.fromkeys(("group", "desc", "members", "seq", "returned"))
    filled = spans.with_columns(bytes=pl.col("elements") * size_of(pl.col("dtype")), **nothing)
    return filled.select(pl.col(name).cast(dtype) for name, dtype in CARRIED_OUT.items())
