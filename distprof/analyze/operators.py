"""Operators and kernels of a steady step: how often, how long, and how the ranks differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.nesting import nest
from distprof.analyze.steady import MS, steps_in_windows, times_of_steps
from distprof.result import Kernel, NotObserved, Operator
from distprof.trace import intervals
from distprof.trace.tables import Tables

MOST_ROWS = 200
_NO_WINDOW = "no Kineto window of this rank was recorded"
_ALONE = "one rank recorded a window: there is none to compare it with"


def operators(inputs: Inputs) -> tuple[list[Operator] | None, list[NotObserved]]:
    """Operators by the time that they have to themselves, those that take the most first."""
    tables = inputs.tables
    called = tables.events.lazy().filter(pl.col("cat") == "cpu_op")
    events = called.select("rank", "thread", "name", "start", "end").collect()
    counts = steps_of_windows(tables, events)
    if not counts:
        return None, [NotObserved("operators", None, "no Kineto window holds an operator")]
    used = in_steps(tables, events, counts, "start")
    table = _over_ranks(
        _timed(used)
        .group_by("rank", "name")
        .agg(pl.len().alias("calls"), pl.col("own").sum().alias("time"), pl.col("inclusive").sum()),
        counts,
        ["name"],
    )
    rows = [
        Operator(
            name=row["name"],
            calls=row["calls"],
            self=row["time"],
            inclusive=row["inclusive"],
            spread=row["spread"],
            slowest_rank=row["slowest_rank"],
            per=_per(counts),
        )
        for row in table.iter_rows(named=True)
    ]
    return rows, _missing("operators", tables, counts)


def kernels(inputs: Inputs) -> tuple[list[Kernel] | None, list[NotObserved]]:
    """What devices did, by name, what takes the most first. A kernel belongs to the step in which it was launched."""
    tables = inputs.tables
    counts = steps_of_windows(tables, tables.kernels)
    if not counts:
        return None, [NotObserved("kernels", None, "no Kineto window holds work of a device")]
    used = in_steps(tables, tables.kernels.with_columns(at=pl.coalesce("launched", "start")), counts, "at")
    table = _over_ranks(
        used.group_by("rank", "cat", "name").agg(
            pl.len().alias("calls"),
            (pl.col("end") - pl.col("start")).sum().alias("time"),
            pl.col("collective").drop_nulls().first(),
        ),
        counts,
        ["cat", "name"],
    )
    kinds = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
    rows = [
        Kernel(
            name=row["name"],
            kind=kinds[row["cat"]],  # type: ignore[arg-type]
            collective=row["collective"],
            calls=row["calls"],
            total=row["time"],
            spread=row["spread"],
            slowest_rank=row["slowest_rank"],
            per=_per(counts),
        )
        for row in table.iter_rows(named=True)
    ]
    return rows, _missing("kernels", tables, counts)


def steps_of_windows(tables: Tables, recorded: pl.DataFrame) -> dict[int, list[int]]:
    """The steady steps in the windows of each rank that has any and is in `recorded`.

    Where no rank has one, as in traces that tell no steps, the lists are empty: the windows count as a whole.
    """
    ranks = sorted(recorded["rank"].unique().to_list())
    steps = {rank: steps_in_windows(tables, rank) for rank in ranks}
    return {rank: own for rank, own in steps.items() if own} or steps


def in_steps(tables: Tables, table: pl.DataFrame, steps: Mapping[int, Sequence[int]], at: str) -> pl.DataFrame:
    """The rows whose time `at` lies in these steps of their rank; see `steps_of_windows`."""
    rank, time = table["rank"].to_numpy(), table[at].to_numpy()
    wanted = np.zeros(len(table), dtype=np.bool_)
    for number, own in steps.items():
        rows = np.flatnonzero(rank == number)
        spans = intervals.union(times_of_steps(tables, number, list(own)))
        wanted[rows] = intervals.contains(spans, time[rows]) if own else True
    return table.filter(pl.Series(wanted))


def _timed(events: pl.DataFrame) -> pl.DataFrame:
    """Events with the columns `own` and `inclusive`: of a call inside another one of its name the latter is 0."""
    name = events["name"].cast(pl.Categorical).to_physical().to_numpy().astype(np.int64)
    thread, start, end, rank = (events[column].to_numpy() for column in ("thread", "start", "end", "rank"))
    own, inclusive = np.zeros(len(events), dtype=np.int64), np.zeros(len(events), dtype=np.int64)
    for number in np.unique(rank):
        rows = np.flatnonzero(rank == number)
        found = nest(thread[rows], start[rows], end[rows], name[rows])
        own[rows] = found.own
        inclusive[rows] = np.where(found.outermost, end[rows] - start[rows], 0)
    return events.with_columns(own=pl.Series(own), inclusive=pl.Series(inclusive))


def _over_ranks(sums: pl.DataFrame, steps: Mapping[int, Sequence[int]], keys: list[str]) -> pl.DataFrame:
    """Sums of each rank, with the columns `calls` and `time` (ns) -> per step in ms, the mean over ranks.

    A rank that has none has zeros. `spread` is the largest rank's time less the smallest's, null for a single rank.
    """
    counts = pl.DataFrame(
        {"rank": list(steps), "steps": [max(1, len(own)) for own in steps.values()]},
        schema={"rank": pl.Int32, "steps": pl.Int64},
    )
    figures = [name for name in ("calls", "time", "inclusive") if name in sums.columns]
    others = [name for name in sums.columns if name not in (*keys, *figures, "rank")]
    # In one order, so that the last digits of sums and the order of equals are the same each time.
    per_step = (
        sums.sort("rank", *keys)
        .join(counts, on="rank", how="inner", maintain_order="left")
        .with_columns((pl.col(name) / pl.col("steps") / (1 if name == "calls" else MS)) for name in figures)
    )
    all_ranks = pl.len() == len(steps)
    smallest = pl.when(all_ranks).then(pl.col("time").min()).otherwise(0.0)
    several = len(steps) > 1
    table = per_step.group_by(keys, maintain_order=True).agg(
        *(pl.col(name).sum() / len(steps) for name in figures),
        *(pl.col(name).drop_nulls().first() for name in others),
        spread=pl.col("time").max() - smallest if several else pl.lit(None, pl.Float64),
        slowest_rank=pl.col("rank").sort_by("time", -pl.col("rank")).last() if several else pl.lit(None, pl.Int32),
    )
    return table.sort("time", *keys, descending=[True] + [False] * len(keys)).head(MOST_ROWS)


def _per(steps: Mapping[int, Sequence[int]]) -> Any:
    return "step" if any(steps.values()) else "window"


def _missing(what: str, tables: Tables, steps: Mapping[int, Sequence[int]]) -> list[NotObserved]:
    missing = []
    without = sorted(set(tables.ranks).difference(steps))
    if without:
        missing.append(NotObserved(what, without, f"{_NO_WINDOW}, or none of its steady steps lies inside one"))
    if len(steps) == 1:
        missing += [NotObserved(f"{what}.{name}", None, _ALONE) for name in ("spread", "slowest_rank")]
    return missing
