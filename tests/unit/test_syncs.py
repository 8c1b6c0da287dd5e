"""Where hosts waited: for devices under all names, and for other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.analyze.syncs import sync_waits
from distprof.result import SyncWait
from tests.unit.device_step import analysed, item, loader, reasons, steps, work
from tests.unit.handmade import Event, call, copy, kernel, launch, mark, operator, span
from tests.unit.jobs import always, job
from tests.unit.tables import Call, Step, Zone, inputs, tables


def us(ms: float | None) -> float | None:
    return None if ms is None else round(ms * 1e3, 6)


def rows(*of: SyncWait) -> list[tuple[str, int, float | None]]:
    return [(row.kind, row.count, us(row.wait)) for row in of]


def test_an_item_is_one_wait_with_its_copy_and_its_synchronisation(tmp_path: Path) -> None:
    line = {"cat": "python_function", "name": "train.py(30): accuracy"}
    torchs = {"cat": "python_function", "name": "torch/_tensor.py(12): __format__"}
    around = [{**span("", 135, 340), **line}, {**span("", 137, 336), **torchs}, span("metrics", 130, 350)]
    [row] = analysed(tmp_path, steps(loader(), work(), item(), around)).sync_waits
    assert rows(row) == [("item", 1, 310)], "the copy was only issued, and the synchronisation waited"
    assert row.top_callers == ["aten::item in metrics at train.py(30): accuracy"]
    assert (us(row.device_busy), us(row.device_idle)) == (305, 255), "it then ran dry until 710"
    assert (row.basis, row.steps_used, row.rank) == ("window", 1, 0)


def test_counts_are_of_all_steps_and_waits_per_step(tmp_path: Path) -> None:
    [row] = analysed(tmp_path, steps(loader(), work(), item(), count=4)).sync_waits
    assert rows(row) == [("item", 4, 310)]
    assert row.steps_used == 4


def test_a_training_that_never_waits_has_no_row(tmp_path: Path) -> None:
    sections = analysed(tmp_path, steps(loader(), work()))
    assert sections.sync_waits == []
    assert reasons(sections, "sync_waits") == {}


def test_a_host_that_waits_for_a_busy_device_costs_the_device_nothing(tmp_path: Path) -> None:
    """What runs after the synchronisation was launched before it: the device does not run dry."""
    events = [launch(1, 1), launch(5, 2), kernel("a", 10, 50, correlation=1), kernel("b", 60, 40, correlation=2)]
    [row] = analysed(tmp_path, [mark(1, 0, 100), *events, call("cudaEventSynchronize", 10, 50)]).sync_waits
    assert (row.kind, us(row.wait), us(row.device_busy), us(row.device_idle)) == ("event", 50, 50, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaStreamSynchronize", "stream"),
        ("cudaStreamSynchronize_ptsz", "stream"),
        ("hipStreamSynchronize", "stream"),
        ("zeCommandQueueSynchronize", "stream"),
        ("urQueueFinish", "stream"),
        ("cudaDeviceSynchronize", "device"),
        ("hipDeviceSynchronize", "device"),
        ("cuCtxSynchronize", "device"),
        ("cudaEventSynchronize", "event"),
        ("hipEventSynchronize", "event"),
        ("zeEventHostSynchronize", "event"),
        ("piEventsWait", "event"),
        ("urEventWait", "event"),
        ("cudaMemcpy", "copy"),
        ("hipMemcpyWithStream", "copy"),
        ("cuMemcpyDtoH_v2", "copy"),
    ],
)
def test_what_waits_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    events = [mark(1, 0, 100), kernel("k", 10, 30, correlation=1), launch(5, 1)]
    found = analysed(tmp_path, [*events, call(name, 20, 25, cat="cuda_runtime")]).sync_waits
    assert rows(*found) == [(kind, 1, 25)]
    assert us(found[0].device_busy) == 20


@pytest.mark.parametrize(
    "name", ["cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync", "urEnqueueEventsWait", "cudaMemcpyPeerAsync"]
)
def test_what_does_not_wait(tmp_path: Path, name: str) -> None:
    events = [mark(1, 0, 100), kernel("k", 10, 30, correlation=1), launch(5, 1), call(name, 20, 5)]
    assert analysed(tmp_path, events).sync_waits == []


@pytest.mark.parametrize(
    ("memory", "until", "waits"),
    [
        ("DtoH (Device -> Pageable)", 60, 45),
        ("DtoH (Device -> Pageable)", 40, None),  # it returned before the copy was over
        ("DtoH (Device -> Pinned)", 60, None),
        ("DtoD (Device -> Device)", 60, None),
    ],
)
def test_a_copy_waits_that_returns_when_it_is_over(
    tmp_path: Path, memory: str, until: float, waits: float | None
) -> None:
    events = [mark(1, 0, 100), call("cudaMemcpyAsync", 15, until - 15, correlation=1)]
    found = analysed(tmp_path, [*events, copy(f"Memcpy {memory}", 50, 10, correlation=1)]).sync_waits
    assert rows(*found) == ([] if waits is None else [("copy", 1, waits)])


def test_a_synchronisation_inside_of_copy_is_the_copys(tmp_path: Path) -> None:
    events = [
        *[mark(1, 0, 100), operator("aten::to", 10, 60), operator("aten::copy_", 12, 50)],
        *[call("cudaMemcpyAsync", 15, 5, correlation=1), call("cudaStreamSynchronize", 20, 40)],
        copy("Memcpy DtoH (Device -> Pageable)", 50, 10, correlation=1),
    ]
    [row] = analysed(tmp_path, events).sync_waits
    assert rows(row) == [("copy", 1, 40)]
    assert row.top_callers == ["aten::to"]


def test_an_item_on_the_cpu_waits_for_no_device(tmp_path: Path) -> None:
    events = [mark(1, 0, 100), operator("aten::item", 10, 5), kernel("k", 20, 30, correlation=1), launch(15, 1)]
    assert analysed(tmp_path, events).sync_waits == []


def test_a_driver_inside_of_a_runtime_is_one_wait(tmp_path: Path) -> None:
    calls = [call("cudaMemcpy", 20, 30), call("cuStreamSynchronize", 25, 20, cat="cuda_driver")]
    events = [mark(1, 0, 100), kernel("k", 10, 30, correlation=1), launch(5, 1), *calls]
    assert rows(*analysed(tmp_path, events).sync_waits) == [("copy", 1, 30)]


def test_threads_that_launch_nothing_hold_nobody_up(tmp_path: Path) -> None:
    """NCCL's watchdog, and threads that pin memory, wait for events all the time."""
    watchdog: Event = {**call("cudaEventSynchronize", 0, 90), "tid": 77}
    assert analysed(tmp_path, [*steps(loader(), work()), watchdog]).sync_waits == []


