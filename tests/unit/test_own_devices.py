"""Own runs on devices: collectives are joined with their kernels, and tell what the same windows tell as traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import distprof
from distprof.analyze.waits import seen_to_start
from distprof.capture.collectives import _columns
from distprof.pipeline import build
from distprof.result import Result
from distprof.trace.carried_out import join_kernels
from distprof.trace.collectives import with_kinds
from distprof.trace.kernels import CARRIED_OUT
from distprof.trace.recordings import ENTRIES
from tests.unit.tables import Call, ns, tables
from tests.worlds import World, write

SIZES = (2_000_000, 1_000_000)
LATE_MS = 4.0  # rank 1's kernels begin so much later
BEGINS_MS, ENDS_MS = 1.0, 7.0  # of each bucket's kernel on rank 0, after its creation; buckets are 10 ms apart
Event = dict[str, Any]
Change = Callable[[int, list[Event]], list[Event]]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_run(folder: Path, change: Change = lambda rank, events: events, window: tuple[int, int] = (5, 15)) -> Path:
    """A run of two ranks on devices. In each step each bucket's kernel begins 1 ms after its creation on rank 0, 5 ms
    after it on rank 1, and ends 7 ms after it on both. `change` may change the events of a rank's window."""
    write(World(ranks=2, steps=20, buckets=SIZES, windows=(window,), jitter=0.0), folder)
    for rank in (0, 1):
        trace = next((folder / "attempt0").glob(f"rank{rank:05}.window0*"))
        told = json.loads(gzip.decompress(trace.read_bytes()))
        events = [event for event in told["traceEvents"] if not event["name"].startswith("gloo:")]
        told["traceEvents"] = change(rank, events + on_device(rank, events))
        told["distributedInfo"]["backend"] = "nccl"
        trace.write_bytes(gzip.compress(json.dumps(told).encode()))
        facts = folder / "attempt0" / f"rank{rank:05}.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "device": "cuda", "backend": "nccl"}))
    return folder


def on_device(rank: int, events: list[Event]) -> list[Event]:
    made: list[Event] = []
    for number, event in enumerate(events):
        if event["name"] not in ("c10d::allreduce_", "aten::mm", "aten::addmm"):
            continue
        reduces = event["name"] == "c10d::allreduce_"
        begins = (BEGINS_MS + rank * LATE_MS) * 1e3 if reduces else 20
        lasts = ENDS_MS * 1e3 - begins if reduces else event["dur"] * 0.9
        stream = 20 if reduces else 7
        made += [
            event
            | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": event["ts"] + 1, "dur": 3}
            | {"args": {"correlation": number + 1}},
            event
            | {"cat": "kernel", "name": NCCL if reduces else "gemm", "pid": rank, "tid": stream}
            | {"ts": event["ts"] + begins, "dur": lasts}
            | {"args": {"device": rank, "stream": stream, "correlation": number + 1}},
        ]
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("devices") / "run")


@pytest.fixture(scope="module")
def own(run: Path) -> Result:
    return build(distprof.load(run))


def test_waits_are_those_of_the_kernels(own: Result) -> None:
    """Of each of two buckets' 6 ms on rank 0, 4 are wait; on rank 1 its kernel takes 2 ms."""
    section = own.communication
    assert [(row.total, row.wait, row.transfer) for row in section.per_rank] == [
        pytest.approx((12.0, 8.0, 4.0)),
        pytest.approx((4.0, 0.0, 4.0)),
    ]
    assert (section.total, section.wait, section.transfer) == pytest.approx((8.0, 4.0, 4.0))
    assert [(bucket.bytes, bucket.last_rank) for bucket in section.buckets] == [(SIZES[0], 1), (SIZES[1], 1)]
    for bucket in section.buckets:
        assert (bucket.wait, bucket.transfer) == pytest.approx((LATE_MS / 2, 2.0)), "mean of both ranks"
        assert bucket.algbw_gbps == pytest.approx(bucket.bytes / 2e-3 / 1e9)
    reduced = [row for row in section.by_kind if row.kind == "all_reduce"]
    assert [(row.bytes, row.count) for row in reduced] == [(SIZES[1], 20), (SIZES[0], 20)]
    assert [(row.wait, row.transfer) for row in reduced] == [pytest.approx((2.0, 2.0))] * 2


