"""Whoever waited where nobody knows it: then wait and transfer are not known, and never zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.analyze.blocking import blocking_calls
from distprof.analyze.breakdown import breakdown
from distprof.analyze.device_parts import device_parts
from distprof.analyze.parts import rank_parts
from distprof.analyze.waits import match
from distprof.pipeline import build
from distprof.result import Result
from distprof.trace.tables import Tables
from tests.unit.device_step import Sections, analysed, reasons, steps, work
from tests.unit.handmade import Event, kernel, launch, operator, write_trace
from tests.unit.tables import Call, Kernel, Step, Zone, in_ms, inputs, tables
from tests.worlds import Collective, Compute, Idle, World, data_loading, optimizer, write
from tests.worlds import Zone as Busy

SENDS = "ncclDevKernel_SendRecv(x)"


def sent(operation: str, at: float, begins: float, ends: float, number: int = 8) -> list[Event]:
    """An operator of torch's, and the kernel that it launches."""
    return [
        operator(operation, at, 12),
        launch(at + 2, number),
        kernel(SENDS, begins, ends - begins, stream=20, correlation=number),
    ]


def all_to_all(at: float = 0, *, begins: float = 500, number: int = 8) -> list[Event]:
    return sent("c10d::alltoall_base_", at + 480, at + begins, at + 650, number)


def of_device(section: Any) -> list[tuple[Any, ...]]:
    return [(row.comm_wait, row.comm_transfer) for row in section.breakdown]


def in_communication(section: Any) -> list[tuple[Any, ...]]:
    return [(row.wait, row.transfer) for row in section.communication.per_rank]


def not_observed(result: Sections | Result, *what: str) -> bool:
    return set(what) <= {row.what for row in result.not_observed}


ROWS = ("breakdown.comm_wait", "breakdown.comm_transfer", "communication.wait", "communication.transfer")


def test_an_all_to_all_that_a_member_left_no_trace_of(tmp_path: Path) -> None:
    """Two of three ranks: the third may be who the others waited for."""
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json", steps(all_to_all(), count=3), rank=rank, world_size=3)
    result = build(distprof.load(tmp_path))
    assert of_device(result) == in_communication(result) == [(None, None)] * 2
    assert [row.comm_exposed for row in result.breakdown] == pytest.approx([0.15, 0.15])
    assert not_observed(result, *ROWS)


def test_no_step_is_picked_for_its_all_to_alls(tmp_path: Path) -> None:
    """Of the other rank nothing is known: a step that holds nothing but all-to-alls tells no more than the others."""
    events = steps(work(), all_to_all(), count=3)
    reduces_twice = [event for event in events if event["args"].get("correlation") != 6 + 2 * 10]
    write_trace(tmp_path / "rank0.json", reduces_twice, rank=0, world_size=2)
    [row] = build(distprof.load(tmp_path)).breakdown
    assert (row.steps_used, row.comm_wait, row.comm_transfer) == (3, None, None)


def test_an_all_to_all_that_all_members_show_is_known(tmp_path: Path) -> None:
    result = analysed(tmp_path, steps(all_to_all(begins=500)), steps(all_to_all(begins=600)))
    assert of_device(result) == [pytest.approx((0.1, 0.05)), pytest.approx((0.0, 0.05))]
    assert reasons(result, "breakdown").keys() == {"breakdown.data_wait"}


def test_receiving_may_be_waiting(tmp_path: Path) -> None:
    """Rank 1 receives for 80 us what rank 0 sends 78 us after that began."""
    both = work()
    sender = steps(both, sent("c10d::send", 570, 578, 580), count=3)
    receiver = steps(both, sent("c10d::recv_", 480, 500, 580), count=3)
    result = analysed(tmp_path, sender, receiver)
    assert of_device(result) == in_communication(result) == [(None, None)] * 2
    assert (result.communication.wait, result.communication.transfer) == (None, None)
    assert [row.total for row in result.communication.per_rank] == pytest.approx([0.122, 0.2])
    assert [row.comm_exposed for row in result.breakdown] == pytest.approx([0.102, 0.18])
    assert not_observed(result, *ROWS)


