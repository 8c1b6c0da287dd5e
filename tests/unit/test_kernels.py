"""Kernels: which of them communicate, what launched them, and one logical collective counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import distprof
from distprof.pipeline import build
from distprof.trace.kinds import UNCLASSIFIED, kind_of, kinds_by_name, own_name
from distprof.trace.loaded import Run
from tests.unit.handmade import kernel, launch, mark, nccl, span, write_trace


def expected(case: Path) -> Any:
    return json.loads((case / "expected.json").read_text())


def of_kernels(run: Run, *columns: str) -> list[tuple[Any, ...]]:
    return run.tables.kernels.select(columns).rows()


def test_names_of_every_library(shared: Path) -> None:
    case = shared / "cases" / "comm-kernel-names"
    names = expected(case)
    kernels = distprof.load(case).tables.kernels
    communicating = kernels.filter(pl.col("collective").is_not_null() & (pl.col("collective") != UNCLASSIFIED))
    assert sorted(communicating["name"]) == sorted(names["comm"])
    assert sorted(kernels.filter(pl.col("collective").is_null())["name"]) == sorted(names["not_comm"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("nccldevkernel_reducescatter", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"),
        ("NCCLKERNEL_ALLREDUCE_x", "all_reduce"),
        ("mscclKernel_Sum_half_Simple(x)", "unknown"),
        ("void vllm::cross_device_reduce_1stage<float, 2>(vllm::RankData*)", "all_reduce"),
        ("void deep_ep::internode::dispatch<4>(int)", "all_to_all"),
        ("oneccl_allreduce_kernel", "all_reduce"),
        ("hcom_allReduce__123_0", "all_reduce"),
        ("my_fancy_allreduce_v2", UNCLASSIFIED),
        ("nvshmem_put(x)", UNCLASSIFIED),
        ("triton_poi_fused_all_reduce_like_0", None),
        ("void at::native::reduce_kernel<512,1>()", None),
        ("void (anonymous namespace)::softmax_warp_forward<ncclish>()", None),
        ("ampere_sgemm_128x64_tn", None),
        ("", None),
    ],
)
def test_kinds_by_name(name: str, kind: str | None) -> None:
    assert kinds_by_name(pl.Series([name])).to_list() == [kind]


def test_own_patterns_come_first() -> None:
    names = pl.Series(["my_fancy_allreduce_v2", "quick_ring(x)", "ncclDevKernel_SendRecv(x)"])
    patterns = [("fancy", None), ("^quick_ring$", "all_gather"), ("SendRecv", "all_to_all")]
    assert kinds_by_name(names, patterns).to_list() == ["all_reduce", "all_gather", "all_to_all"]


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("gloo:all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("wait", "wait"),
    ],
)
def test_kinds_of_operations(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind


def test_what_torch_calls_sending_and_receiving_tells_the_ranks_too() -> None:
    assert (kind_of("nccl:send 0->1"), kind_of("nccl:recv 12<-3")) == ("send", "recv")


def test_sending_and_receiving_by_its_annotation_is_no_collective(tmp_path: Path) -> None:
    shuffle = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    for rank, title in enumerate(("nccl:send 0->1", "nccl:recv 1<-0")):
        events = [
            mark(1, 0, 1000),
            span(title, 100, 40),
            launch(110, 1),
            kernel(shuffle, 200, 100, stream=20, correlation=1),
            span("nccl:all_reduce", 400, 40),
            launch(410, 2),
            nccl(500, 100, correlation=2),
        ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank)
    run = distprof.load(tmp_path)
    kinds = [("send", "all_reduce"), ("recv", "all_reduce")]
    assert of_kernels(run, "rank", "collective") == [(rank, kind) for rank in (0, 1) for kind in kinds[rank]]
    found = build(run).communication
    assert [row.kind for row in found.by_kind] == ["all_reduce"]
    assert (found.collectives, found.matched, found.unmatched, found.unclassified) == (1, 1, 0, 0)


def test_a_kernels_own_name() -> None:
    assert own_name("void a::b<c(d), 2>(e<f>*)") == "a::b"
    assert own_name("std::enable_if<x>::type (anonymous namespace)::k<1>(int)") == "std::enable_if"
    assert own_name("plain") == "plain"


def test_overlap_by_hand(shared: Path) -> None:
    case = shared / "cases" / "overlap-hand-sum"
    numbers = expected(case)
    result = build(distprof.load(case))
    [totals] = result.totals
    assert totals.compute == numbers["compute_us"] / 1e3
    assert totals.comm == numbers["comm_union_us"] / 1e3
    assert totals.exposed == numbers["exposed_us"] / 1e3, "copies are no compute"
    assert result.communication.collectives == numbers["n_collectives"]
    assert {row.kind for row in result.communication.by_kind} == {"all_reduce", "reduce_scatter"}


def test_one_collective_that_stands_there_five_times(tmp_path: Path) -> None:
    events = [
        mark(3, 0, 1000),
        span("c10d::allreduce_", 100, 60, cat="cpu_op"),
        span("record_param_comms", 105, 50, cat="cpu_op", **{"Collective name": "allreduce", "In msg nelems": 256}),
        span("nccl:all_reduce", 110, 40),
        launch(120, 7),
        launch(130, 8),
        nccl(200, 100, correlation=7),
        nccl(310, 50, correlation=8),
        {**span("nccl:all_reduce", 200, 160, cat="gpu_user_annotation"), "pid": 0, "tid": 20},
    ]
    events[2]["args"]["dtype"] = "Float"
    run = distprof.load(write_trace(tmp_path / "rank0.json", events))
    [call] = run.tables.collectives.rows(named=True)
    start = run.tables.steps["start"][0]
    times = [call[name] - start for name in ("created", "started", "ended")]
    assert times == [100_000, 200_000, 360_000], "two kernels of one call are one collective"
    assert (call["kind"], call["bytes"], call["step"]) == ("all_reduce", 1024, 3)


def test_metadata_comes_before_the_name(tmp_path: Path) -> None:
    """An annotation makes an all-to-all of a kernel that sends and receives; metadata make any kernel known."""
    events = [
        mark(3, 0, 1000),
        span("nccl:all_to_all", 10, 40),
        launch(20, 1),
        kernel("ncclDevKernel_SendRecv(x)", 100, 10, stream=20, correlation=1),
        kernel("ncclDevKernel_SendRecv(x)", 200, 10, stream=20),
        kernel("strange", 300, 10, stream=20, **{"Collective name": "_reduce_scatter_base"}),
        kernel("ncclDevKernel_SendRecv(x)", 400, 10, stream=20, **{"Collective name": "send"}),
    ]
    run = distprof.load(write_trace(tmp_path / "rank0.json", events))
    assert [kind for (kind,) in of_kernels(run, "collective")] == ["all_to_all", "send_recv", "reduce_scatter", "send"]
    assert run.tables.collectives["kind"].to_list() == ["all_to_all", "send_recv", "reduce_scatter"], "send is none"


def test_kernels_know_their_launches_and_stand_there_once(tmp_path: Path) -> None:
    one = kernel("gemm", 100, 50, correlation=5)
    events = [
        mark(3, 0, 1000),
        launch(90, 5),
        one,
        one,
        kernel("lost", 300, 10, correlation=6),
        kernel("none", 400, 10),
    ]
    run = distprof.load(write_trace(tmp_path / "rank0.json", events))
    start = run.tables.steps["start"][0]
    rows = of_kernels(run, "name", "correlation", "launched", "launch_end", "launch_thread")
    assert rows == [
        ("gemm", 5, start + 90_000, start + 93_000, 1000),
        ("lost", 6, None, None, None),
        ("none", None, None, None, None),
    ]


def test_a_device_whose_clock_is_behind_is_told_and_its_rank_not_early(shared: Path) -> None:
    case = shared / "cases" / "gpu-clock-behind-cpu"
    run = distprof.load(case)
    [note] = [note for note in run.notes if note.rank == 1]
    assert f"at least {expected(case)['min_gpu_shift_us_rank1']:.0f} us" in note.text
    result = build(run)
    assert result.communication.wait == pytest.approx(0, abs=1e-9)
    assert [row.offset_us for row in result.clock.devices] == [0, -expected(case)["true_shift_us"]]
    assert [row.offset_us for row in result.clock.ranks] == [0, 0]


def test_what_looks_like_communication_is_listed_with_its_time_and_can_be_named(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", [mark(3, 0, 1000), kernel("my_allreduce_v2", 100, 50)])
    run = distprof.load(path)
    [note] = run.notes
    assert "'my_allreduce_v2'" in note.text and "50 us" in note.text and "--collective" in note.text
    result = build(run)
    assert result.totals[0].comm == 0
    named = build(distprof.load(path, collectives=[("^my_allreduce", None)]))
    assert named.totals[0].comm == pytest.approx(0.05)
    assert named.totals[0].compute == 0


def test_a_job_of_several_ranks_without_communication_is_a_loud_warning(tmp_path: Path) -> None:
    result = build(distprof.load(write_trace(tmp_path / "rank0.json", [mark(3, 0, 1000), kernel("gemm", 100, 50)])))
    [finding] = result.findings
    assert finding.severity == "warning"
    assert finding.observation == "the job has 2 ranks, and no communication was found in its traces"
    assert result.communication.collectives is None
    assert result.communication.exposed is None
    assert any(row.what == "communication" for row in result.not_observed)


def test_gloo_on_the_cpu(shared: Path) -> None:
    case = shared / "cases" / "gloo-cpu-dataloader-stall"
    numbers = expected(case)
    tables = distprof.load(case).tables
    zones = tables.zones.filter(kind="data_loading").with_columns(us=(pl.col("end") - pl.col("start")) / 1e3)
    for rank, by_step in numbers["data_us"].items():
        assert zones.filter(rank=int(rank))["us"].to_list() == [by_step["2"], by_step["3"]]
    step = tables.steps.filter(rank=0, step=3).row(0, named=True)
    calls = tables.collectives.filter((pl.col("rank") == 0) & (pl.col("step") == 3))
    times = (calls.select("started", "ended") - step["start"]).rows()
    assert times == [(20_100_000, 62_000_000), (30_100_000, 78_000_000)]
    result = build(distprof.load(case))
    assert {row.rank: row.wait for row in result.data_loading.per_rank} == {0: 5.0, 1: 25.0}
    shared_time = result.communication.per_rank[0]
    assert shared_time.total == pytest.approx((13.8 + numbers["comm_union_us"]["0"]["3"] / 1e3) / 2)


def test_gloos_reduce_scatter_is_called_all_reduce(tmp_path: Path) -> None:
    events = [
        mark(3, 0, 1000),
        span("c10d::allreduce_", 100, 5, cat="cpu_op"),
        span("c10d::_reduce_scatter_base_", 200, 5, cat="cpu_op"),
        *({**span("gloo:all_reduce", ts, 50), "tid": 2000} for ts in (20, 110, 210)),
    ]
    run = distprof.load(write_trace(tmp_path / "rank0.json", events))
    start = run.tables.steps["start"][0]
    rows = run.tables.collectives.select(
        "kind", (pl.col("created") - start) // 1000, (pl.col("started") - start) // 1000
    )
    assert rows.rows() == [("all_reduce", 20, 20), ("all_reduce", 100, 110), ("reduce_scatter", 200, 210)]


def test_memory(tmp_path: Path) -> None:
    args = {"Total Reserved": 2048, "Total Allocated": 512, "Bytes": -64, "Addr": 1, "Device Id": 0, "Device Type": 1}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5.5}
    events = [mark(3, 0, 1000), {**event, "args": args}, {**event, "args": {}}]
    run = distprof.load(write_trace(tmp_path / "rank0.json", events))
    start = run.tables.steps["start"][0]
    assert run.tables.memory.rows() == [(0, 0, start + 5500, 1, 0, 1, -64, 512, 2048)]
