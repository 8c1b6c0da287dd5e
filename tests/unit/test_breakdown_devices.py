"""The parts of a step on a device, and of traces that others recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.analyze.breakdown import breakdown
from distprof.analyze.device_use import device_use
from distprof.analyze.inputs import NO_WORK
from distprof.analyze.syncs import sync_waits
from distprof.result import BreakdownRow
from distprof.trace.tables import STEPS, ZONES
from tests.unit.device_step import Sections, analysed, item, loader, reasons, steps, work
from tests.unit.handmade import Event, call, copy, kernel, mark, operator, span, write_trace
from tests.unit.tables import inputs

PARTS = ("data_wait", "h2d", "compute", "comm_wait", "comm_transfer", "sync_wait", "idle", "other")


def in_us(row: BreakdownRow) -> dict[str, float | None]:
    values = {part: getattr(row, part) for part in PARTS}
    return {part: None if value is None else round(value * 1e3, 6) for part, value in values.items()}


def added_up(row: BreakdownRow) -> float:
    communication = row.comm_exposed or 0
    return communication + sum(getattr(row, part) or 0 for part in PARTS if not part.startswith("comm_"))


def test_each_piece_of_a_devices_step_has_one_reason(tmp_path: Path) -> None:
    result = analysed(tmp_path, steps(loader(), work(), item()), steps(loader(), work(communicates_from=740), item()))
    assert [in_us(row) for row in result.breakdown] == [
        {
            "data_wait": 100,
            "h2d": 30,
            "compute": 390,
            "comm_wait": 0,  # it is the last
            "comm_transfer": 100,
            "sync_wait": 5,  # 455 to 460: the copy is over, and the host waits
            "idle": 0,
            "other": 375,  # 100 to 150, 460 to 710, 930 to 1000, and 5 us of copying to the host
        },
        {
            "data_wait": 100,
            "h2d": 30,
            "compute": 390,
            "comm_wait": 0,  # it waited from 740 to 780, while it computed
            "comm_transfer": 100,
            "sync_wait": 5,
            "idle": 0,
            "other": 375,
        },
    ]
    first, second = result.breakdown
    assert (first.comm_exposed, first.comm_overlapped) == pytest.approx((0.1, 0.02))
    assert (second.comm_exposed, second.comm_overlapped) == pytest.approx((0.1, 0.06))
    assert (first.basis, first.steps_used, first.step) == ("window", 1, 1.0)
    assert reasons(result, "breakdown") == {}


def test_a_kernel_that_waits_for_another_rank_is_comm_wait(tmp_path: Path) -> None:
    """Rank 1's kernel begins when the other's has for 60 us, of which the first 20 were hidden."""
    late = [event for event in work() if event["name"] != "gemm" or event["ts"] != 710]
    early = steps(loader(), work(communicates_from=780), item())
    result = analysed(tmp_path, early, steps(loader(), [*late[:-1], {**late[-1], "ts": 840, "dur": 60}], item()))
    waited, culprit = (in_us(row) for row in result.breakdown)
    assert (waited["comm_wait"], waited["comm_transfer"]) == (40, 60)
    assert (culprit["comm_wait"], culprit["comm_transfer"]) == (0, 60)
    assert [round(row.wait or 0, 6) for row in result.communication.per_rank] == [0.06, 0], "hidden or not"


def test_figures_agree_with_totals(tmp_path: Path) -> None:
    result = analysed(tmp_path, *(steps(loader(), work(), item(), count=3) for _ in range(2)))
    for row, total in zip(result.breakdown, result.totals, strict=True):
        assert row.steps_used == 3
        assert row.compute == pytest.approx((total.compute or 0) / 3)
        assert row.comm_exposed == pytest.approx((total.exposed or 0) / 3)
        assert (row.comm_exposed or 0) + (row.comm_overlapped or 0) == pytest.approx((total.comm or 0) / 3)
        assert added_up(row) == pytest.approx(row.step)


def test_who_waited_is_not_known_where_a_member_left_no_trace(tmp_path: Path) -> None:
    result = analysed(tmp_path, steps(loader(), work(), item()), [])
    [row] = result.breakdown
    assert (row.comm_wait, row.comm_transfer) == (None, None)
    assert row.comm_exposed == pytest.approx(0.1), "it communicated, whoever waited"
    assert added_up(row) == pytest.approx(1.0)
    assert set(reasons(result, "breakdown")) == {"breakdown.comm_wait", "breakdown.comm_transfer"}


def test_a_device_alone_tells_no_reason_to_be_idle(tmp_path: Path) -> None:
    """Only the device was recorded: its idle time has no reason, and that is not zero."""
    result = analysed(tmp_path, steps([event for event in work() if event["cat"] == "kernel"]))
    [row] = result.breakdown
    assert in_us(row)["idle"] == 1000 - 390 - 100
    assert (row.data_wait, row.sync_wait) == (None, None)
    assert added_up(row) == pytest.approx(1.0)
    assert {"breakdown.data_wait", "breakdown.sync_wait"} <= set(reasons(result, "breakdown"))
    assert result.sync_waits is None


def test_a_loader_that_torch_does_not_annotate_is_not_zero(tmp_path: Path) -> None:
    result = analysed(tmp_path, steps(work(), item()))
    [row] = result.breakdown
    assert row.data_wait is None
    assert in_us(row)["other"] == 475
    assert "DataLoader" in reasons(result, "breakdown")["breakdown.data_wait"]


def test_without_steps_the_window_is_cut(tmp_path: Path) -> None:
    events = [event for event in steps(work(), item()) if not event["name"].startswith("ProfilerStep")]
    [row] = analysed(tmp_path, events).breakdown
    assert (row.steps_used, row.step) == (0, pytest.approx(0.825)), "from 105 to 930"
    assert in_us(row)["compute"] == 390
    assert added_up(row) == pytest.approx(row.step)


def test_a_run_of_our_own_tells_by_its_zones_what_the_host_did(tmp_path: Path) -> None:
    """Rank 0 waits in `Work.wait` while its device is idle, and loads nothing; rank 1 recorded no window."""
    write_trace(tmp_path / "rank0.json", steps(work(), item()), world_size=2)
    traced = distprof.load(tmp_path).tables
    begin, end = traced.steps.select("start", "end").row(0)
    zone = [(0, "wait", "wait", 0, begin + 500_000, begin + 600_000)]
    of = replace(
        traced,
        ranks=[0, 1],
        zones=pl.DataFrame(zone, schema=ZONES, orient="row"),
        steps=pl.DataFrame([(rank, 1, begin, end, 1, None) for rank in (0, 1)], schema=STEPS, orient="row"),
        step_source="optimizer",
        facts={rank: {"host": "a", "boot_id": "b", "device": "cuda"} for rank in (0, 1)},
    )
    rows, missing = breakdown(inputs(of))
    assert (in_us(rows[0])["data_wait"], in_us(rows[0])["sync_wait"]) == (0, 100 + 5)
    assert added_up(rows[0]) == pytest.approx(1.0)
    assert (rows[1].basis, rows[1].compute, rows[1].data_wait) == ("zones", None, None)
    assert [row.reason for row in missing if row.ranks == [1] and row.what == "breakdown.compute"] == [NO_WORK]
    uses, _ = device_use(inputs(of))
    assert [round((use.idle_because.collective or 0) * 1e3) for use in uses or []] == [100]
    waits, unseen = sync_waits(inputs(of))
    assert [(row.rank, row.kind, row.basis) for row in waits or []] == [(0, "item", "window")]
    assert [(row.what, row.ranks) for row in unseen] == [("sync_waits", [1])]


def test_a_rank_whose_device_was_not_recorded(tmp_path: Path) -> None:
    host_only = [event for event in steps(loader(), work()) if event["cat"] not in {"kernel", "gpu_memcpy"}]
    result = analysed(tmp_path, steps(loader(), work(), item()), host_only)
    assert result.breakdown[1].compute is None
    rows = [row for row in result.not_observed if row.what == "breakdown.compute"]
    assert [(row.ranks, row.reason) for row in rows] == [
        ([1], "no Kineto window of this rank holds work of a device"),
    ]
    assert [row.rank for row in result.device_use or []] == [0]


def test_steps_that_compile_are_kept_apart(tmp_path: Path) -> None:
    """Step 2 recompiles for 900 us, and takes 1000 us more."""
    slow = [mark(2, 1000, 2000), operator("_compile.compile_inner (dynamo_timed)", 1100, 900)]
    events = [*steps(loader(), work(), item()), *slow, *shifted(steps(loader(), work(), item()), 3000, first=3)]
    result = analysed(tmp_path, events)
    assert result.steps.excluded.compile == pytest.approx(2.0)
    assert result.breakdown[0].step == pytest.approx(1.0)
    assert result.breakdown[0].steps_used == 2


def test_without_compilation_that_is_not_observed(tmp_path: Path) -> None:
    result = analysed(tmp_path, steps(loader(), work(), item(), count=3))
    assert result.steps.excluded.compile is None
    assert "steps.excluded.compile" in reasons(result, "steps")


def shifted(events: list[Event], by: float, *, first: int) -> list[Event]:
    """The same events later, and their first step numbered anew."""
    moved = [{**event, "ts": event["ts"] + by} for event in events]
    return [{**event, "name": f"ProfilerStep#{first}"} if "Profiler" in event["name"] else event for event in moved]


def ddp_on_cpu(*, data: float, awaited: bool = False) -> list[Event]:
    """Gloo: 100 ms steps. Backward runs nodes from 15 to 35 ms, its buckets are created at 20 and 30 and over at 78."""
    begin = data - 5000
    node, bucket = "autograd::engine::evaluate_function: AddmmBackward0", "c10d::allreduce_"
    events = [
        mark(1, 0, 100_000),
        span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, data),
        span("DistributedDataParallel.forward", begin + 5100, 10_000),
        operator("aten::addmm", begin + 6000, 8_000),
        operator(node, begin + 15_100, 20_000),
        operator("aten::mm", begin + 16_000, 3_000),
        operator(bucket, begin + 20_060, 30),
        operator(bucket, begin + 30_060, 30),
        {**span("gloo:all_reduce", begin + 20_100, 62_000 - 20_100 - begin), "tid": 2010},
        {**span("gloo:all_reduce", begin + 30_100, 78_000 - 30_100 - begin), "tid": 2011},
        span("Optimizer.step#SGD.step", 85_000, 5_000),
    ]
    if awaited:
        metric = {**span("gloo:all_reduce", 91_000, 3_000), "tid": 2010}
        events += [operator("c10d::allreduce_", 90_500, 30), metric]
    return events


def gloo(tmp_path: Path, **more: bool) -> Sections:
    """Rank 1 loads 40 ms longer, so that rank 0 waits at the end of its backward."""
    return analysed(tmp_path, ddp_on_cpu(data=5000, **more), ddp_on_cpu(data=45_000, **more))


def test_a_trace_of_ddp_on_the_cpu_tells_where_backward_waited(tmp_path: Path) -> None:
    result = gloo(tmp_path)
    victim, culprit = (in_us(row) for row in result.breakdown)
    assert victim == {
        "data_wait": 5000,
        "h2d": None,
        "compute": 11_000,
        "comm_wait": 70_060 - 35_100,
        "comm_transfer": 78_000 - 70_060,
        "sync_wait": None,
        "idle": None,
        "other": 100_000 - 5000 - 11_000 - (78_000 - 35_100),
    }
    assert (culprit["data_wait"], culprit["comm_wait"], culprit["comm_transfer"]) == (45_000, 0, 78_000 - 75_100)
    assert [added_up(row) for row in result.breakdown] == pytest.approx([100, 100])
    waits = [(row.kind, row.rank, row.count, round(row.wait or 0, 6)) for row in result.sync_waits or []]
    assert waits == [("end_of_backward", 0, 1, 42.9), ("end_of_backward", 1, 1, 2.9)]


def test_what_other_code_waits_for_is_not_known_from_a_trace(tmp_path: Path) -> None:
    result = gloo(tmp_path, awaited=True)
    row = result.breakdown[0]
    assert (row.data_wait, row.compute) == (5, 11)
    assert (row.comm_exposed, row.other) == (None, None)
    assert "no zones" in reasons(result, "breakdown")["breakdown.comm_exposed"]
    assert "no zones" in reasons(result, "sync_waits")["sync_waits"]


@pytest.mark.parametrize(
    "name", ["Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "Memcpy M2D (Memory -> Device)"]
)
def test_copies_to_the_device_under_all_names(tmp_path: Path, name: str) -> None:
    events = [mark(1, 0, 100), operator("aten::mm", 1, 5), call("xMemcpy", 1, 2, correlation=1)]
    [row] = analysed(tmp_path, [*events, copy(name, 10, 20, correlation=1), kernel("k", 40, 5)]).breakdown
    assert in_us(row)["h2d"] == 20
