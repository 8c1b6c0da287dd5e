"""What a step is in this run, and how long it takes."""

from __future__ import annotations

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.steady import MS, steady_steps
from distprof.result import Excluded, NotObserved, RankSteps, Spread, Steps
from distprof.trace.tables import Tables

_BOUNDARIES = {
    "user": "each call of distprof.step()",
    "optimizer": "the return of the outermost optimizer step; of several optimizers the one that steps least often",
    "backward": "the return of the outermost backward that reduced gradients, since no optimizer stepped",
    "annotation": "ProfilerStep annotations in the trace",
    "none": "none was found",
}


def steps(inputs: Inputs) -> tuple[Steps, list[NotObserved]]:
    """Durations of first and steady steps, over all ranks and rank by rank."""
    tables = inputs.tables
    timed = tables.steps.with_columns(((pl.col("end") - pl.col("start")) / MS).alias("ms"))
    steady = timed.filter(pl.col("step").is_in(steady_steps(tables)))
    first = timed.filter(pl.col("step") == 0)
    per_step = steady.group_by("step").agg(pl.col("ms").mean())["ms"]
    rows = []
    for rank in tables.ranks:
        mine = spread(steady.filter(pl.col("rank") == rank)["ms"])
        of_first = first.filter(pl.col("rank") == rank)["ms"]
        rows.append(
            RankSteps(
                rank=rank,
                first=of_first.item() if len(of_first) else None,
                count=mine.count,
                median=mine.median,
                p10=mine.p10,
                p90=mine.p90,
            )
        )
    section = Steps(
        source=tables.step_source,  # type: ignore[arg-type]
        boundary=_BOUNDARIES[tables.step_source],
        first=_mean(first["ms"]),
        micro_steps=_mean(steady["backwards"].cast(pl.Float64)),
        samples_per_s=None,
        steady=spread(per_step),
        per_rank=rows,
        excluded=_excluded(tables, timed),
    )
    missing = [
        NotObserved("steps.samples_per_s", None, "batch sizes are not recorded by this version"),
        NotObserved("steps.excluded.compile", None, "compilation is not recorded by this version"),
    ]
    if tables.step_source == "none":
        missing.append(NotObserved("steps.steady", None, "no step boundary was found"))
    elif not len(per_step):
        missing.append(NotObserved("steps.steady", None, "no step is steady on all ranks: the run is too short"))
    return section, missing


def spread(values: pl.Series) -> Spread:
    """Count, median and the 10th and 90th percentile of `values`."""
    return Spread(
        count=len(values),
        median=_number(values.median()),
        p10=_number(values.quantile(0.1, "linear")),
        p90=_number(values.quantile(0.9, "linear")),
    )


def _excluded(tables: Tables, timed: pl.DataFrame) -> Excluded:
    ranks = max(1, len(tables.ranks))
    ms = dict(timed.group_by("excluded").agg(pl.col("ms").sum() / ranks).iter_rows())
    # From a rank's first zone to its last one: what no step covers.
    spans = tables.zones.filter(pl.col("thread") == 0).group_by("rank").agg(pl.col("start").min(), pl.col("end").max())
    whole = float((spans["end"] - spans["start"]).sum()) / MS / ranks
    return Excluded(
        first=ms.get("first", 0.0),
        compile=None,
        export=ms.get("export", 0.0),
        out_of_step=max(0.0, whole - float(timed["ms"].sum()) / ranks) if len(timed) else None,
    )


def _mean(values: pl.Series) -> float | None:
    return _number(values.mean())


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
