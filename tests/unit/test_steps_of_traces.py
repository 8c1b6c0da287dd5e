"""Steps of traces that others recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    assert steps(tmp_path, events) == [(0, 600), (1, 1000), (2, 1000)]


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
    assert "rank 0 was the last to arrive at 20 of 20 collectives" in result.stragglers.why
