"""What may be said of two ranks' times."""

from __future__ import annotations

from dataclasses import replace

from distprof.clock.compare import confidence, undecided_ns
from distprof.result import Clock, ClockRow, DeviceClockRow

TWO_HOSTS = Clock(
    method="",
    verdict="aligned",
    reference_rank=0,
    ranks=[
        ClockRow(0, 0.0, 0.0, bound_us=0.0, error_us=0.0, same_as=0),
        ClockRow(1, 0.0, 0.0, bound_us=0.0, error_us=0.0, same_as=0),
        ClockRow(2, 9.0, 0.0, bound_us=50.0, error_us=5.0, same_as=2),
        ClockRow(3, 9.0, 0.0, bound_us=50.0, error_us=5.0, same_as=2),
        ClockRow(4, 7.0, 0.0, bound_us=30.0, error_us=None, same_as=4),
    ],
)


def test_above_the_bound_between_the_two_and_below() -> None:
    assert confidence(TWO_HOSTS, 50_001, [0, 2]) == "bound"
    assert confidence(TWO_HOSTS, 50_000, [0, 2]) == "ends_agree"
    assert confidence(TWO_HOSTS, 5_000, [0, 2]) is None


def test_ranks_that_read_one_clock_need_no_bound() -> None:
    assert confidence(TWO_HOSTS, 1, [2, 3]) == confidence(TWO_HOSTS, 1, [0, 1]) == "same_clock"


def test_what_two_clocks_may_be_wrong_by_is_added_once_for_each() -> None:
    assert confidence(TWO_HOSTS, 80_000, [2, 3, 4]) is None
    assert confidence(TWO_HOSTS, 80_001, [2, 3, 4, 0]) == "bound"


def test_of_three_clocks_the_two_that_are_off_the_most_count() -> None:
    rows = [
        ClockRow(rank, 0.0, bound_us=off, error_us=None, same_as=rank) for rank, off in enumerate((10.0, 40.0, 20.0))
    ]
    clock = replace(TWO_HOSTS, ranks=rows)
    assert confidence(clock, 60_000, [0, 1, 2]) is None
    assert confidence(clock, 60_001, [0, 1, 2]) == "bound"
    assert confidence(TWO_HOSTS, 60_000, [0, 2, 4]) is None, "of one it is not known"


def test_one_host_has_one_clock_whatever_its_rows_tell() -> None:
    rows = [ClockRow(rank, 0.0, same_as=None) for rank in (0, 1)]
    devices = [DeviceClockRow(rank, 0.0, bound_us=40.0 * rank, same_as=rank) for rank in (0, 1)]
    clock = replace(TWO_HOSTS, verdict="same_host", ranks=rows, devices=devices)
    assert confidence(clock, 1, [0, 1]) == "same_clock"
    assert confidence(clock, 1, [0, 1], device=True) is None
    assert undecided_ns(clock) == {0: 0, 1: 0}
    assert undecided_ns(clock, device=True) == {0: 0, 1: 40_000}
    assert confidence(replace(clock, verdict="unaligned"), 1, [0, 1]) is None
    assert undecided_ns(replace(clock, verdict="unaligned")) == {}


def test_without_ends_there_is_nothing_between() -> None:
    assert confidence(TWO_HOSTS, 30_000, [0, 4]) is None
    assert undecided_ns(TWO_HOSTS) == {0: 0, 1: 0, 2: 5_000, 3: 5_000, 4: 30_000}


def test_devices_have_clocks_of_their_own() -> None:
    rows = [DeviceClockRow(rank, 0.0, bound_us=rank * 40.0, error_us=rank * 4.0, same_as=rank) for rank in (0, 1)]
    clock = replace(TWO_HOSTS, devices=rows)
    assert confidence(clock, 20_000, [0, 1], device=True) == "ends_agree"
    assert confidence(clock, 20_000, [0, 1]) == "same_clock"
    assert undecided_ns(clock, device=True) == {0: 0, 1: 4_000}
