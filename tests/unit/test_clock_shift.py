"""Corrections of times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from distprof.clock.shift import Correction, Corrections, corrections, shifted
from distprof.result import Clock, ClockRow, DeviceClockRow
from distprof.trace.tables import KERNELS
from tests.unit.tables import Call, Operator, Step, Zone, tables

NOW = 1_790_857_026_123_456_789


def test_no_digit_of_a_time_is_lost() -> None:
    by = Correction(offset_ns=3_217_000_001, drift=25e-6, origin_ns=NOW)
    times = np.array([NOW + 3_217_000_001, NOW + 3_217_000_002, NOW + 3_217_000_001 + 2_000_000_000])
    assert by(times).tolist() == [NOW, NOW + 1, NOW + 2_000_000_000 - 50_000]


def test_a_clock_of_another_epoch() -> None:
    by = Correction(offset_ns=-NOW, drift=0.0, origin_ns=NOW)
    assert by(np.array([0, 17])).tolist() == [NOW, NOW + 17]


def test_rows_become_corrections_and_unknown_ones_none() -> None:
    clock = Clock(
        method="",
        verdict="aligned",
        reference_rank=0,
        ranks=[ClockRow(0, 0.0), ClockRow(1, -30.5, drift_ppm=12.5), ClockRow(2, None)],
        origin_unix_ns=NOW,
        devices=[DeviceClockRow(1, 5.0)],
    )
    by = corrections(clock)
    assert by.of(0).is_none and by.of(2).is_none and by.of(7).is_none
    assert by.of(1) == Correction(-30_500, 12.5e-6, NOW)
    assert by.of(1, device=True) == Correction(5_000, 0.0, NOW)
    assert by.of(0, device=True) == by.of(0), "a device without a clock of its own goes with its host"


def test_all_times_of_a_rank_are_shifted_each_by_its_clock() -> None:
    calls = [Call(0, 1, created=1, started=2, ended=4), Call(1, 1, created=1, started=2, ended=4)]
    kernel = {"rank": 1, "collective": "all_reduce", "start": 2_000_000, "end": 4_000_000}
    launch = {"launched": 1_000_000, "launch_end": 1_100_000}
    made = replace(
        tables(
            ranks=[0, 1],
            zones=[Zone(rank, "forward", 0, 1) for rank in (0, 1)],
            steps=[Step(rank, 0, 0, 5) for rank in (0, 1)],
            calls=calls,
            operators=[Operator(rank, 0, 1) for rank in (0, 1)],
            windows=[(rank, 0, 5) for rank in (0, 1)],
        ),
        kernels=pl.DataFrame([{**kernel, **launch}], schema=KERNELS),
    )
    by = Corrections({0: Correction(), 1: Correction(1_000)}, {1: Correction(50)})
    moved = shifted(made, by)
    for name in ("zones", "steps", "windows", "events"):
        before, after = getattr(made, name), getattr(moved, name)
        assert after.columns == before.columns
        own = before["rank"] == 1
        assert ((before["start"] - after["start"]).filter(own) == 1_000).all()
        assert ((before["end"] - after["end"]).filter(own) == 1_000).all()
        assert before.filter(~own).equals(after.filter(~own))
    rows = moved.collectives.filter(rank=1).select("created", "started", "ended").row(0)
    assert rows == (1_000_000 - 1_000, 2_000_000 - 50, 4_000_000 - 50), "its device carried it out"
    row = moved.kernels.select("start", "end", "launched", "launch_end").row(0)
    assert row == (2_000_000 - 50, 4_000_000 - 50, 1_000_000 - 1_000, 1_100_000 - 1_000)


def test_nulls_stay_null_and_nothing_to_do_does_nothing() -> None:
    made = tables(ranks=[0, 1], calls=[Call(1, 1, created=1)])
    assert shifted(made, Corrections()) is made
    moved = shifted(made, Corrections({1: Correction(7, 1e-6, 0)}))
    assert moved.collectives["ended"].to_list() == [None]
