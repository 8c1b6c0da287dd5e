"""The pictures show what was planted, and stay small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.analyze import gantt, pictures
from distprof.analyze.inputs import Inputs, prepare
from distprof.analyze.pictures import with_pictures
from distprof.analyze.registry import analyze
from distprof.clock.align import align
from distprof.pipeline import build
from distprof.result import Clock as ResultClock
from distprof.result import Finding, GanttBar, GanttStep, Lateness
from tests.unit.results import straggler
from tests.worlds import Clock, Delay, World, simulate

DELAY = 60.0


def inputs_of(world: World, *, clock: ResultClock | None = None) -> Inputs:
    tables = simulate(world)
    return prepare(tables, clock or align(tables)[0])


def drawn(inputs: Inputs, findings: Sequence[Finding] = ()) -> tuple[Lateness | None, list[GanttStep], list[Any]]:
    sections = with_pictures(inputs, {"findings": findings, "not_observed": []})
    return sections["lateness"], sections["gantt"], sections["not_observed"]


def about(rank: int, steps: Sequence[int] = ()) -> Finding:
    return replace(straggler().findings[0], ranks=[rank], steps=list(steps))


def bars(step: GanttStep, rank: int, lane: str, *kinds: str) -> list[GanttBar]:
    return [bar for bar in step.bars if (bar.rank, bar.lane) == (rank, lane) and (not kinds or bar.kind in kinds)]


def total(found: Sequence[GanttBar]) -> float:
    return sum(bar.end - bar.start for bar in found)


@pytest.fixture(scope="module")
def late() -> Inputs:
    return inputs_of(World(ranks=4, steps=24, delays=[Delay(rank=2, kind="data_loading", ms=DELAY)]))


def test_the_late_rank_is_late_in_the_picture_and_nobody_else(late: Inputs) -> None:
    picture, _, unseen = drawn(late)
    assert picture is not None and unseen == []
    assert picture.first_steps == picture.last_steps and picture.steps_used == len(picture.first_steps)
    for row in picture.ranks:
        assert row.median == pytest.approx(DELAY if row.rank == 2 else 0.0, abs=0.05 * DELAY)
        assert row.largest == pytest.approx(max(row.late), abs=1e-3)
        assert row.late[picture.first_steps.index(row.largest_step)] == max(row.late)


def test_only_the_steps_that_were_late_show_it() -> None:
    steps = [9, 13, 14, 19]
    world = World(ranks=4, steps=24, windows=(), delays=[Delay(rank=1, kind="forward", ms=DELAY, steps=steps)])
    picture, shown, _ = drawn(inputs_of(world), [about(1, steps)])
    assert picture is not None
    late = [step for step, ms in zip(picture.first_steps, picture.ranks[1].late, strict=True) if ms > DELAY / 2]
    assert late == steps
    assert shown[0].why == "finding" and shown[0].step in steps
    assert {step.step for step in shown if step.why == "late"}.issuperset(set(steps) - {shown[0].step})
    assert next(step for step in shown if step.why == "typical").step not in steps


def test_a_step_across_ranks_shows_the_culprit_and_its_victims(late: Inputs) -> None:
    sections = with_pictures(late, analyze(late))
    step = sections["gantt"][0]
    assert (step.why, step.about, step.aligned, step.ranks) == ("finding", [2], True, [0, 1, 2, 3])
    assert total(bars(step, 2, "thread", "data_loading")) == pytest.approx(DELAY + 2.0, rel=0.05)
    assert total(bars(step, 2, "thread", "wait")) < 0.05 * DELAY
    for rank in (0, 1, 3):
        assert total(bars(step, rank, "thread", "wait")) == pytest.approx(DELAY, rel=0.1)
        assert total(bars(step, rank, "collectives", "wait")) == pytest.approx(3 * DELAY, rel=0.1)
    buckets = bars(step, 0, "collectives", "transfer")
    assert [(bar.bucket, bar.bytes) for bar in buckets] == [(0, 2_000_000), (1, 4_000_000), (2, 1_000_000)]


def test_a_threads_bars_tile_its_step(late: Inputs) -> None:
    _, shown, _ = drawn(late)
    steps = late.tables.steps
    for step in shown:
        for rank in step.ranks:
            found = bars(step, rank, "thread")
            assert all(a.end == b.start for a, b in pairwise(found))
            (row,) = steps.filter(steps["rank"] == rank).filter(step=step.step).iter_rows(named=True)
            assert found[-1].end - found[0].start == pytest.approx((row["end"] - row["start"]) / 1e6, abs=1e-3)
        assert min(bar.start for bar in step.bars) == 0
        assert max(bar.end for bar in step.bars if bar.lane == "thread") == pytest.approx(step.duration, abs=1e-3)


def test_a_healthy_run_has_a_typical_step_and_no_finding() -> None:
    picture, shown, _ = drawn(inputs_of(World(ranks=4, steps=16)))
    assert picture is not None and max(row.largest for row in picture.ranks) < 5.0
    assert [step.why for step in shown] == ["typical", *["late"] * (len(shown) - 1)]
    assert shown[0].step in range(5, 10)  # inside the window, where ends of collectives are known


def test_steps_of_a_window_are_preferred_for_a_finding(late: Inputs) -> None:
    _, shown, _ = drawn(late, [about(2, [1, 2, 3])])
    assert shown[0].step in range(5, 10)


def test_without_comparable_clocks_each_rank_counts_from_its_own_beginning(late: Inputs) -> None:
    clock = replace(late.clock, verdict="unaligned", reference_rank=None)
    world = World(ranks=4, steps=12, ranks_per_host=2, clocks=[Clock(), Clock(offset_ms=5000.0)])
    _, shown, _ = drawn(inputs_of(world, clock=clock))
    step = shown[0]
    assert not step.aligned
    assert [bars(step, rank, "thread")[0].start for rank in step.ranks] == [0, 0, 0, 0]
    assert step.duration < 100.0
    assert {bar.kind for bar in step.bars}.isdisjoint({"wait", "transfer"})


def test_of_many_ranks_some_are_shown_the_culprit_among_them() -> None:
    world = World(ranks=40, steps=8, windows=(), delays=[Delay(rank=29, kind="forward", ms=DELAY)])
    _, shown, _ = drawn(inputs_of(world), [about(29)])
    assert all(len(step.ranks) == gantt.MOST_RANKS for step in shown)
    assert all(29 in step.ranks for step in shown)
    assert {bar.rank for bar in shown[0].bars} == set(shown[0].ranks)


def test_long_runs_are_drawn_in_few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_COLUMNS", 6)
    late = Delay(rank=1, kind="forward", ms=DELAY, steps=[11])
    picture, _, _ = drawn(inputs_of(World(ranks=3, steps=21, windows=(), delays=[late])))
    assert picture is not None
    assert len(picture.first_steps) == 5 and picture.steps_used == 20
    assert (picture.first_steps[0], picture.last_steps[-1]) == (1, 20)
    shows = [first <= 11 <= last for first, last in zip(picture.first_steps, picture.last_steps, strict=True)]
    assert [ms > DELAY / 2 for ms in picture.ranks[1].late] == shows
    monkeypatch.setattr(pictures, "MOST_VALUES", 9)
    picture, _, _ = drawn(inputs_of(World(ranks=3, steps=21, windows=())))
    assert picture is not None and sum(len(row.late) for row in picture.ranks) <= 9


def test_lanes_with_many_bars_keep_the_longest(monkeypatch: pytest.MonkeyPatch, late: Inputs) -> None:
    monkeypatch.setattr(gantt, "MOST_BARS", 3)
    _, shown, _ = drawn(late, [about(2)])
    step = shown[0]
    assert len(bars(step, 2, "thread")) == 3 and step.left_out > 0
    assert bars(step, 2, "thread")[0].kind == "data_loading"


def test_one_rank_has_no_lateness() -> None:
    picture, shown, unseen = drawn(inputs_of(World(ranks=1, steps=8, buckets=())))
    assert picture is None and [row.what for row in unseen] == ["lateness"]
    assert [(step.why, step.ranks) for step in shown] == [("typical", [0])]


def test_devices_compute_wait_and_transfer(shared: Path) -> None:
    result = build(distprof.load(shared / "cases" / "clock-skew-two-hosts"))
    assert result.lateness is not None and result.lateness.basis == "window"
    for step in result.gantt:
        for rank in step.ranks:
            found = bars(step, rank, "thread")
            assert {"compute", "transfer"}.issubset({bar.kind for bar in found})
            assert all(a.end == b.start for a, b in pairwise(found))


def test_without_steps_it_says_so() -> None:
    picture, shown, unseen = drawn(inputs_of(World(ranks=2, steps=1, windows=())))
    assert (picture, shown) == (None, [])
    assert [row.what for row in unseen] == ["lateness", "gantt"]
