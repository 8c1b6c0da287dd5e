"""Trainings on devices that run behind their hosts, as traces that others recorded; with and without a planted delay.

Times are microseconds. A device goes its own way: when its host marks a step's end says nothing of what it is at.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.pipeline import build
from distprof.result import Result, Stragglers
from tests.unit.handmade import Event, kernel, launch, mark, write_trace

STEP = 130_000  # of stages
EXTRA = 20_000
_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
_TRANSFER = 800
_SEND = "ncclDevKernel_SendRecv(x)"


def told(what: str, group: str, members: list[int], elements: int, **more: Any) -> dict[str, Any]:
    """What NCCL's kernels say of themselves."""
    return {
        "Collective name": what,
        "Process Group Name": group,
        "Process Group Ranks": str(members),
        "In msg nelems": elements,
        "dtype": "Float",
        **more,
    }


@dataclass
class Device:
    """One rank's trace: its device works as it is told, whenever the host launched that."""

    rank: int
    events: list[Event] = field(default_factory=list)
    launched: float = 0.0

    def begin(self, step: int, at: float, until: float) -> None:
        self.events.append(mark(step, at, until - at))
        self.launched = at + 100

    def works(self, name: str, at: float, until: float, *, stream: int = 7, **args: Any) -> None:
        correlation = len(self.events) + 1
        self.events.append(launch(self.launched, correlation))
        self.events.append(kernel(name, at, until - at, stream=stream, correlation=correlation, **args))
        self.launched += 50


def reported(folder: Path, devices: list[Device]) -> Result:
    for device in devices:
        write_trace(folder / f"rank{device.rank}.pt.trace.json", device.events, rank=device.rank, world_size=4)
    return build(distprof.load(folder))


def judged(folder: Path, devices: list[Device]) -> Stragglers:
    return reported(folder, devices).stragglers


def lateness(of: Result) -> dict[int, list[float]]:
    """Each rank's in each step, in ms."""
    assert of.lateness is not None
    return {row.rank: row.late for row in of.lateness.ranks}


def reduced(
    *, steps: int, seed: int, late: int | None = None, opened: Mapping[int, float] | None = None
) -> list[Device]:
    """Two halves of a step, each with an all-reduce, the second at about when hosts end their steps, each by itself.

    Args:
        late: the rank whose device takes `EXTRA` longer in the first half of each step.
        opened: rank -> how much later than the others' its window opens: what began before is not in it.
    """
    draw = random.Random(seed)
    devices = [Device(rank) for rank in range(4)]
    begins = dict.fromkeys(range(4), 0.0)
    now, seq = 1000.0, 0
    for step in range(steps):
        length = 50_000 + 45_000 + 2 * _TRANSFER + (0 if late is None else EXTRA)
        ends = {rank: now + length + draw.uniform(-2000, 2000) for rank in range(4)}
        for device in devices:
            opens = (opened or {}).get(device.rank, 0.0) if step == 0 else 0.0
            device.begin(step + 1, begins[device.rank] + opens, ends[device.rank])
        begins = ends
        for half, work in enumerate((50_000, 45_000)):
            seq += 1
            extra = {rank: EXTRA if rank == late and half == 0 else 0 for rank in range(4)}
            arrives = {rank: now + work + extra[rank] + draw.uniform(-100, 100) for rank in range(4)}
            ended = max(arrives.values()) + _TRANSFER
            about = told("allreduce", "0", [0, 1, 2, 3], 100_000, Seq=seq)
            for device in devices:
                first = now + ((opened or {}).get(device.rank, 0.0) if seq == 1 else 0.0)
                device.works("gemm", first + 10, arrives[device.rank] - 10)
                device.works(_REDUCE, arrives[device.rank], ended, stream=20, **about)
            now = ended
    return devices


@pytest.mark.parametrize("steps", [4, 6, 12])
@pytest.mark.parametrize("seed", range(4))
def test_hosts_that_end_their_steps_apart_make_no_device_late(tmp_path: Path, steps: int, seed: int) -> None:
    result = reported(tmp_path, reduced(steps=steps, seed=seed))
    found = result.stragglers
    assert (found.verdict, found.ranks) == ("none", [])
    assert lateness(result) == {rank: pytest.approx([0] * steps, abs=1) for rank in range(4)}
    assert found.noise == pytest.approx(0.05 * 96.6, rel=0.03), "a twentieth of the step: the devices are alike"


