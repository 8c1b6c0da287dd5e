"""Memory: peaks of processes and allocators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from distprof.analyze.memory import memory
from distprof.result import Memory, ZoneMemory
from distprof.trace.tables import MEMORY
from tests.unit.tables import Zone, inputs, ns, tables

FACTS = {rank: {"host": "a", "boot_id": "b", "peak_resident_bytes": 1000 + rank} for rank in (0, 1)}
ZONES = [Zone(0, "forward", 10, 20), Zone(0, "zone", 12, 14, "augment"), Zone(0, "backward", 20, 40)]


def allocated(*rows: tuple[float, int, int, int | None]) -> pl.DataFrame:
    """Rank 0's (time, device type, allocated, reserved)."""
    return pl.DataFrame(
        [(0, 0, ns(time), kind, 3 if kind else 0, 7, 1, held, reserved) for time, kind, held, reserved in rows],
        schema=MEMORY,
        orient="row",
    )


def of(table: pl.DataFrame | None = None, **more: Any) -> tuple[list[Memory] | None, list[tuple[str, Any]]]:
    what = tables(ranks=[0, 1], zones=ZONES, **{"facts": FACTS, **more})
    rows, missing = memory(inputs(what if table is None else replace(what, memory=table)))
    return rows, [(row.what, row.ranks) for row in missing]


def test_peaks_of_the_processes() -> None:
    rows, missing = of()
    assert rows == [Memory(0, "host", None, 1000), Memory(1, "host", None, 1001)]
    assert missing == [("memory", [0, 1])], "of no allocator"


def test_an_allocators_peak_its_zone_and_those_of_the_other_zones() -> None:
    table = allocated((5, 1, 50, 500), (11, 1, 100, 500), (13, 1, 300, 800), (15, 1, 90, 800), (30, 1, 200, 800))
    rows, missing = of(table)
    assert rows is not None
    assert rows[-1] == Memory(
        rank=0,
        device="device 3",
        zone="augment",
        peak_bytes=300,
        reserved_bytes=800,
        zones=[ZoneMemory("forward", 100), ZoneMemory("augment", 300), ZoneMemory("backward", 200)],
    )
    assert missing == [("memory", [1])], "rank 1 recorded none"


def test_a_peak_outside_of_all_zones_has_none_and_the_cpu_reserves_nothing() -> None:
    rows, _ = of(allocated((5, 0, 900, 0), (30, 0, 200, 0)))
    assert rows is not None
    assert rows[-1] == Memory(0, "cpu", None, 900, None, [ZoneMemory("backward", 200)])


def test_devices_are_apart() -> None:
    rows, _ = of(allocated((11, 0, 5, 0), (11, 1, 7, 9)))
    assert rows is not None
    assert [(row.device, row.peak_bytes) for row in rows[2:]] == [("cpu", 5), ("device 3", 7)]


def test_nothing_recorded_is_null_with_reasons() -> None:
    rows, missing = of(facts={0: {"host": "a", "boot_id": "b"}})
    assert rows is None
    assert missing == [("memory", [0, 1]), ("memory", [0, 1])]
