"""A device that waits for its host in every step, and what else it may wait for; times are ms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.analyze.findings import findings
from distprof.analyze.host_bound import host_bound
from distprof.pipeline import build
from distprof.result import Finding
from tests.unit import results
from tests.unit.tables import Kernel, Operator, Step, Zone, inputs, judged, tables

RANKS, NUMBERS = (0, 1), range(1, 6)
WINDOWS = [(rank, 99.0, 601.0) for rank in RANKS]
FACTS = {rank: {"host": "a", "boot_id": "b", "device": "cuda"} for rank in RANKS}


def steps(outside: Iterable[int] = (), ms: float = 100) -> list[Step]:
    """Five steps of 100 ms inside the window, and others of `ms` outside."""
    inside = [Step(rank, step, 100 * step, 100 * step + 100) for rank in RANKS for step in NUMBERS]
    return inside + [Step(rank, step, 100 * step, 100 * step + ms) for rank in RANKS for step in outside]


def launches(
    count: int, ms: float, every: float, *, at: float = 0.5, ranks: Iterable[int] = RANKS, ahead: float = 0.01
) -> list[Kernel]:
    """In every step so many kernels of `ms`, one in each `every` ms; launched so long `ahead`."""
    begins = [(rank, 100 * step + at + index * every) for rank in ranks for step in NUMBERS for index in range(count)]
    return [Kernel(rank, begin, begin + ms, launched=begin - ahead) for rank, begin in begins]


def operators() -> list[Operator]:
    return [Operator(rank, 100 * step, 100 * step + 0.2) for rank in RANKS for step in NUMBERS]


def offered(**what: Any) -> list[Finding]:
    prepared = inputs(
        tables(
            **{"ranks": RANKS, "steps": steps(), "windows": WINDOWS, "facts": FACTS, "operators": operators(), **what}
        )
    )
    return host_bound(prepared, judged(prepared))


SLOW_HOST = launches(400, 0.016, 0.24)  # just too long for tiny ones
LONG_GAPS = launches(100, 0.3, 0.95)  # too far apart for short gaps


@pytest.mark.parametrize(("kernels", "idle"), [(SLOW_HOST, 100 - 400 * 0.026), (LONG_GAPS, 100 - 100 * 0.31)])
def test_a_device_that_waits_for_its_host(kernels: list[Kernel], idle: float) -> None:
    (found,) = offered(kernels=kernels)
    assert (found.id, found.severity, found.ranks, found.steps) == (
        "habit.host_bound",
        "critical",
        [0, 1],
        [1, 2, 3, 4, 5],
    )
    assert found.saves == pytest.approx(idle, rel=0.01)
    assert f"for {found.saves:.1f} ms of a step of 100.0 ms since the host has launched nothing" in found.observation
    assert found.evidence == {
        "idle.host_slow_to_launch": pytest.approx(idle, rel=0.01),
        "device_use.launches": len(kernels) / 10,
        "device_use.queue_median": 0,
    }


@pytest.mark.parametrize(
    "kernels",
    [
        launches(400, 0.22, 0.24),  # the device is busy
        launches(1, 75, 100),  # one stretch between steps
        launches(100, 0.3, 0.95, ahead=0.65),  # launched, and not begun
        # In one step of five.
        [*launches(400, 0.22, 0.24)[:1600], *launches(400, 0.22, 0.24)[2000:3600]],
    ],
)
def test_a_device_whose_host_keeps_up(kernels: list[Kernel]) -> None:
    assert offered(kernels=kernels) == []


@pytest.mark.parametrize(("busy", "told"), [(66, False), (64, True)])
def test_how_much_of_a_step_it_takes(busy: float, told: bool) -> None:
    assert bool(offered(kernels=launches(10, busy / 10, 10))) is told


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("single/nccl-metadata.json.gz", ["habit.host_bound"]),  # the device works for 53 of 222 ms
        ("single/a100-rank3-of-8.json.gz", []),
        ("single/v100-rank1-of-2.json.gz", []),
        ("torchrec4-overlap", []),  # one of three steps has a pause of 218 ms
        ("dlrm8", ["habit.tiny_kernels"]),
    ],
)
def test_real_traces(trace: str, expected: list[str], shared: Path) -> None:
    found = [each for each in build(distprof.load(shared / "traces" / trace)).findings if "habit" in each.id]
    assert [each.id for each in found] == expected
    # Of dlrm8's kernels 27% are the optimizer's, and most were launched where torch annotates nothing.
    assert not any("most in" in each.observation for each in found)


def waits(kind: str) -> list[Zone]:
    """The host is in such a zone for nearly all of each step."""
    return [Zone(rank, kind, 100 * step + 1, 100 * step + 99, kind) for rank in RANKS for step in NUMBERS]


@pytest.mark.parametrize("kind", ["data_loading", "wait", "gc", "checkpoint", "evaluation"])
def test_what_has_a_finding_of_its_own_is_no_slow_host(kind: str) -> None:
    assert offered(kernels=SLOW_HOST, zones=waits(kind)) == []
    assert offered(kernels=SLOW_HOST, zones=waits("forward"))


def test_tiny_kernels_are_the_more_specific_finding() -> None:
    kernels = launches(400, 0.004, 0.09)
    assert offered(kernels=kernels) == []
    prepared = inputs(tables(ranks=RANKS, steps=steps(), windows=WINDOWS, facts=FACTS, kernels=kernels))
    assert [each.id for each in findings(prepared, judged(prepared))] == ["habit.tiny_kernels"]


def test_who_holds_the_others_up_is_told_as_that() -> None:
    prepared = inputs(
        tables(
            ranks=RANKS,
            steps=steps(),
            windows=WINDOWS,
            facts=FACTS,
            operators=operators(),
            kernels=[*launches(400, 0.22, 0.24, ranks=[0]), *launches(400, 0.016, 0.24, ranks=[1])],
        )
    )
    sections = judged(prepared)
    (found,) = host_bound(prepared, sections)
    assert found.ranks == [1]
    late = replace(results.straggler().stragglers.ranks[0], rank=1)
    assert host_bound(prepared, replace(sections, stragglers=replace(sections.stragglers, ranks=[late]))) == []


def test_recording_makes_the_host_slower_and_not_the_device() -> None:
    # Outside the window a step takes 35 ms: of the 70 ms that the device idles inside, 65 are the recording's.
    assert offered(kernels=launches(100, 0.3, 0.95), steps=steps(range(6, 30), ms=35)) == []
    (found,) = offered(kernels=launches(100, 0.3, 0.95), steps=steps(range(6, 30), ms=80))
    assert found.saves == pytest.approx(100 - 100 * 0.31 - 20, rel=0.01)


def test_without_launches_or_a_host_nothing_is_told() -> None:
    assert offered(kernels=[replace(row, launched=None) for row in SLOW_HOST]) == []
    assert offered(kernels=[]) == []
    assert offered(kernels=SLOW_HOST, steps=[]) == []
