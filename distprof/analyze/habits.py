"""Habits of training scripts that waste time in steps, on whatever rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import Judged
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import MS, pairs, steady_steps, times_of_steps
from distprof.result import Finding
from distprof.trace import intervals

_WORTH_SHARE = 0.02  # of the step: a habit that costs less is not told
_LISTED_STEPS = 5
# What keeps a step out of the figures though nothing of the script's is wrong with it.
_NOT_OF_THE_SCRIPT = ("first", "export")

Floats = npt.NDArray[np.float64]


def checkpoints_in_steps(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Saving takes much of the time of all steps."""
    return _out_of_place(
        inputs,
        judged,
        "checkpoint",
        where="in torch.save",
        hypothesis="the training waits until the state is written, and the other ranks for the one that writes",
        next_check="write it seldom, or in the background: torch.distributed.checkpoint.async_save",
    )


def evaluation_in_steps(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Evaluation takes much of the time of all steps."""
    return _out_of_place(
        inputs,
        judged,
        "evaluation",
        where="in forward passes for evaluation",
        hypothesis="the model is evaluated between training steps, on all ranks or on one that the others wait for",
        next_check="evaluate seldom, on fewer batches, or share the batches among all ranks",
    )


def _out_of_place(
    inputs: Inputs, judged: Judged, kind: str, *, where: str, hypothesis: str, next_check: str
) -> list[Finding]:
    """A finding if zones of this kind take much of the training's steps, those that are not steady among them."""
    counted = inputs.tables.steps.filter(~pl.col("excluded").is_in(_NOT_OF_THE_SCRIPT).fill_null(False))
    steps = sorted(counted["step"].unique())
    spent = _per_step(inputs, kind, steps, threads=(0,))
    if not spent.size or not spent.any():
        return []
    worst = int(np.argmax(spent.mean(axis=1)))
    rank, saves = inputs.tables.ranks[worst], float(spent[worst].mean())
    if judged.share(saves) < _WORTH_SHARE:
        return []
    hit = int(np.count_nonzero(spent[worst]))
    return [
        Finding(
            id=f"habit.{kind}_in_steps",
            severity=judged.severity(saves),
            ranks=[rank],
            steps=_largest(spent[worst], steps),
            observation=f"rank {rank} spends {spent[worst].sum() / hit:.1f} ms {where} in {hit} of {len(steps)} steps, "
            f"{saves:.1f} ms per step in the mean",
            hypothesis=hypothesis,
            next_check=next_check,
            evidence={f"zones.{kind}": saves, "zones.steps": float(hit)},
            saves=saves,
        )
    ]


def garbage_collection(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Ranks collect garbage now and then, each in steps of its own, and so stop them all; not if one always does."""
    if any(row.cause == "gc" and row.pattern == "persistent" for row in judged.stragglers.ranks):
        return []
    steps = steady_steps(inputs.tables)
    spent = _per_step(inputs, "gc", steps, threads=None)
    if not spent.size:
        return []
    # The slowest rank stops a step; what all of them spend in it anyway is not lost by taking turns.
    saves = float(spent.max(axis=0).mean())
    if judged.share(saves) < _WORTH_SHARE:
        return []
    stopped = np.flatnonzero(spent.max(axis=0))
    worst = int(np.argmax(spent.sum(axis=1)))
    ranks = [rank for rank, own in zip(inputs.tables.ranks, spent, strict=True) if own.sum() > spent[worst].sum() / 2]
    others = " and the others wait for it" if inputs.tables.world_size > 1 else ""
    return [
        Finding(
            id="habit.gc",
            severity=judged.severity(saves),
            ranks=ranks,
            steps=_largest(spent.max(axis=0), steps),
            observation=f"garbage collection stops a rank in {len(stopped)} of {len(steps)} steps for "
            f"{spent.max(axis=0)[stopped].mean():.1f} ms,{others} {saves:.1f} ms per step in the mean",
            hypothesis="Python's collector walks over all objects whenever enough new ones were made, on each rank "
            "when it pleases",
            next_check="call gc.freeze() after set-up, or gc.disable() and collect on all ranks at the same step",
            evidence={"zones.gc": saves, "zones.steps": float(len(stopped))},
            saves=saves,
        )
    ]


def _per_step(inputs: Inputs, kind: str, steps: list[int], *, threads: tuple[int, ...] | None) -> Floats:
    """Time in zones of a kind, in ms: shape (ranks, steps). Of steps that not all ranks have, nothing is told."""
    tables = inputs.tables
    zones = tables.zones.filter(pl.col("kind") == kind)
    if threads is not None:
        zones = zones.filter(pl.col("thread").is_in(threads))
    rows = []
    for rank in tables.ranks:
        times = times_of_steps(tables, rank, steps)
        if len(times) < len(steps):
            return np.empty((0, 0))
        spent = intervals.union(pairs(of_rank(zones, rank), "start", "end"))
        rows.append(intervals.covered(spent, times[:, 0], times[:, 1]) / MS)
    return np.array(rows)


def _largest(values: Floats, steps: list[int]) -> list[int]:
    """The steps with the largest values above 0, ascending."""
    order = np.argsort(-values, kind="stable")[:_LISTED_STEPS]
    return sorted(steps[index] for index in order if values[index] > 0)


HABITS: tuple[Callable[[Inputs, Judged], list[Finding]], ...] = (
    checkpoints_in_steps,
    evaluation_in_steps,
    garbage_collection,
)
