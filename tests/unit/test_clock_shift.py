"""Corrections of times."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from distprof.clock.shift import Correction, Corrections, corrections, shifted
from distprof.result import Clock, ClockRow, DeviceClockRow
from distprof.trace.tables import (
    BATCHES,
    COLLECTIVES,
    DEVICE_ZONES,
    EVENTS,
    KERNELS,
    MEMORY,
    SIGNS,
    STEPS,
    WINDOWS,
    ZONES,
)
from tests.unit.tables import Call, Operator, Step, Zone, tables

NOW = 1_790_857_026_123_456_789
TIMES = {
    "zones": ("start", "end"),
    "steps": ("start", "end"),
    "batches": ("time",),
    "device_zones": ("start",),
    "collectives": ("created", "started", "ended"),
    "events": ("start", "end"),
    "windows": ("start", "end"),
    "kernels": ("launched", "launch_end", "start", "end"),
    "memory": ("time",),
    "signs": ("written", "drained"),
}


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
    assert corrections(replace(clock, origin_unix_ns=None)).of(1) == Correction(-30_500, 12.5e-6, 0)
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


def test_every_time_in_every_table_is_corrected_for_offset_and_drift() -> None:
    def frame(table: str, schema: dict[str, Any], **more: Any) -> pl.DataFrame:
        """Rows of rank 1, then of rank 0, at different times."""
        rows = [
            {"rank": rank, **{name: NOW + 10**9 * (row + place) for place, name in enumerate(TIMES[table])}, **more}
            for row, rank in enumerate((1, 1, 0, 0))
        ]
        return pl.DataFrame(rows, schema=schema)

    made = replace(
        tables(ranks=[0, 1]),
        zones=frame("zones", ZONES),
        steps=frame("steps", STEPS),
        batches=frame("batches", BATCHES),
        device_zones=frame("device_zones", DEVICE_ZONES),
        collectives=frame("collectives", COLLECTIVES),
        events=frame("events", EVENTS, cat="cpu_op"),
        windows=frame("windows", WINDOWS),
        kernels=frame("kernels", KERNELS),
        memory=frame("memory", MEMORY),
        signs=frame("signs", SIGNS),
    )
    hosts = {0: Correction(7), 1: Correction(5_000_000_000, 80e-6, NOW - 10**9)}
    by = Corrections(hosts, {1: Correction(-3_000_000_000, -30e-6, NOW)})
    moved = shifted(made, by)
    for name, columns in TIMES.items():
        before, after = getattr(made, name), getattr(moved, name)
        assert after.columns == before.columns and after["rank"].to_list() == [1, 1, 0, 0]
        for column, rank in itertools.product(columns, (0, 1)):
            own = before["rank"] == rank
            device = name == "kernels" and column in ("start", "end")
            expected = by.of(rank, device=device)(before.filter(own)[column].to_numpy())
            assert after.filter(own)[column].to_list() == expected.tolist(), (name, column, rank)
    events = made.events.with_columns(cat=pl.lit("gpu_memcpy"))
    after = shifted(replace(made, events=events), by).events.filter(rank=1)
    assert after["end"].to_list() == by.of(1, device=True)(events.filter(rank=1)["end"].to_numpy()).tolist()


def test_where_only_the_start_is_known_it_is_the_devices_time() -> None:
    call = Call(1, 1, created=2, started=2, ended=4)
    kernel = {"rank": 1, "collective": "all_reduce", "start": 2_000_000, "end": 4_000_000}
    made = replace(tables(ranks=[0, 1], calls=[call]), kernels=pl.DataFrame([kernel], schema=KERNELS))
    moved = shifted(made, Corrections({1: Correction(1_000)}, {1: Correction(50)}))
    row = moved.collectives.select("created", "started", "ended").row(0)
    assert row == (2_000_000 - 50, 2_000_000 - 50, 4_000_000 - 50)


def test_nulls_stay_null_and_nothing_to_do_does_nothing() -> None:
    made = tables(ranks=[0, 1], calls=[Call(1, 1, created=1)])
    assert shifted(made, Corrections()) is made
    moved = shifted(made, Corrections({1: Correction(7, 1e-6, 0)}))
    assert moved.collectives["ended"].to_list() == [None]
