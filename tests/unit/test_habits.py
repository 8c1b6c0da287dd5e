"""Habits that waste steps, each planted, and its healthy twin; times are ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.analyze.findings import findings
from distprof.analyze.habits import HABITS
from distprof.analyze.inputs import Inputs
from distprof.result import Finding
from distprof.trace.tables import Tables
from tests.unit.jobs import Delays, job
from tests.unit.tables import inputs, judged


def offered(of: Tables) -> list[Finding]:
    prepared: Inputs = inputs(of)
    return [finding for habit in HABITS for finding in habit(prepared, judged(prepared))]


def renamed(of: Tables, kind: str) -> Tables:
    """The job whose `augment` zones are of another kind, in steps that hold them if they are out of step."""
    zones = of.zones.with_columns(kind=pl.when(pl.col("kind") == "zone").then(pl.lit(kind)).otherwise("kind"))
    return replace(of, zones=zones)


def in_some(ms: float, *, every: int = 1) -> Callable[[int, int], Delays]:
    """Rank 1 spends so long in `augment` in every so many steps."""
    return lambda rank, step: {"zone": ms} if rank == 1 and step % every == 0 else {}


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation"])
@pytest.mark.parametrize(("ms", "every", "per_step"), [(30.0, 1, 30.0), (60.0, 3, 20.0)])
def test_checkpoints_and_evaluation_in_steps(kind: str, ms: float, every: int, per_step: float) -> None:
    (found,) = offered(renamed(job(in_some(ms, every=every)), kind))
    assert (found.id, found.ranks) == (f"habit.{kind}_in_steps", [1])
    assert found.saves == pytest.approx(per_step)
    assert f"{ms:.1f} ms" in found.observation
    assert all(step % every == 0 for step in found.steps)
    assert found.severity == "critical"


def test_steps_that_are_out_of_step_for_it_count_and_the_first_does_not() -> None:
    of = renamed(job(in_some(60, every=3)), "checkpoint")
    steps = of.steps.with_columns(
        excluded=pl.when((pl.col("step") % 3 == 0) & (pl.col("step") > 0))
        .then(pl.lit("out_of_step"))
        .otherwise("excluded")
    )
    (found,) = offered(replace(of, steps=steps))
    assert found.saves == pytest.approx(20)
    assert found.steps == [3, 6, 9]


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation", "gc"])
def test_a_little_of_it_is_no_finding(kind: str) -> None:
    assert offered(renamed(job(in_some(0.8)), kind)) == []
    assert offered(job()) == []


def test_what_the_script_does_in_its_own_zones_is_its_own_affair() -> None:
    assert offered(job(in_some(30))) == []


def turns(rank: int, step: int) -> Delays:
    """A collection of 20 ms on another rank in each step, as it happens when each rank counts its own objects."""
    return {"gc": 20} if step % 4 == rank else {}


def test_garbage_is_collected_by_turns() -> None:
    (found,) = offered(job(turns, steps=12))
    assert found.id == "habit.gc"
    assert found.ranks == [0, 1, 2, 3]
    assert found.saves == pytest.approx(20)
    assert "in 11 of 11 steps for 20.0 ms, and the others wait for it" in found.observation
    assert "gc.freeze()" in found.next_check


def test_one_rank_that_collects_now_and_then() -> None:
    (found,) = offered(job(lambda rank, step: {"gc": 40} if (rank, step % 4) == (2, 1) else {}, steps=12))
    assert (found.id, found.ranks, found.steps) == ("habit.gc", [2], [1, 5, 9])
    assert found.saves == pytest.approx(40 * 3 / 11)


def test_one_that_is_named_for_it_as_a_straggler_is_not_told_twice() -> None:
    late: Any = lambda rank, step: {"gc": 20} if rank == 1 else {}  # noqa: E731
    prepared = inputs(job(late))
    assert [row.cause for row in judged(prepared).stragglers.ranks] == ["gc"]
    assert offered(job(late)) == []


def test_ranks_that_take_turns_are_one_finding_and_one_rank_that_always_collects_another() -> None:
    by_turns, always = inputs(job(turns, steps=12)), inputs(job(lambda rank, step: {"gc": 20} if rank == 1 else {}))
    for of, expected in ((by_turns, ["habit.gc"]), (always, ["straggler.gc"])):
        assert [found.id for found in findings(of, judged(of)) if found.id.endswith("gc")] == expected
