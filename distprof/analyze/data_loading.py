"""Whether the input pipeline keeps up."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.parts import LOADING, NEXT, STARTING
from distprof.analyze.ranks import training_zones
from distprof.analyze.steady import FEWEST_STEPS, MS, NO_STEP, pairs, steady_steps, times_of_steps
from distprof.result import DataLoading, NotObserved, RankLoading
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

STALL_SHARE = 0.1


def data_loading(inputs: Inputs) -> tuple[DataLoading, list[NotObserved]]:
    """Time in loaders per steady step and rank; a rank stalls if that, start-up of workers included, is more than a
    tenth of its step."""
    tables = inputs.tables
    used = steady_steps(tables)
    rows = [_of_rank(tables, training_zones(tables, rank, *LOADING), rank, used) for rank in tables.ranks]
    shares = [row.share_of_step for row in rows if row.share_of_step is not None]
    if len(used) < FEWEST_STEPS or not shares:
        verdict = "undecided"
    else:
        verdict = "stalls" if max(shares) > STALL_SHARE else "keeps_up"
    section = DataLoading(basis="zones", steps_used=len(used), verdict=verdict, per_rank=rows)  # type: ignore[arg-type]
    return section, _missing(section)


def _of_rank(tables: Tables, zones: pl.DataFrame, rank: int, used: list[int]) -> RankLoading:
    """`zones` are those of the rank's loaders."""
    steps = times_of_steps(tables, rank, used)
    waited = training_zones(tables, rank, *NEXT)
    wait = share = None
    if zones.height and len(steps):
        wait = _per_step(waited, steps) / MS
        share = _per_step(zones, steps) / float(np.diff(steps).mean())
    settings = loader_settings(tables, rank)
    return RankLoading(
        rank=rank,
        wait=wait,
        share_of_step=share,
        startup=_startup(zones),
        num_workers=settings.get("num_workers"),
        pin_memory=settings.get("pin_memory"),
    )


def _per_step(zones: pl.DataFrame, steps: Intervals) -> float:
    """Mean time in `zones` per step, in ns; zones inside them, such as a garbage collection, are a part of it."""
    return float(intervals.covered(intervals.union(pairs(zones, "start", "end")), steps[:, 0], steps[:, 1]).mean())


def _startup(zones: pl.DataFrame) -> float | None:
    """Time in `__iter__`, in each loader's first `__next__`, and in those that waited for workers to start; in ms."""
    if not zones.height:
        return None
    nexts = pl.col("kind") != "loader_start"
    first = nexts & (pl.col("start") == pl.col("start").filter(nexts).min().over("name"))
    starting = zones.filter(pl.col("kind").is_in(STARTING) | first)
    return float((starting["end"] - starting["start"]).sum()) / MS


def loader_settings(tables: Tables, rank: int) -> dict[str, Any]:
    """Facts of the loader that `rank` waited for longest in steady steps; {} where that is not known."""
    steps = times_of_steps(tables, rank, steady_steps(tables))
    waited = training_zones(tables, rank, *NEXT)
    if not len(steps) or not len(waited):
        return {}
    waits = {
        name: _per_step(of_loader, steps) for (name,), of_loader in waited.partition_by("name", as_dict=True).items()
    }
    longest = max(waits, key=lambda name: waits[name])
    loaders = tables.facts.get(rank, {}).get("loaders", ())
    return next((row for row in loaders if row["name"] == longest), {})


def _missing(section: DataLoading) -> list[NotObserved]:
    with_loader = [row for row in section.per_rank if row.startup is not None]
    without = [row.rank for row in section.per_rank if row.startup is None]
    missing = []
    if without:
        reason = "no torch DataLoader was iterated in the training thread"
        missing.append(NotObserved("data_loading.per_rank", without, reason))
    for figures, reason in (
        (("wait", "share_of_step"), NO_STEP),
        (("num_workers", "pin_memory"), "which loader was waited for in steps, or with which settings, is not known"),
    ):
        for figure in figures:
            ranks = [row.rank for row in with_loader if getattr(row, figure) is None]
            if ranks:
                missing.append(NotObserved(f"data_loading.per_rank.{figure}", ranks, reason))
    return missing
