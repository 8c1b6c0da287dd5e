"""Whatever happens in a step, its parts add up to it: on a CPU, and on devices."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.analyze.breakdown import breakdown
from distprof.analyze.syncs import sync_waits
from distprof.result import BreakdownRow
from tests.unit.device_step import LOADER, analysed
from tests.unit.handmade import Event, call, copy, kernel, launch, mark, nccl, operator, span
from tests.unit.tables import inputs
from tests.worlds import Delay, World, simulate


def added_up(row: BreakdownRow) -> float:
    parts = ("data_wait", "h2d", "compute", "comm_exposed", "sync_wait", "idle", "other")
    return sum(getattr(row, part) or 0 for part in parts)


delays = st.builds(
    Delay,
    rank=st.integers(0, 2),
    kind=st.sampled_from(["data_loading", "forward", "backward", "optimizer", "host", "gc"]),
    ms=st.floats(1, 80),
    computes=st.booleans(),
)
worlds = st.builds(
    World,
    ranks=st.just(3),
    steps=st.just(9),
    windows=st.just([(3, 7)]),
    seed=st.integers(0, 1000),
    jitter=st.sampled_from([0.0, 0.1]),
    delays=st.lists(delays, max_size=3),
    data_loading=st.floats(0, 20),
    after_buckets=st.floats(0, 10),
    broadcast_buffers=st.booleans(),
    unused_parameters=st.booleans(),
    micro_steps=st.integers(1, 2),
    buckets=st.lists(st.integers(1000, 20_000_000), min_size=1, max_size=4),
)


@settings(max_examples=25, deadline=None)
@given(worlds)
def test_on_a_cpu(world: World) -> None:
    of = inputs(simulate(world))
    rows, _ = breakdown(of)
    waits = dict.fromkeys(range(world.ranks), 0.0)
    for wait in sync_waits(of)[0] or []:
        waits[wait.rank] += wait.wait or 0
    for row in rows:
        assert row.basis == "window"
        assert added_up(row) == pytest.approx(row.step)
        assert row.comm_exposed == pytest.approx((row.comm_wait or 0) + (row.comm_transfer or 0))
        assert all((getattr(row, part) or 0) >= 0 for part in ("comm_overlapped", "other", "compute", "data_wait"))
        assert waits[row.rank] > 0


def _events(drawn: list[tuple[Any, ...]]) -> list[Event]:
    events = [mark(1, 0, 500), mark(2, 500, 500)]
    for number, (what, at, dur, stream) in enumerate(drawn, 1):
        match what:
            case "compute":
                events += [launch(max(0, at - 7), number), kernel("gemm", at, dur, stream=stream, correlation=number)]
            case "communicate":
                events += [launch(max(0, at - 7), number), nccl(at, dur, stream=20, correlation=number)]
            case "copy":
                events += [call("cudaMemcpyAsync", max(0, at - 7), 5, correlation=number)]
                events += [copy("Memcpy HtoD (Pinned -> Device)", at, dur, stream=stream, correlation=number)]
            case "copy back":
                events += [call("cudaMemcpyAsync", at - 1, dur + 2, correlation=number)]
                events += [copy("Memcpy DtoH (Device -> Pageable)", at, dur, stream=stream, correlation=number)]
            case "load":
                events += [span(LOADER, at, dur)]
            case "synchronize":
                events += [call("cudaStreamSynchronize", at, dur)]
            case _:
                events += [operator("aten::mm", at, dur)]
    return events


kinds = st.sampled_from(["compute", "communicate", "copy", "copy back", "load", "synchronize", "operator"])
happenings = st.lists(st.tuples(kinds, st.integers(0, 950), st.integers(1, 300), st.sampled_from([7, 9])), max_size=25)


@settings(max_examples=20, deadline=None)
@given(st.lists(happenings, min_size=1, max_size=2))
def test_on_devices(ranks: list[list[tuple[Any, ...]]]) -> None:
    busy = [[*drawn, ("compute", 100, 50, 7)] for drawn in ranks]
    with tempfile.TemporaryDirectory() as folder:
        sections = analysed(Path(folder), *map(_events, busy))
    uses = {use.rank: use for use in sections.device_use}
    for row, total in zip(sections.breakdown, sections.totals, strict=True):
        assert added_up(row) == pytest.approx(row.step)
        assert (row.comm_wait is None) == (row.comm_transfer is None)
        if row.comm_wait is not None:
            assert row.comm_wait + row.comm_transfer == pytest.approx(row.comm_exposed)
        if row.steps_used == 2:
            assert row.compute <= total.compute / 2 + 1e-9
            assert row.comm_exposed <= total.exposed / 2 + 1e-9
        use = uses[row.rank]
        assert use.busy + use.idle == pytest.approx(use.step)
        reasons = use.idle_because
        known = (reasons.data, reasons.collective, reasons.sync, reasons.launched, reasons.host_slow_to_launch)
        assert sum(ms or 0 for ms in known) == pytest.approx(use.idle)
        if row.steps_used == use.steps_used:
            assert (row.data_wait, row.sync_wait) == pytest.approx((reasons.data, reasons.sync + reasons.collective))
    for wait in sections.sync_waits:
        assert 0 <= wait.device_busy <= wait.wait + 1e-9
