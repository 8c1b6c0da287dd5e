"""What devices tell of the clocks; times are ns. Kernels begin 15 ns after their launch at the earliest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from distprof.clock.devices import behind, gap, lines_by_devices, nearest
from distprof.clock.ends import Line
from distprof.clock.evidence import CONVERTED_NS, Dial, Evidence
from distprof.clock.fit import Fit, Fits
from distprof.clock.shift import Correction

Message = tuple[int, int, int, int]  # sender, sent, receiver, received
INF = float("inf")
HOST, OTHER, DEVICE, FAR = range(4)  # the clocks: of rank 0's host and of the others', and their devices

# Rank 1's host is 500 ahead of the truth, which is what rank 0's reads, and its device is 40 behind that.
SPANS = [(1000, 2_001_000), (3500, 2_003_500), (1200, 2_000_000), (4000, 1_004_000)]
LAUNCHES = [(HOST, 5000, DEVICE, 5015), (OTHER, 6500, FAR, 6475), (HOST, 7000, DEVICE, 7090), (OTHER, 7500, FAR, 7600)]


def evidence(launches: Sequence[Message] = LAUNCHES, waits: Sequence[Message] = (), **more: Any) -> Evidence:
    def messages(rows: Sequence[Message]) -> pl.DataFrame:
        schema = {"sender": pl.Int32, "sent": pl.Int64, "receiver": pl.Int32, "received": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    none = pl.DataFrame()
    dials = more.get("dials", [Dial((0,)), Dial((1,)), Dial((0,), device=True), Dial((1,), device=True)])
    spans = np.array(more.get("spans", SPANS), dtype=np.int64)
    return Evidence(dials, spans, none, none, none, 0, messages(launches), messages(waits), [])


def fits(drift: float = 0.0, error: float = 3.0) -> Fits:
    """Rank 1's device against rank 0's, since the first records of both: 460 ahead, and its first one 2800 later."""
    line = Line(-2340.0, -2340.0 + drift * 1_000_000, error)
    return Fits(DEVICE, {DEVICE: Fit(Line(0.0, 0.0, 0.0), 0.0, 0.0), FAR: Fit(line, None, None)}, {})


def other(of: Evidence, by: Fits | None = None) -> list[float]:
    """The line of rank 1's host by way of its device."""
    line = lines_by_devices(of, by or fits())[OTHER]
    return [line.at_start, line.at_end, line.error]


def test_a_gap_is_between_the_tightest_of_both_sides() -> None:
    waits = [(FAR, 9000, OTHER, 9200), (FAR, 9500, OTHER, 9590), (DEVICE, 100, HOST, 90)]
    of, none = evidence(waits=waits), Correction()
    assert gap(of, FAR, none, none) == (-90, -25)
    assert gap(of, DEVICE, none, none) == (10, 15)
    assert gap(of, FAR, Correction(500), Correction(460)) == (-50, 15)
    assert gap(evidence(), FAR, none, none) == (-INF, -25)
    assert gap(evidence([], waits), FAR, none, none) == (-90, INF)


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [(-5, 10, 0), (3, 10, 3), (-10, -3, -3), (4, 1.5, 3), (-INF, INF, 0), (-INF, -7, -7), (7, INF, 7)],
)
def test_the_nearest_to_no_difference(least: float, most: float, found: int) -> None:
    assert nearest(least, most) == found


def test_how_far_a_device_is_behind() -> None:
    figures = {
        "both": behind(evidence(waits=[(FAR, 9000, OTHER, 9100)]), FAR),
        "no wait": behind(evidence(), FAR),
        "no launch": behind(evidence([], [(FAR, 9000, OTHER, 9100)]), FAR),
        "at most as much": behind(evidence(waits=[(FAR, 9000, OTHER, 9025)]), FAR),
        "contradicts its launches": behind(evidence(waits=[(FAR, 9000, OTHER, 9024)]), FAR),
    }
    assert {case: (of["behind_host_us"], of["behind_host_most_us"]) for case, of in figures.items()} == {
        "both": (0.025, 0.1),
        "no wait": (0.025, None),
        "no launch": (None, 0.1),
        "at most as much": (0.025, 0.025),
        "contradicts its launches": (0.025, None),
    }


def test_hosts_whose_devices_are_aligned_are_so_as_well() -> None:
    """It is 500 ahead, and its first record came at 3000 instead of at 1000."""
    assert other(evidence()) == pytest.approx([-2000, -2000, 3 + CONVERTED_NS])
    assert set(lines_by_devices(evidence(), fits())) == {HOST, OTHER}
    first = lines_by_devices(evidence(), fits())[HOST]
    assert (first.at_start, first.at_end, first.error) == (0, 0, CONVERTED_NS)
    assert lines_by_devices(evidence(), Fits(DEVICE, {}, {})) == {}


def test_and_drift_as_their_devices_do() -> None:
    """At 3500 of the host its device reads 540 less than at first, at 2,003,500 it reads 1,999,460 more."""
    expected = [-(-540 + 2340 + 0.054 + 200), 2_000_000 - (1_999_460 + 2340 - 199.946 + 200), 3 + CONVERTED_NS]
    assert other(evidence(), fits(drift=1e-4)) == pytest.approx(expected, abs=1e-6)


def test_a_synchronisation_has_the_last_word() -> None:
    """It returned when the device read 30 less: so the device is no more behind, and the host by no more ahead."""
    assert other(evidence(waits=[(FAR, 9000, OTHER, 9030)]))[:2] == pytest.approx([-2010, -2010])
    assert other(evidence(waits=[(FAR, 9000, OTHER, 9050)]))[:2] == pytest.approx([-2000, -2000])


def test_without_launches_a_device_is_as_its_host_where_that_can_be() -> None:
    of_first = LAUNCHES[:1]
    assert other(evidence(of_first))[:2] == pytest.approx([-2040, -2040])
    assert other(evidence(of_first, [(FAR, 9000, OTHER, 8980)]))[:2] == pytest.approx([-2060, -2060])
    # Of the reference no launch was seen: then the other's is taken to have taken no time.
    assert other(evidence(LAUNCHES[1:2]))[:2] == pytest.approx([-2015, -2015])


def test_the_references_device_may_be_ahead_of_its_host() -> None:
    """By 25 at least, as a wait for it tells: a launch takes 10 at the least, if it is no more."""
    launches = [(HOST, 5000, DEVICE, 5035), *LAUNCHES[1:2]]
    found = lines_by_devices(evidence(launches, [(DEVICE, 9025, HOST, 9000)]), fits())
    assert found[HOST].at_start == pytest.approx(0)
    assert found[OTHER].at_start == pytest.approx(-2000 + 25 - 5)


def test_of_several_devices_of_a_host_the_first_ranks_tells() -> None:
    dials = [Dial((0,)), Dial((1, 2)), *(Dial((rank,), device=True) for rank in (0, 1, 2))]
    launches = [*LAUNCHES, (OTHER, 6500, 4, 6475)]
    of = evidence(launches, dials=dials, spans=[*SPANS, SPANS[-1]])
    both = fits()
    more = Fits(DEVICE, {**both.of, 4: Fit(Line(-2340.0, -2340.0, 9.0), None, None)}, {})
    assert other(of, more) == pytest.approx([-2000, -2000, 3 + CONVERTED_NS])
