"""What a step is in this run, and how long it takes."""

from __future__ import annotations

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import MS, NO_STEP, samples_per_step, steady_steps
from distprof.result import Excluded, NotObserved, RankSteps, Spread, Steps
from distprof.trace.tables import Tables

_BOUNDARIES = {
    "user": "each call of distprof.step()",
    "optimizer": "the return of the outermost optimizer step; of several optimizers the one that steps least often",
    "backward": "the return of the outermost backward that reduced gradients, since no optimizer stepped",
    "annotation": "ProfilerStep annotations in the trace",
    "none": "none was found",
}
_COMPILED = "only Kineto windows tell that a step compiled something, and only where torch annotates it"


def steps(inputs: Inputs) -> tuple[Steps, list[NotObserved]]:
    """Durations of first and steady steps, over all ranks and rank by rank."""
    tables = inputs.tables
    timed = tables.steps.with_columns(((pl.col("end") - pl.col("start")) / MS).alias("ms"))
    steady = timed.filter(pl.col("step").is_in(steady_steps(tables)))
    first = timed.filter(pl.col("step") == 0)
    per_step = steady.group_by("step").agg(pl.col("ms").mean())["ms"]
    rows = []
    # A rank that was cut off early leaves nothing to share.
    own = (timed if steady.is_empty() else steady).filter(pl.col("excluded").is_null())
    for rank in tables.ranks:
        mine = spread(of_rank(own, rank)["ms"])
        of_first = of_rank(first, rank)["ms"]
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
        samples_per_s=_samples_per_s(tables, per_step),
        steady=spread(per_step),
        per_rank=rows,
        excluded=_excluded(tables, timed),
    )
    return section, _missing(section)


def _missing(section: Steps) -> list[NotObserved]:
    seen = "" if section.excluded.compile is None else "what was found there is counted: "
    missing = [NotObserved("steps.excluded.compile", None, f"{seen}{_COMPILED}")]
    if section.samples_per_s is None:
        reason = "no torch DataLoader gave the training thread a batch with tensors in a steady step"
        missing.append(NotObserved("steps.samples_per_s", None, reason))
    if section.source == "none":
        reason = "no step boundary was found"
        figures = ("first", "micro_steps", "steady", "per_rank", "excluded")
        return missing + [NotObserved(f"steps.{figure}", None, reason) for figure in figures]
    if section.first is None:
        missing.append(NotObserved("steps.first", None, "the first step was not recorded"))
    elif without := [row.rank for row in section.per_rank if row.first is None]:
        missing.append(NotObserved("steps.per_rank.first", without, "these ranks made no step"))
    if without := [row.rank for row in section.per_rank if row.median is None]:
        missing.append(NotObserved("steps.per_rank.median", without, "no step of these ranks is steady"))
    if section.steady.median is None:
        missing.append(NotObserved("steps.steady", None, NO_STEP))
        missing.append(NotObserved("steps.micro_steps", None, NO_STEP))
    elif section.micro_steps is None:
        missing.append(NotObserved("steps.micro_steps", None, "no zones tell how often backward ran"))
    return missing


def _samples_per_s(tables: Tables, step_ms: pl.Series) -> float | None:
    samples, ms = samples_per_step(tables), _mean(step_ms)
    return samples * len(tables.ranks) / ms * 1e3 if samples is not None and ms else None


def spread(values: pl.Series) -> Spread:
    """Count, median and the 10th and 90th percentile of `values`."""
    return Spread(
        count=len(values),
        median=_number(values.median()),
        p10=_number(values.quantile(0.1, "linear")),
        p90=_number(values.quantile(0.9, "linear")),
    )


def _excluded(tables: Tables, timed: pl.DataFrame) -> Excluded:
    if not len(timed):
        return Excluded()
    ranks = timed["rank"].n_unique()
    ms = dict(timed.group_by("excluded").agg(pl.col("ms").sum() / ranks).iter_rows())
    # From a rank's first zone to its last one: what no step covers.
    zones = tables.zones.filter((pl.col("thread") == 0) & pl.col("rank").is_in(timed["rank"].unique().implode()))
    spans = zones.group_by("rank").agg(pl.col("start").min(), pl.col("end").max())
    whole = float((spans["end"] - spans["start"]).sum()) / MS / ranks
    outside = max(0.0, whole - float(timed["ms"].sum()) / ranks)
    return Excluded(
        first=ms.get("first", 0.0),
        compile=ms.get("compile"),
        export=ms.get("export", 0.0),
        out_of_step=outside + ms.get("out_of_step", 0.0),
    )


def _mean(values: pl.Series) -> float | None:
    return _number(values.mean())


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