def test_sections_agree(own: Result) -> None:
    for row, shown in zip(own.communication.per_rank, own.breakdown, strict=True):
        assert row.exposed == pytest.approx(shown.comm_exposed)
        assert shown.comm_wait is not None and shown.comm_transfer is not None
        assert shown.comm_wait + shown.comm_transfer == pytest.approx(shown.comm_exposed)
        assert (row.total or 0) - (row.exposed or 0) == pytest.approx(shown.comm_overlapped)
    what = {row.what for row in own.not_observed}
    assert not {
        name for name in what if name.startswith(("breakdown.comm", "communication.wait", "communication.buck"))
    }


def test_the_rank_that_is_late_is_named(own: Result) -> None:
    [row] = own.stragglers.ranks
    assert row.rank == 1
    assert row.delay == pytest.approx(LATE_MS, abs=0.2)


def test_own_runs_tell_what_their_windows_tell_as_traces(own: Result, run: Path) -> None:
    traces = build(distprof.load(run / "attempt0" / "*.pt.trace.json.gz"), steps=(6, 14))
    these = build(distprof.load(run), steps=(6, 14))
    assert [row.rank for row in traces.stragglers.ranks] == [row.rank for row in these.stragglers.ranks] == [1]
    for a, b in zip(these.communication.per_rank, traces.communication.per_rank, strict=True):
        assert (a.total, a.wait, a.transfer) == pytest.approx((b.total, b.wait, b.transfer))
    for x, y in zip(these.breakdown, traces.breakdown, strict=True):
        assert x.comm_wait == pytest.approx(y.comm_wait)
        assert x.comm_exposed == pytest.approx(y.comm_exposed, abs=0.25), "steps are cut elsewhere"


def test_the_recorders_moments_are_no_starts_and_ends() -> None:
    """It writes down when a poll noticed that a device had begun, and was done."""
    entry = {
        "record_id": 0,
        "process_group": ("0", "default_pg"),
        "is_p2p": False,
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "time_created_ns": 10,
        "time_discovered_started_ns": 100_000_000,
        "time_discovered_completed_ns": 100_000_000,
    }
    columns = _columns([entry])
    assert (columns["created"], columns["started"], columns["ended"]) == ([10], [None], [None])


def test_moments_of_the_recorder_give_way_to_kernels(tmp_path: Path) -> None:
    """A recording that took them for starts and ends: outside of the windows nothing is known of these."""
    folder = write_run(tmp_path / "run")
    for file in (folder / "attempt0").glob("*.collectives.jsonl"):
        head, *blocks = map(json.loads, file.read_text().splitlines())
        for block in blocks:
            block["started"] = block["ended"] = [created + 100_000_000 for created in block["created"]]
        file.write_text("".join(json.dumps(line) + "\n" for line in (head, *blocks)))
    calls = distprof.load(folder).tables.collectives.filter(pl.col("kind") == "all_reduce")
    inside = calls.filter(pl.col("started").is_not_null())
    assert inside.height == 2 * 2 * 10
    assert set(inside.select(pl.col("ended") - pl.col("created")).to_series()) == {ns(ENDS_MS) - 5_000}
    assert build(distprof.load(folder)).communication.wait == pytest.approx(4.0)


def test_a_kernel_that_a_window_lacks_leaves_its_collective_open(tmp_path: Path) -> None:
    """Rank 1's window lacks its last kernels: when its host created these is not when its device began."""

    def cut(rank: int, events: list[Event]) -> list[Event]:
        last = sorted(event["ts"] for event in events if event["name"] == NCCL)[-2:]
        return [event for event in events if rank == 0 or event["name"] != NCCL or event["ts"] not in last]

    result = build(distprof.load(write_run(tmp_path / "run", cut)))
    assert result.communication.steps_used == 8, "not the last"
    assert [row.wait for row in result.communication.per_rank] == [pytest.approx(8.0), pytest.approx(0.0)]
    of = tables(ranks=range(2), calls=[Call(0, 1, 10, started=11), Call(1, 1, 17)])
    joined = of.collectives.with_columns(binds_until=ns(17), last_rank=1)
    assert seen_to_start(joined).select("binds_until", "last_rank").rows() == [(None, None)] * 2


def test_kernels_of_no_known_collective_leave_all_open(tmp_path: Path) -> None:
    """Without the operators nothing says which kernel carries out which entry."""

    def without(rank: int, events: list[Event]) -> list[Event]:
        return [event for event in events if event["name"] != "c10d::allreduce_"]

    result = build(distprof.load(write_run(tmp_path / "run", without)))
    assert [row.total for row in result.communication.per_rank] == [pytest.approx(12.0), pytest.approx(4.0)]
    assert (result.communication.wait, result.communication.transfer) == (None, None)
    assert [(row.comm_wait, row.comm_transfer) for row in result.breakdown] == [(None, None)] * 2
    what = {row.what for row in result.not_observed}
    assert {"communication.wait", "communication.transfer", "communication.buckets.wait", "breakdown.comm_wait"} <= what