def test_a_job_that_only_sends_and_receives_communicates(tmp_path: Path) -> None:
    sender = steps(sent("c10d::send", 570, 578, 580), count=3)
    receiver = steps(sent("c10d::recv_", 480, 500, 580), count=3)
    result = analysed(tmp_path, sender, receiver)
    assert [row.total for row in result.communication.per_rank] == pytest.approx([0.002, 0.08])
    assert result.communication.collectives == 0
    assert "communication" not in reasons(result, "communication")


def on_devices(of: Tables) -> Tables:
    return replace(of, arrival="started")


def known(kind: str, roots: Iterable[int | None] = (None, None), *, comparable: bool = True, **call: Any) -> Any:
    """Of two ranks' kernels, from 10 and 14 to 20: where each waits, and where that is not known."""
    roots = list(roots)
    calls = [
        Call(rank, 1, created=5, started=10 + 4 * rank, ended=20, kind=kind, root=roots[rank], **call)
        for rank in (0, 1)
    ]
    done = [Kernel(rank, 10 + 4 * rank, 20, collective=kind) for rank in (0, 1)]
    of = on_devices(tables(ranks=range(2), calls=calls, kernels=done, windows=[(0, 0, 30), (1, 0, 30)]))
    parts = device_parts(of, blocking_calls(of), match(of, comparable=comparable), comparable=comparable)
    return [(in_ms(parts[rank].wait), in_ms(parts[rank].unknown)) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("kind", "roots", "expected"),
    [
        ("broadcast", (None, None), [([], [(10, 20)]), ([], [(14, 20)])]),
        ("broadcast", (1, 1), [([(10, 14)], []), ([], [])]),
        ("broadcast", (0, 0), [([], []), ([], [])]),
        ("reduce", (0, 0), [([(10, 14)], []), ([], [])]),
        ("reduce", (0, 1), [([], [(10, 20)]), ([], [(14, 20)])]),
        ("gather", (None, None), [([], [(10, 20)]), ([], [(14, 20)])]),
        ("unknown", (None, None), [([], [(10, 20)]), ([], [(14, 20)])]),
    ],
)
def test_collectives_with_a_root(kind: str, roots: tuple[int | None, int | None], expected: Any) -> None:
    assert known(kind, roots) == expected


def test_clocks_that_cannot_be_compared_tell_no_wait() -> None:
    for kind in ("all_reduce", "all_to_all", "broadcast"):
        assert known(kind, (1, 1), comparable=False) == [([], [(10, 20)]), ([], [(14, 20)])]


@pytest.mark.parametrize(("more", "is_known"), [(0.000001, True), (0.5, False)])
def test_a_nanosecond_of_communication_that_is_no_collectives_hides_nothing(more: float, is_known: bool) -> None:
    """A kernel lasts by `more` ms longer than the collective that it carries out."""
    calls = [Call(rank, 1, created=5, started=10 + 4 * rank, ended=20, step=1) for rank in (0, 1)]
    of = tables(
        ranks=range(2),
        calls=calls,
        kernels=[Kernel(rank, 10 + 4 * rank, 20 + more, collective="all_reduce") for rank in (0, 1)],
        windows=[(0, 0, 30), (1, 0, 30)],
        steps=[Step(rank, 1, 0, 30) for rank in (0, 1)],
        facts={rank: {"host": "a", "boot_id": "b", "device": "cuda"} for rank in (0, 1)},
    )
    rows, _ = breakdown(inputs(on_devices(of)))
    assert [row.comm_wait is not None for row in rows] == [is_known] * 2


# On a CPU.


def pipeline(world: World, rank: int, step: int) -> list[Any]:
    """Two stages: the second receives what the first sends after 30 ms, and that waits 10 ms for its answer."""
    if rank == 0:
        stage: list[Any] = [Compute(30.0)]
        answer = [Busy("wait", "Work.wait", (Idle(10.0, exact=True),))]
    else:
        stage = [Busy("wait", "Work.wait", (Idle(30.0, exact=True),)), Compute(10.0)]
        answer = []
    return [
        data_loading(world),
        Busy("forward", "Stage", tuple(stage)),
        *answer,
        optimizer(world),
        Collective(bytes=4, waits="zone"),
    ]


