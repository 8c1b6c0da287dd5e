"""The step table: where the steps of each rank end, and which of them are not steady."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from distprof.trace.intervals import Times, distinct
from distprof.trace.tables import BATCHES, STEPS, empty

StepSource = Literal["user", "optimizer", "backward", "annotation", "none"]

# Work of our own in the training thread that is longer than both disturbs the step that it falls into. Long steps have
# the flight recorder read at each of their boundaries, which takes less than a hundredth of them.
LONG_OWN_NS = 1_000_000
LONG_OWN_SHARE = 0.02
ANNOTATION = "ProfilerStep#"
_COMPILES = " (dynamo_timed)"
OUT_OF_STEP = ("evaluation", "checkpoint")


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank's steps are found in: zones of its training thread, creation times of its reductions, events."""

    training: pl.DataFrame
    reductions: Times
    events: pl.DataFrame


@dataclass(frozen=True, slots=True)
class _Cuts:
    """A rank's steps: their numbers, starts and ends, ascending."""

    number: Times
    start: Times
    end: Times


def build_steps(
    zones: pl.DataFrame,
    reductions: pl.DataFrame,
    events: pl.DataFrame,
    windows: pl.DataFrame,
    *,
    marks_first: bool = False,
) -> tuple[StepSource, pl.DataFrame]:
    """Cut the run of every rank into steps.

    The boundary is the first of these that all ranks with zones have (or the most of them, should one have been cut off
    before its first step): the user's mark; the return of the optimizer; the return of a backward that reduced
    gradients. Step k is the k-th of its rank, since the ranks of a run begin together. Where no rank has any of them
    torch's `ProfilerStep` annotations serve, with their own numbers. A step that is not steady on one rank is not
    steady on any, since the others wait for it.

    Args:
        zones, events, windows: tables of all ranks; events may have more columns.
        reductions: `rank` and `created` of each all-reduce and reduce-scatter.
        marks_first: torch's annotations come before all others, as in a trace that others recorded.

    Returns:
        What the boundary is, and a STEPS table.
    """
    training = zones.filter(pl.col("thread") == 0)
    annotations = events.filter((pl.col("cat") == "user_annotation") & pl.col("name").str.starts_with(ANNOTATION))
    ranks = {
        rank: _Rank(
            training.filter(pl.col("rank") == rank),
            reductions.filter(pl.col("rank") == rank)["created"].sort().to_numpy(),
            annotations.filter(pl.col("rank") == rank),
        )
        for rank in sorted({*training["rank"], *annotations["rank"]})
    }
    in_zones: dict[StepSource, dict[int, _Cuts]] = {
        "user": _find(_user_marks, ranks),
        "optimizer": _find(_optimizer_returns, ranks),
        "backward": _find(_reducing_backwards, ranks),
    }
    source = max(in_zones, key=lambda source: len(in_zones[source]))
    found = in_zones[source]
    if marks_first or not found:
        marks = _find(_annotations, ranks)
        source, found = ("annotation", marks) if marks else (source, found)
    if not found:
        return "none", empty(STEPS)
    steps = pl.concat(_frame(rank, cuts, ranks[rank].training) for rank, cuts in found.items())
    return source, _exclude(steps, training, windows, _compilations(events))


def _find(find: Callable[[_Rank], _Cuts], ranks: dict[int, _Rank]) -> dict[int, _Cuts]:
    found = {number: find(rank) for number, rank in ranks.items()}
    return {number: cuts for number, cuts in found.items() if len(cuts.end)}


def outermost_backwards(training: pl.DataFrame) -> tuple[Times, Times]:
    """Starts and ends of one rank's backward zones that lie in no other one, ascending."""
    zones = training.filter(pl.col("kind") == "backward").sort("start", "end", descending=[False, True])
    start, end = zones["start"].to_numpy(), zones["end"].to_numpy()
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end))[: len(end)]
    outer = start >= reach
    return start[outer], end[outer]


def _from_boundaries(rank: _Rank, boundaries: Times) -> _Cuts:
    end = distinct(boundaries)
    begin = rank.training["start"].sort().to_numpy()[:1]
    return _Cuts(np.arange(len(end)), np.append(begin, end)[: len(end)], end)


def _user_marks(rank: _Rank) -> _Cuts:
    return _from_boundaries(rank, rank.training.filter(pl.col("kind") == "step")["end"].to_numpy())


def _optimizer_returns(rank: _Rank) -> _Cuts:
    """Optimizers that take turns share a step, which ends with the one that steps least often; one that takes over from
    another, as in a new phase of the training, has steps of its own."""
    zones = rank.training.filter(pl.col("kind") == "optimizer").sort("end")
    returns = [zones_of_one["end"].to_numpy() for zones_of_one in zones.partition_by("name", maintain_order=True)]
    boundaries = np.empty(0, dtype=np.int64)
    for phase in _phases(returns):
        # Of those that step equally often, the last within a period is the last to step for the first time.
        boundaries = np.append(boundaries, min(phase, key=lambda ends: (len(ends), -ends[0])))
    return _from_boundaries(rank, boundaries)


