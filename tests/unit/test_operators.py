"""Operators and kernels per steady step; times are ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.analyze.operators import MOST_ROWS, kernels, operators
from distprof.result import Kernel as KernelRow
from distprof.result import Operator as OperatorRow
from tests.unit.tables import Kernel, Operator, Step, inputs, tables

STEPS = [Step(rank, step, 100 * step, 100 * step + 100) for rank in (0, 1) for step in (1, 2)]
WINDOWS = [(rank, 99.0, 301.0) for rank in (0, 1)]


def called(rank: int, at: float, ms: float) -> list[Operator]:
    """`aten::linear` that takes so long by itself, and calls `aten::addmm` for 3 ms, which calls `aten::copy_`."""
    return [
        Operator(rank, at, at + ms + 3, "aten::linear"),
        Operator(rank, at + 1, at + 4, "aten::addmm", leaf=False),
        Operator(rank, at + 2, at + 3, "aten::copy_", leaf=False),
    ]


def found(rows: list[Operator], **more: Any) -> tuple[dict[str, OperatorRow], set[str]]:
    what: dict[str, Any] = {"ranks": [0, 1], "steps": STEPS, "windows": WINDOWS, "operators": rows}
    table, missing = operators(inputs(tables(**what | more)))
    return {row.name: row for row in table or []}, {row.what for row in missing}


BOTH = [*called(0, 110, 10), *called(0, 210, 20), *called(1, 110, 30), *called(1, 150, 10), *called(1, 210, 30)]


def test_calls_own_time_and_time_with_what_they_call_per_step() -> None:
    rows, missing = found(BOTH)
    linear, addmm, copy = rows["aten::linear"], rows["aten::addmm"], rows["aten::copy_"]
    assert linear.calls == (1 + 1.5) / 2
    assert linear.self == pytest.approx((15 + 35) / 2), "rank 0 takes 10 and 20 ms, rank 1 takes 40 and 30"
    assert linear.inclusive == pytest.approx((18 + 39.5) / 2)
    assert (linear.spread, linear.slowest_rank) == (pytest.approx(20), 1)
    assert (addmm.self, addmm.inclusive) == (pytest.approx(2 * 1.25), pytest.approx(3 * 1.25))
    assert (copy.self, copy.inclusive) == (pytest.approx(1.25), pytest.approx(1.25))
    assert {row.per for row in rows.values()} == {"step"}
    assert missing == set()
    assert next(iter(rows)) == "aten::linear", "the one with most time of its own"


def test_what_one_rank_never_calls_is_zero_there() -> None:
    rows, _ = found([*BOTH, Operator(1, 190, 196, "aten::sort")])
    assert (rows["aten::sort"].self, rows["aten::sort"].spread) == (pytest.approx(1.5), pytest.approx(3))
    assert rows["aten::sort"].slowest_rank == 1


def test_calls_out_of_steady_steps_do_not_count() -> None:
    steps = [*STEPS, *(Step(rank, 3, 300, 400, "export") for rank in (0, 1))]
    windows = [(rank, 99.0, 401.0) for rank in (0, 1)]
    rows, _ = found([*BOTH, *called(0, 20, 50), *called(0, 310, 50)], steps=steps, windows=windows)
    assert rows["aten::linear"].self == pytest.approx(25)


def test_a_call_inside_one_of_its_name_counts_but_its_time_only_once() -> None:
    rows, _ = found([Operator(0, 110, 150, "aten::sum"), Operator(0, 120, 130, "aten::sum")])
    row = rows["aten::sum"]
    assert (row.calls, row.self, row.inclusive) == (1, pytest.approx(20), pytest.approx(20))


def test_a_single_rank_has_no_spread() -> None:
    rows, missing = found(BOTH[:6], ranks=[0], steps=STEPS[:2], windows=WINDOWS[:1])
    assert rows["aten::linear"].self == pytest.approx(15)
    assert (rows["aten::linear"].spread, rows["aten::linear"].slowest_rank) == (None, None)
    assert missing == {"operators.spread", "operators.slowest_rank"}


def test_a_rank_without_a_window_is_told_and_not_in_the_means() -> None:
    of = tables(ranks=[0, 1], steps=STEPS, windows=WINDOWS[:1], operators=BOTH[:6])
    table, missing = operators(inputs(of))
    assert table is not None
    assert table[0].self == pytest.approx(15)
    assert [row.ranks for row in missing if row.what == "operators"] == [[1]]


def test_where_no_step_is_known_the_windows_count_as_a_whole() -> None:
    rows, _ = found(BOTH[:6], ranks=[0], steps=[], windows=WINDOWS[:1], source="none")
    row = rows["aten::linear"]
    assert (row.per, row.calls, row.self) == ("window", 2, pytest.approx(30))


def test_no_window_is_not_no_operator() -> None:
    table, missing = operators(inputs(tables(ranks=[0, 1], steps=STEPS)))
    assert table is None
    assert [(row.what, row.ranks) for row in missing] == [("operators", None)]


def test_of_many_those_with_most_time_are_kept() -> None:
    rows, _ = found([Operator(0, 110 + index, 110.5 + index / 2, f"op{index}") for index in range(80)])
    assert len(rows) == 80 <= MOST_ROWS
    own = [row.self or 0.0 for row in rows.values()]
    assert own == sorted(own, reverse=True)


def work(rows: list[Kernel], **more: Any) -> tuple[dict[str, KernelRow], set[str]]:
    what: dict[str, Any] = {"ranks": [0, 1], "steps": STEPS, "windows": WINDOWS, "kernels": rows}
    table, missing = kernels(inputs(tables(**what | more)))
    return {row.name: row for row in table or []}, {row.what for row in missing}


def test_kernels_belong_to_the_step_that_launched_them() -> None:
    rows, _ = work(
        [
            Kernel(0, 150, 160, launched=140),
            Kernel(0, 305, 325, launched=290),  # it runs after the window's last step
            Kernel(1, 150, 180, launched=140),
            Kernel(1, 120, 124, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", launched=120),
            Kernel(1, 130, 140, "ncclDevKernel_AllReduce", collective="all_reduce", launched=130),
        ]
    )
    gemm, copy, reduce = rows["gemm"], rows["Memcpy HtoD (Pinned -> Device)"], rows["ncclDevKernel_AllReduce"]
    assert (gemm.kind, gemm.calls, gemm.total, gemm.collective) == ("kernel", 0.75, pytest.approx(15), None)
    assert (gemm.spread, gemm.slowest_rank) == (pytest.approx(0), 0)
    assert (copy.kind, copy.total) == ("copy", pytest.approx(1))
    assert (reduce.collective, reduce.total, reduce.slowest_rank) == ("all_reduce", pytest.approx(2.5), 1)


def test_without_a_device_there_are_none() -> None:
    table, missing = kernels(inputs(tables(ranks=[0, 1], steps=STEPS, windows=WINDOWS, operators=BOTH)))
    assert table is None
    assert [row.what for row in missing] == ["kernels"]


def test_ranks_of_any_number_are_told_apart() -> None:
    """8 ranks: the slowest is the one that was planted."""
    steps = [Step(rank, 1, 0, 100) for rank in range(8)]
    rows = [one for rank in range(8) for one in called(rank, 10, 5 + 10 * (rank == 6))]
    windows = [(rank, -1.0, 101.0) for rank in range(8)]
    table, _ = found(rows, ranks=range(8), steps=steps, windows=windows)
    assert (table["aten::linear"].slowest_rank, table["aten::linear"].spread) == (6, pytest.approx(10))
    assert table["aten::copy_"].spread == pytest.approx(0)


def test_other_events_are_no_operators() -> None:
    of = tables(ranks=[0, 1], steps=STEPS, windows=WINDOWS, operators=BOTH)
    marks = of.events.with_columns(cat=pl.lit("user_annotation"), name=pl.lit("Optimizer.step#SGD.step"))
    table, _ = operators(inputs(replace(of, events=pl.concat([of.events, marks]))))
    assert {row.name for row in table or []} == {"aten::linear", "aten::addmm", "aten::copy_"}