@pytest.mark.parametrize("windows", [[(5, 10)], []])
def test_waiting_for_what_is_received_is_no_transfer(tmp_path: Path, windows: list[tuple[int, int]]) -> None:
    """gloo's recorder leaves sending and receiving out, so that nobody knows what of it is waiting."""
    write(World(ranks=2, steps=20, buckets=(), script=pipeline, windows=windows, jitter=0.0), tmp_path / "run")
    result = build(distprof.load(tmp_path / "run"))
    assert of_device(result) == [(None, None)] * 2
    if windows:
        exposed = [row.comm_exposed for row in result.breakdown]
        assert exposed == pytest.approx([10, 30], abs=1), "that it communicates is known"
    assert not_observed(result, "breakdown.comm_wait", "breakdown.comm_transfer")
    assert "receiving" in reasons_of(result)["breakdown.comm_wait"]
    assert result.communication.wait is not None, "of what is recorded"


def reasons_of(result: Result) -> dict[str, str]:
    return {row.what: row.reason for row in result.not_observed}


def unexplained(zones: list[tuple[float, float]], calls: list[Call], *more: Zone) -> list[tuple[float, float]]:
    of = tables(ranks=[0], zones=[*(Zone(0, "wait", *zone) for zone in zones), *more], calls=calls, world_size=2)
    of_inputs = inputs(of)
    return in_ms(rank_parts(of, of_inputs.matched, of_inputs.waits[0], 0).unknown)


def call(created: float, **more: Any) -> Call:
    return Call(0, round(created * 10), created=created, **more)


BACKWARD = Zone(0, "backward", 10, 30)


@pytest.mark.parametrize(
    ("zones", "calls", "more", "expected"),
    [
        pytest.param([(1, 2), (5, 8)], [call(4.9)], [], [(1, 2)], id="before anything was created"),
        pytest.param([(1, 2), (5, 8)], [call(0.5), call(0.6)], [], [], id="one after the other"),
        pytest.param([(1, 2), (2, 8)], [call(0.5)], [], [(2, 8)], id="one more than there are"),
        pytest.param([(1, 2), (5, 8)], [call(1.1), call(1.2), call(1.3)], [], [(5, 8)], id="what a zone creates"),
        pytest.param([(1, 1.02), (5, 8)], [call(4)], [], [], id="a wait for nothing takes no time"),
        pytest.param([(40, 42)], [call(12), call(20)], [BACKWARD], [(40, 42)], id="backward waits for its own"),
        pytest.param([(13, 14), (40, 42)], [call(12)], [BACKWARD], [(40, 42)], id="a zone in backward"),
        pytest.param([(40, 42)], [call(12, bucket=0)], [], [(40, 42)], id="buckets"),
        pytest.param([(40, 42), (43, 50)], [call(39), call(42.9)], [BACKWARD], [], id="all are explained"),
        pytest.param([], [call(39)], [], [], id="no zone"),
    ],
)
def test_which_zones_wait_for_no_collective(
    zones: list[tuple[float, float]], calls: list[Call], more: list[Zone], expected: list[tuple[float, float]]
) -> None:
    assert unexplained(zones, calls, *more) == expected


# Each null has a row in `not_observed`.

SECTIONS = ("totals", "breakdown", "communication", "data_loading")
# What only says how something was seen, or follows from what has a row.
FOLLOWS = ("algbw_gbps", "busbw_gbps", "last_rank", "last_share")


def nulls(value: Any, path: str) -> set[str]:
    """Paths of the fields in which a result holds a null."""
    if is_dataclass(value):
        return set().union(*(nulls(getattr(value, field.name), f"{path}.{field.name}") for field in fields(value)))
    if isinstance(value, list):
        return set().union(*(nulls(item, path) for item in value))
    return {path} if value is None and not path.endswith(FOLLOWS) else set()