def test_a_barrier_of_nccl_waits_for_other_ranks(tmp_path: Path) -> None:
    events = [operator("c10d::barrier", 940, 40), call("cudaStreamSynchronize", 945, 30)]
    sections = analysed(tmp_path, steps(loader(), work(), events))
    [row] = sections.sync_waits
    assert rows(row) == [("barrier", 1, 30)]
    assert row.top_callers == ["c10d::barrier"]
    [use] = sections.device_use
    assert (us(use.idle_because.collective), use.idle_because.sync) == (30, 0)


def test_the_callers_that_waited_longest_come_first(tmp_path: Path) -> None:
    def waits(at: float, dur: float, name: str) -> list[Event]:
        return [span(name, at, dur + 2), call("cudaStreamSynchronize", at + 1, dur)]

    events = [*waits(10, 5, "a"), *waits(20, 30, "b"), *waits(60, 10, "c"), *waits(80, 2, "d"), *waits(90, 5, "a")]
    [row] = analysed(tmp_path, [mark(1, 0, 100), kernel("k", 5, 90, correlation=1), launch(1, 1), *events]).sync_waits
    assert row.top_callers == ["b", "a", "c"]


def on_cpu(**changes: object) -> list[SyncWait]:
    """Rank 1 comes to the all-reduce of backward at 40, to the metric's at 60 and to the barrier at 80."""
    zones = [
        *[Zone(0, "forward", 0, 10), Zone(0, "backward", 10, 45), Zone(0, "optimizer", 45, 50, "SGD#0")],
        *[Zone(0, "zone", 50, 70, "metrics"), Zone(0, "wait", 52, 62), Zone(0, "wait", 72, 82)],
    ]
    times = {0: (20, 51, 71), 1: (40, 60, 80)}
    calls = [
        Call(rank, seq, created, created + 2 if rank else ended, kind=kind, step=1)
        for rank, created_at in times.items()
        for seq, (created, ended, kind) in enumerate(
            zip(created_at, (45, 62, 82), ("all_reduce", "all_reduce", "barrier"), strict=True)
        )
    ]
    what = {"ranks": [0, 1], "zones": zones, "calls": calls, "steps": [Step(rank, 1, 0, 100) for rank in (0, 1)]}
    found, _ = sync_waits(inputs(tables(**{**what, **changes})))  # type: ignore[arg-type]
    return [row for row in found or [] if row.rank == 0]