def _phases(returns: list[Times]) -> list[list[Times]]:
    """Group optimizers whose times from first to last return overlap; who returned only once has no such time."""
    lasting = sorted((ends for ends in returns if len(ends) > 1), key=lambda ends: int(ends[0]))
    if not lasting:
        return [returns] if returns else []
    phases: list[list[Times]] = []
    over = -1
    for ends in lasting:
        if ends[0] > over:
            phases.append([])
        phases[-1].append(ends)
        over = max(over, int(ends[-1]))
    return phases


def _reducing_backwards(rank: _Rank) -> _Cuts:
    start, end = outermost_backwards(rank.training)
    reduces = np.searchsorted(rank.reductions, start) < np.searchsorted(rank.reductions, end)
    return _from_boundaries(rank, end[reduces])


def _annotations(rank: _Rank) -> _Cuts:
    steps = outermost_marks(rank.events)
    return _Cuts(steps["number"].to_numpy(), steps["start"].to_numpy(), steps["end"].to_numpy())


def outermost_marks(events: pl.DataFrame) -> pl.DataFrame:
    """One rank's marks of steps that lie in no other one, with their `number`, ascending.

    Two profilers, or a wrapper's own steps, leave one set of marks inside the other. `events` holds user annotations
    only: a device's copies of a mark are as long as its work.
    """
    number = pl.col("name").str.strip_prefix(ANNOTATION).str.to_integer(strict=False).alias("number")
    marks = events.filter(pl.col("name").str.starts_with(ANNOTATION)).with_columns(number).drop_nulls("number")
    marks = marks.sort("start", "end", descending=[False, True])
    # Rounded times of neighbours may overlap; what lies inside another has its middle there, too.
    middle = pl.col("start") + (pl.col("end") - pl.col("start")) // 2
    outer = (middle >= pl.col("end").cum_max().shift(1)).fill_null(True)
    return marks.filter(outer).unique("number", keep="first").sort("number")


def _frame(rank: int, cuts: _Cuts, training: pl.DataFrame) -> pl.DataFrame:
    _, ends = outermost_backwards(training)
    backwards = np.searchsorted(ends, cuts.end, side="right") - np.searchsorted(ends, cuts.start, side="right")
    return pl.DataFrame(
        {
            "rank": np.full(len(cuts.end), rank),
            "step": cuts.number,
            "start": cuts.start,
            "end": cuts.end,
            "backwards": backwards,
            "excluded": pl.Series([None] * len(cuts.end), dtype=pl.String),
        },
        schema=STEPS,
    )


def _compilations(events: pl.DataFrame) -> pl.DataFrame:
    """Where torch compiled something: it says so itself, from dynamo to Triton's tuning."""
    return events.filter(pl.col("name").str.ends_with(_COMPILES)).select("rank", "start", "end")


def _exclude(
    steps: pl.DataFrame, training: pl.DataFrame, windows: pl.DataFrame, compilations: pl.DataFrame
) -> pl.DataFrame:
    typical = float(np.median((steps["end"] - steps["start"]).to_numpy()))
    long = max(LONG_OWN_NS, LONG_OWN_SHARE * typical)
    own = training.filter((pl.col("kind") == "own") & (pl.col("end") - pl.col("start") > long))
    # A window's edge disturbs like an own zone at that moment.
    disturbances = pl.concat(
        [
            own.select("rank", "start", "end"),
            windows.select("rank", "start", pl.col("start").alias("end") + 1),
            windows.select("rank", pl.col("end").alias("start"), pl.col("end") + 1),
        ]
    )
    between = training.filter(pl.col("kind").is_in(OUT_OF_STEP)).select("rank", "start", "end")
    out_of_step, compiling = _touched(steps, between), _touched(steps, compilations)
    if 2 * len(out_of_step) > steps["step"].n_unique():
        out_of_step = out_of_step.clear()  # what most steps do is a part of the step
    if len(compiling) == steps["step"].n_unique():
        compiling = compiling.clear()
    why = (
        pl.when(pl.col("step") == 0)
        .then(pl.lit("first"))
        .when(pl.col("step").is_in(compiling.implode()))
        .then(pl.lit("compile"))
        .when(pl.col("step").is_in(_touched(steps, disturbances).implode()))
        .then(pl.lit("export"))
        .when(pl.col("step").is_in(out_of_step.implode()))
        .then(pl.lit("out_of_step"))
    )
    return steps.with_columns(why.alias("excluded")).sort("rank", "step")


def _touched(steps: pl.DataFrame, by: pl.DataFrame) -> pl.Series:
    """Numbers of the steps that on their rank overlap a row (rank, start, end)."""
    return steps.join_where(
        by,
        pl.col("rank") == pl.col("rank_right"),
        pl.col("start") < pl.col("end_right"),
        pl.col("end") > pl.col("start_right"),
    )["step"].unique()


def in_steps(batches: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Fill the `step` of a BATCHES table: the step in which each batch was loaded."""
    spans = steps.select("rank", "step", "start", "end").sort("start")
    joined = (
        batches.drop("step")
        .sort("time")
        .join_asof(spans, left_on="time", right_on="start", by="rank", check_sortedness=False)
    )
    inside = pl.when(pl.col("time") < pl.col("end")).then(pl.col("step")).alias("step")
    return joined.with_columns(inside).select(list(BATCHES)).sort("rank", "time")