def without_a_row(result: Result) -> set[str]:
    rows = {row.what for row in result.not_observed}
    found: set[str] = set().union(*(nulls(getattr(result, name), name) for name in SECTIONS))
    return {path for path in found if not any(_told(path, what) for what in rows)}


def _told(path: str, what: str) -> bool:
    """Whether a row says it of this field, or of the section's mean of it."""
    return path == what or path.startswith(f"{what}.") or path.replace(".per_rank.", ".") == what


REAL = [
    *("dlrm8", "torchrec4-overlap", "torchrec4-straggler", "single/a100-rank3-of-8*", "single/v100-rank1-of-2*"),
    *("single/nccl-metadata*", "single/ns-resolution*", "single/gloo-rank34-of-300*"),
]


@pytest.mark.parametrize("name", REAL)
def test_each_null_of_real_traces_has_a_row(name: str, shared: Path) -> None:
    assert without_a_row(build(distprof.load(shared / "traces" / name))) == set()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_null_of_traces_of_gloo_has_a_row(tmp_path: Path, ranks: int) -> None:
    write(World(ranks=ranks), tmp_path / "run")
    assert without_a_row(build(distprof.load(tmp_path / "run" / "attempt0" / "*.pt.trace.json.gz"))) == set()


def test_traces_of_a_rank_that_is_alone_show_no_communication(tmp_path: Path) -> None:
    """Then none is what was measured."""
    write_trace(tmp_path / "rank0.json", steps(work()[:-2], count=3), rank=0, world_size=1)
    result = build(distprof.load(tmp_path))
    section = result.communication
    assert (section.total, section.exposed, section.overlapped, section.wait, section.transfer) == (0, 0, 0, 0, 0)
    assert [row.comm_exposed for row in result.breakdown] == [0]
    assert without_a_row(result) == set()


def test_traces_of_gloo_tell_what_is_exposed(tmp_path: Path) -> None:
    """As the breakdown of the same report does, and the run that recorded them."""
    write(World(ranks=3, windows=[(5, 12)]), tmp_path / "run")
    traces = build(distprof.load(tmp_path / "run" / "attempt0" / "*.pt.trace.json.gz"), steps=(7, 11))
    own = build(distprof.load(tmp_path / "run"), steps=(7, 11))
    for row, shown, recorded in zip(
        traces.communication.per_rank, traces.breakdown, own.communication.per_rank, strict=True
    ):
        assert row.exposed == pytest.approx(shown.comm_exposed)
        assert row.exposed == pytest.approx(recorded.exposed, abs=0.2)
    assert traces.communication.exposed is not None and traces.communication.overlapped is not None


def test_of_a_real_rank_on_gloo_the_exposed_part_is_told(shared: Path) -> None:
    result = build(distprof.load(shared / "traces/single/gloo-rank34-of-300*"))
    [row], [shown] = result.communication.per_rank, result.breakdown
    assert row.exposed == pytest.approx(shown.comm_exposed) == pytest.approx(212.16, abs=0.01)
    assert "communication.exposed" not in {each.what for each in result.not_observed}


def test_a_real_rank_alone_of_two_tells_all_of_its_steps(shared: Path) -> None:
    """One of its six steps holds nothing but all-to-alls."""
    [row] = build(distprof.load(shared / "traces/single/v100-rank1-of-2*")).breakdown
    assert (row.steps_used, row.comm_wait, row.comm_transfer) == (6, None, None)
    assert row.compute == pytest.approx(91.2, abs=0.1)


def test_a_real_job_that_the_culprit_is_missing_of(shared: Path, tmp_path: Path) -> None:
    """Without the rank that all wait for a second for, nobody knows that they wait."""
    for path in sorted((shared / "traces" / "torchrec4-straggler").iterdir()):
        if "_21149." not in path.name:
            (tmp_path / path.name).symlink_to(path)
    result = build(distprof.load(tmp_path))
    assert [row.rank for row in result.breakdown] == [0, 1, 3]
    assert of_device(result) == in_communication(result) == [(None, None)] * 3
    assert [round(row.comm_exposed or 0, -1) for row in result.breakdown] == [1010] * 3