def test_kinds_of_waits_for_other_ranks() -> None:
    found = {row.kind: row for row in on_cpu()}
    assert {kind: (row.count, row.wait) for kind, row in found.items()} == {
        "end_of_backward": (1, 25),
        "collective_wait": (1, 10),
        "barrier": (1, 10),
    }
    assert found["end_of_backward"].top_callers == ["all_reduce in backward"]
    assert found["collective_wait"].top_callers == ["all_reduce in metrics"]
    assert found["barrier"].top_callers == ["barrier"]
    assert {(row.basis, row.device_busy, row.device_idle) for row in found.values()} == {("zones", None, None)}


def test_waits_are_those_that_the_breakdown_calls_exposed() -> None:
    late = {row.rank: row.wait for row in sync_waits(inputs(job(always({2: {"data_loading": 60}}))))[0] or []}
    assert late == pytest.approx({0: 65, 1: 65, 2: 5, 3: 65}), "the wait, and 5 ms of transfer"
    healthy = {row.rank: row.wait for row in sync_waits(inputs(job()))[0] or []}
    assert healthy == pytest.approx(dict.fromkeys(range(4), 5))


def test_where_nothing_was_recorded_nothing_is_known() -> None:
    found, missing = sync_waits(inputs(job(calls=False)))
    assert found is None
    assert [row.what for row in missing] == ["sync_waits"]
    assert sync_waits(inputs(job(ranks=[0], calls=False)))[0] == [], "a rank alone waits for nobody"


def test_without_steady_steps_nothing_is_known() -> None:
    found, missing = sync_waits(inputs(tables(ranks=[0, 1])))
    assert found is None
    assert missing[0].reason == "no steady step was recorded"


def test_a_wait_for_what_was_sent_is_not_for_the_collective_before_it() -> None:
    """Rank 0 receives in forward and after it, between the all-reduces of two steps: it waits 30 and 10 ms for that."""
    zones, calls = [], []
    for step in (1, 2, 3):
        at = 100.0 * step
        zones += [
            Zone(0, "forward", at, at + 45, "Stage"),
            Zone(0, "wait", at + 5, at + 35),
            Zone(0, "wait", at + 50, at + 60),
        ]
        zones += [Zone(rank, "wait", at + 90, at + 92) for rank in (0, 1)]
        calls += [Call(rank, step, at + 90, at + 92, step=step) for rank in (0, 1)]
    steps = [Step(rank, step, 100 * step, 100 * step + 100) for rank in (0, 1) for step in (1, 2, 3)]
    found, _ = sync_waits(inputs(tables(ranks=[0, 1], zones=zones, calls=calls, steps=steps)))
    first, second = found or []
    assert (first.kind, first.count, first.wait) == ("collective_wait", 9, 42)
    assert first.top_callers == [
        "communication that was not recorded in forward",
        "communication that was not recorded",
        "all_reduce",
    ]
    assert (second.count, second.top_callers) == (3, ["all_reduce"])


def test_collectives_that_are_waited_for_one_after_the_other_are_told_as_these() -> None:
    zones = [Zone(rank, "wait", start, start + 9) for rank in (0, 1) for start in (20, 30, 40)]
    calls = [Call(rank, seq, 10 + seq, 28 + seq, step=1, kind="all_gather") for rank in (0, 1) for seq in (1, 2, 3)]
    of = tables(ranks=[0, 1], zones=zones, calls=calls, steps=[Step(rank, 1, 0, 100) for rank in (0, 1)])
    assert [row.top_callers for row in sync_waits(inputs(of))[0] or []] == [["all_gather"]] * 2
