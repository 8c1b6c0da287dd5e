"""Steps of traces that others recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.pipeline import build
from tests.unit.handmade import Event, kernel, mark, nccl, span, write_trace


def steps(path: Path, events: list[Event]) -> list[tuple[int, float]]:
    """Numbers and lengths in us."""
    tables = distprof.load(write_trace(path / "rank0.json", events)).tables
    return [(row["step"], (row["end"] - row["start"]) / 1e3) for row in tables.steps.iter_rows(named=True)]


def optimizer(ts: float) -> Event:
    return span("Optimizer.step#SGD.step", ts, 100)


def test_marks_come_before_optimizers(tmp_path: Path) -> None:
    events = [mark(7, 0, 1000), optimizer(500), optimizer(700), mark(8, 1000, 900), optimizer(1500)]
    assert steps(tmp_path, events) == [(7, 1000), (8, 900)]


def test_without_marks_an_optimizers_return_ends_a_step(tmp_path: Path) -> None:
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [span(loading, 0, 10), *(optimizer(ts) for ts in (500, 1500, 2500))]
    assert steps(tmp_path, events) == [(1, 1000), (2, 1000)], "what ends first began before the window"
    result = build(distprof.load(tmp_path / "rank0.json"))
    assert (result.steps.first, result.steps.steady.median) == (None, 1.0)
    excluded = result.steps.excluded
    assert (excluded.first, excluded.export, excluded.out_of_step) == (None, None, None)
    unseen = {row.what for row in result.not_observed}
    assert {"steps.first", *(f"steps.excluded.{name}" for name in ("first", "export", "out_of_step"))} <= unseen


def test_no_step_lies_between_two_windows(tmp_path: Path) -> None:
    for window in range(2):
        events = [optimizer(1_000_000 * window + ts) for ts in (500, 1500, 2500)]
        write_trace(tmp_path / f"window{window}.json", events, world_size=1)
    tables = distprof.load(tmp_path).tables
    lengths = ((tables.steps["end"] - tables.steps["start"]) / 1e3).to_list()
    assert list(zip(tables.steps["step"], lengths, strict=True)) == [(1, 1000), (2, 1000), (3, 1000), (4, 1000)]


def training(path: Path, rank: int, steps: range, *, comm: bool = True) -> None:
    """A step of 100 ms without marks; rank 1 is 14 ms late at its all-reduce, which ends on both ranks together."""
    events = []
    for step in steps:
        begin, created = 100_000 * step, 100_000 * step + 50_000 + 14_000 * rank
        if comm:
            events.append(span("c10d::allreduce_", created, 20, cat="cpu_op"))
            reduce = span("gloo:all_reduce", created + 10, 100_000 * step + 70_000 - created - 10)
            events.append({**reduce, "tid": 77})
        events.append(optimizer(begin + 99_900))
    write_trace(path / f"rank{rank}.json", events, rank=rank)


def test_a_window_that_opened_a_step_later_on_one_rank(tmp_path: Path) -> None:
    """Without marks and sequence numbers: the k-th step of one rank's window is not the k-th of the other's."""
    training(tmp_path, 0, range(12))
    training(tmp_path, 1, range(1, 12))
    run = distprof.load(tmp_path)
    result = build(run)
    pairs = run.tables.collectives.group_by("group", "seq", "kind").agg(
        pl.len(), (pl.col("ended").max() - pl.col("ended").min()).alias("apart"), pl.col("step").drop_nulls().n_unique()
    )
    assert (pairs["apart"].max(), sorted(pairs["len"])) == (0, [1] + [2] * 11)
    assert pairs["step"].max() == 1, "partners are in one step"
    assert result.communication.matched == 11
    starts = run.tables.steps.group_by("step").agg((pl.col("start").max() - pl.col("start").min()).alias("apart"))
    assert starts["apart"].max() == 0, "a step is the same on both ranks"
    assert result.communication.per_rank[0].wait == pytest.approx(14, abs=0.1)
    assert result.communication.per_rank[1].wait == pytest.approx(0, abs=0.1)
    assert "rank 1 was the last to arrive at 11 of 11 collectives" in result.stragglers.why


def test_steps_that_nothing_connects_are_not_compared(tmp_path: Path) -> None:
    training(tmp_path, 0, range(12), comm=False)
    training(tmp_path, 1, range(1, 12), comm=False)
    run = distprof.load(tmp_path)
    assert set(run.tables.steps["rank"]) == {0}
    [note] = [note for note in run.notes if note.rank == 1]
    assert "no collectives tell which of the other ranks' steps they are" in note.text
    result = build(run)
    assert (result.steps.per_rank[0].median, result.steps.per_rank[1].median) == (100.0, None)
    communication = result.communication
    assert (communication.collectives, communication.matched, communication.unmatched) == (None, None, None)


@pytest.mark.parametrize(("late_us", "said"), [(0.5, False), (15, False), (60, True)])
def test_who_was_late_by_less_than_clocks_tell_is_not_named(tmp_path: Path, late_us: float, said: bool) -> None:
    for rank in range(2):
        events = []
        for step in range(6):
            events += [mark(step, 1000 * step, 1000), nccl(1000 * step + 200 + late_us * rank, 300 - late_us * rank)]
        write_trace(tmp_path / f"{rank}.json", events, rank=rank)
    result = build(distprof.load(tmp_path))
    assert [row.rank for row in result.stragglers.ranks] == ([1] if said else [])


def test_without_either_the_figures_are_for_the_window(tmp_path: Path) -> None:
    result = build(distprof.load(write_trace(tmp_path / "x.json", [kernel("gemm", 0, 300), nccl(200, 400)])))
    assert result.steps.source == "none"
    assert (result.totals[0].compute, result.totals[0].comm, result.totals[0].exposed) == (0.3, 0.4, 0.3)
    assert result.communication.total is None
    reasons = {row.what: row.reason for row in result.not_observed}
    assert reasons["communication.total"] == "no step was recorded on all ranks"


def test_neighbours_whose_rounded_times_overlap_are_both_steps(tmp_path: Path) -> None:
    assert steps(tmp_path, [mark(4, 0, 1001), mark(5, 1000, 1000)]) == [(4, 1001), (5, 1000)]


def test_a_single_step_is_used_whatever_its_number(tmp_path: Path) -> None:
    result = build(distprof.load(write_trace(tmp_path / "x.json", [mark(0, 0, 1000), nccl(100, 50)])))
    assert result.steps.steady.median == 1.0
    result = build(distprof.load(write_trace(tmp_path / "x.json", [mark(0, 0, 1000), mark(1, 1000, 600)])))
    assert (result.steps.first, result.steps.steady.median) == (1.0, 0.6)


def test_a_collective_across_a_steps_edge_is_split_there(tmp_path: Path) -> None:
    events = [mark(4, 0, 1000), mark(5, 1000, 1000), nccl(900, 300)]
    result = build(distprof.load(write_trace(tmp_path / "x.json", events)))
    assert result.communication.total == pytest.approx(0.15), "0.1 ms in one step, 0.2 ms in the other"


def test_ranks_are_compared_on_the_steps_they_share(tmp_path: Path) -> None:
    write_trace(tmp_path / "0.json", [mark(number, 1000 * number, 1000 + number) for number in (3, 4, 5)], rank=0)
    write_trace(tmp_path / "1.json", [mark(number, 1000 * number, 1000) for number in (4, 5, 6)], rank=1)
    run = distprof.load(tmp_path)
    result = build(run)
    assert result.windows[0].steps == [4, 5]
    assert [row.count for row in result.steps.per_rank] == [2, 2]
    assert [(note.rank, note.text.split(" were")[0]) for note in run.notes] == [(0, "steps 3"), (1, "steps 6")]


def test_the_known_answer_of_a_big_job(shared: Path, tmp_path: Path) -> None:
    """Small here: 20 steps; per step 6 ms of computing and 2 ms of communication, 1.5 ms on rank 0, which is late."""
    script = shared / "cases" / "gen_big" / "gen_big.py"
    subprocess.run([sys.executable, script, tmp_path, "2", "4000", "gz"], check=True)
    result = build(distprof.load(tmp_path))
    for row, comm in zip(result.totals, (1.5, 2.0), strict=True):
        assert (row.compute, row.comm, row.exposed) == pytest.approx((20 * 6.0, 20 * comm, 20 * comm))
    assert [row.wait for row in result.communication.per_rank] == pytest.approx([0, 0.5], abs=1e-6)
    assert result.stragglers.verdict == "none", "0.5 ms of a step are no more than the noise"
    assert result.stragglers.noise == pytest.approx(0.5, rel=0.1)
