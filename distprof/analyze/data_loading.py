"""Whether the input pipeline keeps up."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.parts import LOADING
from distprof.analyze.steady import FEWEST_STEPS, MS, times_of_steps
from distprof.result import DataLoading, NotObserved, RankLoading
from distprof.trace.tables import Tables

STALL_SHARE = 0.1


def data_loading(inputs: Inputs) -> tuple[DataLoading, list[NotObserved]]:
    """Time in loaders per steady step and rank; a rank stalls if that is more than a tenth of its step."""
    tables, own = inputs.tables, inputs.own
    zones = tables.zones.filter((pl.col("thread") == 0) & pl.col("kind").is_in(LOADING))
    with_loader = set(zones["rank"].unique())
    waited = own.of_kind(*LOADING).mean(axis=1) / MS if own.steps else None
    rows = []
    for index, rank in enumerate(own.ranks):
        wait = float(waited[index]) if waited is not None and rank in with_loader else None
        steps = times_of_steps(tables, rank, own.steps)
        settings = _longest_waited_for(tables, zones.filter(pl.col("rank") == rank), rank)
        rows.append(
            RankLoading(
                rank=rank,
                wait=wait,
                share_of_step=wait * MS / float(np.diff(steps).mean()) if wait is not None else None,
                startup=_startup(zones.filter(pl.col("rank") == rank)),
                num_workers=settings.get("num_workers"),
                pin_memory=settings.get("pin_memory"),
            )
        )
    shares = [row.share_of_step for row in rows if row.share_of_step is not None]
    if len(own.steps) < FEWEST_STEPS or not shares:
        verdict = "undecided"
    else:
        verdict = "stalls" if max(shares) > STALL_SHARE else "keeps_up"
    section = DataLoading(basis="zones", steps_used=len(own.steps), verdict=verdict, per_rank=rows)  # type: ignore[arg-type]
    without = [rank for rank in own.ranks if rank not in with_loader]
    reason = "no torch DataLoader was iterated in the training thread"
    return section, [NotObserved("data_loading.per_rank.wait", without, reason)] if without else []


def _startup(zones: pl.DataFrame) -> float | None:
    """Time in `__iter__` and in each loader's first `__next__`, in ms."""
    if not zones.height:
        return None
    ms = (zones["end"] - zones["start"]) / MS
    timed = zones.with_columns(ms.alias("ms")).sort("start")
    first = timed.filter(pl.col("kind") == "data_loading").group_by("name").agg(pl.col("ms").first())["ms"].sum()
    return float(timed.filter(pl.col("kind") == "loader_start")["ms"].sum()) + float(first)


def _longest_waited_for(tables: Tables, zones: pl.DataFrame, rank: int) -> dict[str, Any]:
    if not zones.height:
        return {}
    longest = zones.group_by("name").agg((pl.col("end") - pl.col("start")).sum().alias("ns")).sort("ns")["name"][-1]
    loaders = tables.facts.get(rank, {}).get("loaders", ())
    return next((row for row in loaders if row["name"] == longest), {})
