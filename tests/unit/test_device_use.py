"""How busy devices are, what they stand idle for, and how far ahead their hosts launch."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest

from distprof.result import DeviceUse
from tests.unit.device_step import analysed, item, loader, reasons, steps, work
from tests.unit.handmade import Event, call, kernel, launch, mark, operator


def because(row: DeviceUse) -> list[float | None]:
    """data, collective, sync, launched, host_slow_to_launch; in us."""
    return [None if ms is None else round(ms * 1e3, 6) for ms in astuple(row.idle_because)]


def test_busy_and_idle_are_the_step_and_idle_has_reasons(tmp_path: Path) -> None:
    [row] = analysed(tmp_path, steps(loader(), work(), item())).device_use
    assert (row.rank, row.device, row.steps_used, row.step) == (0, 0, 1, 1.0)
    assert row.busy == pytest.approx(0.525), "150 to 455 and 710 to 930"
    assert row.idle == pytest.approx(0.475)
    # Waiting for work that is launched: 113 to 150 but 10 us in the synchronising copy are not it, and 703 to 710.
    assert because(row) == [100, 0, 5, 44, 326]


def test_the_launch_queue(tmp_path: Path) -> None:
    """Launches at 110, 120, 145, 700, 720, 730; begun at 150, 350, 450, 710, 900 and 780."""
    [row] = analysed(tmp_path, steps(loader(), work(), item())).device_use
    # When each begins, 2, 1, 0, 0, 0 and 1 others are issued and have not begun.
    assert (row.launches, row.queue_median, row.queue_p10) == (6, 0.5, 0)


def far_ahead(*, ahead: bool) -> list[Event]:
    """Twenty kernels of 10 us each: launched all at once, or each when the one before is over."""
    events: list[Event] = [mark(1, 0, 250 if ahead else 400)]
    for number in range(20):
        begins = 50 + 10 * number if ahead else 20 * number + 10
        launched = number * 2 if ahead else begins - 3
        events += [operator("aten::add", launched - 0.5, 1), {**launch(launched, number + 1), "dur": 1}]
        events.append(kernel("k", begins, 10, correlation=number + 1))
    return events


def test_a_host_that_is_far_ahead_keeps_the_queue_full(tmp_path: Path) -> None:
    [ahead] = analysed(tmp_path / "a", far_ahead(ahead=True)).device_use
    [behind] = analysed(tmp_path / "b", far_ahead(ahead=False)).device_use
    assert ahead.queue_median is not None
    assert ahead.queue_median > 5
    assert behind.queue_median == 0
    assert ahead.busy == behind.busy == 0.2
    assert because(ahead)[3:] == [49, 1], "only the first kernel is awaited"
    assert because(behind)[3:] == [20 * 2, 20 * 8], "10 us before each kernel, of which its launch takes 2"


def test_a_graph_is_one_launch(tmp_path: Path) -> None:
    kernels = [kernel("k", 20 + 10 * number, 10, correlation=1) for number in range(5)]
    events = [mark(1, 0, 100), call("cudaGraphLaunch", 10, 5, correlation=1), *kernels]
    [row] = analysed(tmp_path, events).device_use
    assert (row.launches, row.queue_median) == (1, 0)


def test_several_devices_of_a_rank_have_rows_of_their_own(tmp_path: Path) -> None:
    other: Event = kernel("k", 100, 300, correlation=77, device=1)
    rows = analysed(tmp_path, steps(loader(), work(), item(), [other])).device_use
    assert [(row.device, round(row.busy or 0, 6)) for row in rows] == [(0, 0.525), (1, 0.3)]


def test_without_its_host_a_device_idles_for_unknown_reasons(tmp_path: Path) -> None:
    sections = analysed(tmp_path, steps([event for event in work() if event["cat"] == "kernel"]))
    [row] = sections.device_use
    assert row.idle == pytest.approx(0.51)
    assert because(row) == [None] * 5
    assert (row.queue_median, row.launches) == (None, None)
    unseen = ("idle_because", "launches", "queue_median", "queue_p10")
    assert set(reasons(sections, "device_use")) == {f"device_use.{figure}" for figure in unseen}


def test_without_a_device_nothing_is_known(tmp_path: Path) -> None:
    sections = analysed(tmp_path, [mark(1, 0, 100), operator("aten::mm", 10, 50)])
    assert sections.device_use is None
    assert set(reasons(sections, "device_use")) == {"device_use"}
