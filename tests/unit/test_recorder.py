"""The recorder of zones: flat memory, bounded names, and device time from events that are read later."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from distprof.capture.device_time import DeviceTimer
from distprof.capture.zones import ZoneRecorder, now
from distprof.run.files import Stream


def recorder(path: Path) -> ZoneRecorder:
    return ZoneRecorder(Stream(path, {"schema": "distprof.zones.v1"}))


def test_a_million_steps_leave_memory_flat() -> None:
    zones = recorder(Path("/dev/shm") / f"distprof-test-{now()}.jsonl")
    zones._stream.append = lambda block: None  # type: ignore[method-assign]
    forward, backward = zones.zone("forward", "net"), zones.zone("backward", "backward")

    def train(steps: int) -> None:
        for step in range(steps):
            start = now()
            zones.add(forward, start, start)
            zones.add(backward, start, start)
            zones.add_batch(start, 8, 64)
            if step % 10_000 == 0:
                zones.flush()

    train(50_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train(1_000_000)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    zones._stream.path.unlink()
    assert zones.count > 2_000_000
    assert grown_kb < 20_000


def test_ever_new_names_share_one(tmp_path: Path) -> None:
    zones = recorder(tmp_path / "zones.jsonl")
    ids = {zones.zone("zone", f"step {number}") for number in range(10_000)}
    assert len(ids) <= 2_001
    assert zones.zone("zone", "step 9999") == zones.zone("zone", "other names")
    assert zones.zone("zone", "step 0") != zones.zone("zone", "other names")


class Event:
    """Stands in for a device's event: its moment is taken from the device's clock, and passes later."""

    clock = 0.0
    passed_until = 0.0

    def record(self) -> None:
        self.moment = Event.clock

    def query(self) -> bool:
        return self.moment <= Event.passed_until

    def elapsed_time(self, end: Event) -> float:
        return end.moment - self.moment


def test_device_time_is_read_when_the_device_has_passed_it(tmp_path: Path) -> None:
    zones = recorder(tmp_path / "zones.jsonl")
    timer = zones.device = DeviceTimer(Event, may_record=lambda: True)
    forward = zones.zone("forward", "net")
    Event.clock, Event.passed_until = 5.0, 0.0
    mark = timer.mark()
    Event.clock = 12.5  # the device will reach the zone's end 7.5 ms after its beginning
    timer.zone(forward, 1000, mark)
    timer.collect()
    assert list(timer.rows) == []  # the host is ahead: nothing is waited for
    Event.passed_until = 20.0
    timer.collect()
    assert list(timer.rows) == [forward, 1000, 7_500_000]
    zones.flush()
    blocks = [json.loads(line) for line in (tmp_path / "zones.jsonl").read_text().splitlines()]
    assert blocks[1]["device"] == [forward, 1000, 7_500_000]
    assert list(timer.rows) == []


def test_nothing_is_recorded_into_a_graph() -> None:
    timer = DeviceTimer(Event, may_record=lambda: False)
    mark = timer.mark()
    assert mark is None
    timer.zone(0, 1000, mark)
    Event.passed_until = 1e9
    timer.collect()
    assert list(timer.rows) == []


@pytest.mark.parametrize("fails", ["may_record", "record", "query"])
def test_a_device_that_answers_with_an_error_costs_its_times_alone(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise RuntimeError("the device is lost")

    if fails != "may_record":
        monkeypatch.setattr(Event, fails, refuse)
    timer = DeviceTimer(Event, may_record=refuse if fails == "may_record" else lambda: True)
    timer.zone(0, 1000, timer.mark())
    timer.collect()
    assert str(timer.failure) == "the device is lost"
    assert timer.mark() is None
    assert list(timer.rows) == []


def test_events_that_are_never_passed_are_dropped_and_counted() -> None:
    Event.clock, Event.passed_until = 100.0, 0.0
    timer = DeviceTimer(Event, may_record=lambda: True)
    for start in range(5000):
        timer.zone(0, start, timer.mark())
    assert timer.lost == 5000 - 4096
