"""Where steps of other people's jobs go; the figures of `totals` were computed independently, see test_real_traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from distprof.result import BreakdownRow, Result

ALL = ("dlrm8", "torchrec4-straggler", "torchrec4-overlap")


@cache
def result_of(path: Path) -> Result:
    return build(distprof.load(path, ranks={path: 0} if "bert" in path.name else None))


def added_up(row: BreakdownRow) -> float:
    parts = ("data_wait", "h2d", "compute", "comm_exposed", "sync_wait", "idle", "other")
    return sum(getattr(row, part) or 0 for part in parts)


@pytest.mark.parametrize("name", ALL)
def test_parts_add_up_and_devices_are_busy_or_idle(shared: Path, name: str) -> None:
    result = result_of(shared / "traces" / name)
    for row in result.breakdown:
        assert (row.basis, row.comm_wait is None) == ("window", False)
        assert added_up(row) == pytest.approx(row.step)
        assert (row.comm_wait or 0) + (row.comm_transfer or 0) == pytest.approx(row.comm_exposed)
    for use in result.device_use or []:
        assert (use.busy or 0) + (use.idle or 0) == pytest.approx(use.step)
    assert [use.device for use in result.device_use or []] == [row.rank for row in result.ranks]


def test_one_step_is_what_totals_say(shared: Path) -> None:
    """All of dlrm8's work lies inside its one step."""
    result = result_of(shared / "traces" / "dlrm8")
    for row, total in zip(result.breakdown, result.totals, strict=True):
        assert (row.compute, row.comm_exposed) == pytest.approx((total.compute, total.exposed))
        assert (row.comm_exposed or 0) + (row.comm_overlapped or 0) == pytest.approx(total.comm)


def test_the_straggler_is_idle_while_the_others_wait_for_it(shared: Path) -> None:
    result = result_of(shared / "traces" / "torchrec4-straggler")
    waits = {row.rank: row.comm_wait for row in result.breakdown}
    assert waits.pop(2) == pytest.approx(0, abs=0.1)
    assert list(waits.values()) == pytest.approx([995] * 3, rel=0.01)
    culprit = result.breakdown[2]
    assert culprit.other == pytest.approx(1043, rel=0.01)
    slow = {use.rank: use.idle_because.host_slow_to_launch for use in result.device_use or []}
    assert slow[2] == pytest.approx(1042, rel=0.01)
    assert max(value or 0 for rank, value in slow.items() if rank != 2) < 50


def test_hosts_wait_for_devices_that_wait_for_ranks(shared: Path) -> None:
    """The copy of a mask to the host waits until the other ranks' collectives are through."""
    waits = {(row.rank, row.kind): row for row in result_of(shared / "traces" / "torchrec4-straggler").sync_waits or []}
    for rank in (0, 1, 3):
        assert waits[rank, "copy"].wait == pytest.approx(665, rel=0.01)
        assert waits[rank, "copy"].device_busy == pytest.approx(662, rel=0.01)
        assert waits[rank, "copy"].top_callers[0] == "aten::index in interaction arch flat"
    assert (waits[2, "copy"].wait or 0) < 30


def test_steps_with_a_collective_that_a_window_cut_off_are_left_out(shared: Path) -> None:
    result = result_of(shared / "traces" / "torchrec4-overlap")
    assert {row.steps_used for row in result.breakdown} == {2}
    assert {use.steps_used for use in result.device_use or []} == {3}


@pytest.mark.parametrize("name", ["mi300-bert-small", "h100-bert-small"])
def test_the_line_of_python_that_waits(shared: Path, name: str) -> None:
    """`.item()` under CUDA and HIP; the synchronisation is the profiling script's."""
    waits = {row.kind: row for row in result_of(shared / "traces" / "single" / f"{name}.json.gz").sync_waits or []}
    assert set(waits) == {"item", "device"}
    assert waits["item"].top_callers == [
        "aten::is_nonzero at transformers/modeling_attn_mask_utils.py(429): _prepare_4d_attention_mask_for_sdpa"
    ]
    assert waits["device"].top_callers == ["at moca/library/profiling/profile.py(34): run_torch_profiler"]


def test_ddp_on_the_cpu_blocks_at_the_end_of_backward(shared: Path) -> None:
    result = result_of(shared / "traces" / "single" / "gloo-rank34-of-300.pt.trace.json.gz")
    [row] = result.breakdown
    assert added_up(row) == pytest.approx(row.step)
    assert row.comm_exposed == pytest.approx(212.2, abs=0.1)
    assert row.comm_wait is None, "299 ranks left no trace"
    [wait] = result.sync_waits or []
    assert (wait.kind, wait.count, wait.wait) == ("end_of_backward", 5, pytest.approx(212.2, abs=0.1))


def test_the_handed_sum_by_hand(shared: Path) -> None:
    [row] = result_of(shared / "cases" / "overlap-hand-sum").breakdown
    assert (row.compute, row.comm_exposed, row.comm_overlapped) == pytest.approx((0.5, 0.1, 0.4))
    assert row.h2d == pytest.approx(0.05), "what of the copy is not hidden behind communication"
    assert added_up(row) == pytest.approx(1.0)


def test_the_handed_stall(shared: Path) -> None:
    result = result_of(shared / "cases" / "gloo-cpu-dataloader-stall")
    assert [row.data_wait for row in result.breakdown] == pytest.approx([5, 25]), "5 in each step, 45 in one"
    assert [row.comm_wait for row in result.breakdown] == pytest.approx([17.48, 0])
    assert [added_up(row) for row in result.breakdown] == pytest.approx([100, 100])


@pytest.mark.parametrize("case", ["gpu-clock-behind-cpu", "multi-process-groups", "comm-kernel-names", "missing-rank"])
def test_parts_of_handed_cases_add_up(shared: Path, case: str) -> None:
    result = result_of(shared / "cases" / case)
    assert result.breakdown
    for row in result.breakdown:
        if row.step is not None:
            assert added_up(row) == pytest.approx(row.step)
            assert min(getattr(row, part) or 0 for part in ("compute", "other", "comm_overlapped")) >= 0