@pytest.mark.parametrize("steps", [4, 6, 12])
@pytest.mark.parametrize("seed", range(4))
def test_a_device_that_takes_longer_is_named_with_that(tmp_path: Path, steps: int, seed: int) -> None:
    result = reported(tmp_path, reduced(steps=steps, seed=seed, late=2))
    (row,) = result.stragglers.ranks
    assert (row.rank, row.cause, row.pattern) == (2, "device", "persistent")
    assert lateness(result) == {rank: pytest.approx([20 * (rank == 2)] * steps, abs=1) for rank in range(4)}
    assert row.delay == pytest.approx(20, rel=0.02)
    assert row.imposed_wait == pytest.approx(20, rel=0.1)
    assert row.saved_if_fixed == pytest.approx(20, rel=0.1)


def test_a_window_that_opens_later_makes_its_rank_neither_early_nor_late(tmp_path: Path) -> None:
    """Of the first step it shows less than the others' windows do."""
    healthy = judged(tmp_path, reduced(steps=4, seed=5, opened={2: 25_000}))
    assert (healthy.verdict, healthy.ranks) == ("none", [])
    (row,) = judged(tmp_path, reduced(steps=5, seed=5, late=2, opened={2: 25_000})).ranks
    assert (row.rank, row.pattern, row.steps) == (2, "persistent", [2, 3, 4, 5])
    assert row.delay == pytest.approx(20, rel=0.02)


def staged(*, named: bool, late: int | None = None, summed: int = 1) -> list[Device]:
    """Two stages of two replicas: ranks 0 and 1 do three times as much forward as 2 and 3. Gradients are reduced in a
    stage, and in the end all add up a few figures.

    Args:
        named: whether the kernels that send and receive say which of these they do.
        late: the rank whose forward takes `EXTRA` longer.
        summed: so many.
    """
    draw = random.Random(1)
    devices = [Device(rank) for rank in range(4)]
    now = 1000.0
    for step in range(8):
        done: dict[int, float] = {}
        for device in devices:
            device.begin(step + 1, step * STEP, (step + 1) * STEP)
        for first, last in ((devices[0], devices[2]), (devices[1], devices[3])):
            pair = [first.rank, last.rank]

            def hands(by: Device, to: Device, since: float, at: float, pair: list[int] = pair) -> None:
                for device, begin, what in ((by, at, "send"), (to, since, "recv")):
                    about = told(what, f"pipeline{pair[0]}", pair, 1000) if named else {}
                    device.works(_SEND, begin, at + 200, stream=20, **about)

            forward = now + 60_000 + draw.uniform(-200, 200) + (EXTRA if first.rank == late else 0)
            first.works("gemm", now, forward - 10)
            hands(first, last, now + 100, forward)
            turned = forward + 20_000 + draw.uniform(-200, 200)
            last.works("gemm", forward + 210, turned - 10)
            hands(last, first, forward + 210, turned)
            for device, work in ((first, 5000), (last, 2000)):
                done[device.rank] = turned + 210 + work + draw.uniform(-50, 50)
                device.works("gemm", turned + 210, done[device.rank] - 10)
        over = 0.0
        for stage in ([0, 1], [2, 3]):
            end = max(done[rank] for rank in stage) + 800
            over = max(over, end)
            for rank in stage:
                about = told("allreduce", f"stage{stage[0]}", stage, 100_000, Seq=step + 1)
                devices[rank].works(_REDUCE, done[rank], end, stream=21, **about)
                done[rank] = end + 20
        now = over + 400
        for device in devices:
            about = told("allreduce", "0", [0, 1, 2, 3], summed, Seq=step + 1)
            device.works(_REDUCE, done[device.rank], over + 300, stream=22, **about)
    return devices


@pytest.mark.parametrize("named", [True, False])
def test_stages_of_two_replicas_are_no_peers(tmp_path: Path, named: bool) -> None:
    found = judged(tmp_path, staged(named=named))
    assert (found.verdict, found.ranks) == ("none", [])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_that_takes_longer_than_the_other_one_is_named(tmp_path: Path, named: bool, rank: int) -> None:
    (row,) = judged(tmp_path, staged(named=named, late=rank)).ranks
    assert (row.rank, row.cause) == (rank, "device")
    assert row.delay == pytest.approx(20, rel=0.05)
    assert (row.imposed_wait, row.saved_if_fixed) == (None, None), "who waits for what is sent is not known"