def test_without_kernels_nothing_is_said_of_a_devices_communication(tmp_path: Path) -> None:
    def host_only(rank: int, events: list[Event]) -> list[Event]:
        return [event for event in events if event.get("cat") != "kernel"]

    result = build(distprof.load(write_run(tmp_path / "run", host_only)))
    section = result.communication
    assert (section.total, section.exposed, section.overlapped, section.wait) == (None, None, None, None)
    what = {row.what for row in result.not_observed}
    assert {f"communication.{name}" for name in ("total", "exposed", "overlapped", "wait", "transfer")} <= what


def entries(*rows: dict[str, Any]) -> pl.DataFrame:
    default = {"rank": 0, "group": "0", "op": "nccl:all_reduce", "bytes": 4, "dtype": "Float", "p2p": False}
    filled = [{"record": number, "started": None, "ended": None, **default, **row} for number, row in enumerate(rows)]
    table = with_kinds(pl.DataFrame(filled, schema=ENTRIES)).rename({"group": "group_name"})
    generations = [row.get("generation", 0) for row in rows]
    return table.with_columns(generation=pl.Series(generations, dtype=pl.Int32))


def carried(*rows: dict[str, Any]) -> pl.DataFrame:
    default = {"kind": "all_reduce", "family": "all_reduce", "lane": 20}
    return pl.DataFrame([{name: {**default, **row}.get(name) for name in CARRIED_OUT} for row in rows], CARRIED_OUT)


US = 1000


@pytest.mark.parametrize(
    ("made", "done", "joined"),
    [
        pytest.param(
            [{"seq": 4, "created": 10 * US}, {"seq": 5, "created": 20 * US}],
            [{"group": "0", "seq": 5, "created": 15 * US, "started": 30 * US, "ended": 40 * US}],
            {1: 0},
            id="by number",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 5, "created": 20 * US, "group": "1"}],
            [{"group": "1", "seq": 5, "created": 15 * US, "started": 30 * US, "ended": 40 * US}],
            {1: 0},
            id="of another group",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 5, "created": 50 * US, "generation": 1}],
            [{"group": "0", "seq": 5, "created": 55 * US, "started": 60 * US, "ended": 70 * US}],
            {1: 0},
            id="of the group's last generation",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 5, "created": 90 * US, "generation": 1}],
            [{"group": "0", "seq": 5, "created": 11 * US, "started": 60 * US, "ended": 70 * US}],
            {0: 0},
            id="no end before the creation",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 5, "created": 11 * US}],
            [{"group": "0", "seq": 5, "created": 9 * US, "started": 60 * US, "ended": 70 * US}],
            {},
            id="coalesced",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 6, "created": 20 * US}],
            [
                {"created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US},
                {"created": 19 * US, "returned": 20 * US, "started": 71 * US, "ended": 80 * US},
            ],
            {0: 0, 1: 1},
            id="by the call",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}],
            [{"created": 12 * US, "returned": 15 * US, "started": 60 * US, "ended": 70 * US}],
            {},
            id="not in the call",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}],
            [{"created": 8 * US, "started": 60 * US, "ended": 70 * US}],
            {},
            id="no call is known",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}, {"seq": 6, "created": 11 * US}],
            [{"created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US}],
            {},
            id="two in one call",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}],
            [{"created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US, "kind": "broadcast"}],
            {},
            id="another kind",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US, "op": "nccl:all_to_all"}],
            [{"created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US, "kind": "send_recv"}],
            {0: 0},
            id="a kernel whose name tells less",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US, "op": "nccl:send 0->1", "p2p": True}],
            [{"created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US, "kind": "send_recv"}],
            {},
            id="no collective",
        ),
        pytest.param(
            [{"seq": 5, "created": 10 * US}],
            [{"group": "0", "seq": 7, "created": 8 * US, "returned": 12 * US, "started": 60 * US, "ended": 70 * US}],
            {},
            id="another number",
        ),
    ],
)
def test_joining(made: list[dict[str, Any]], done: list[dict[str, Any]], joined: dict[int, int]) -> None:
    assert join_kernels(entries(*made), carried(*done)) == joined
