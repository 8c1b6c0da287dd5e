"""How much memory the ranks held at most, where that was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.zones import zones_at
from distprof.result import Memory, NotObserved, ZoneMemory
from distprof.trace.tables import Tables

_CPU = 0  # torch's number of the device type


def memory(inputs: Inputs) -> tuple[list[Memory] | None, list[NotObserved]]:
    """Peaks of the processes over the whole run, and of the allocators in windows that recorded memory."""
    tables = inputs.tables
    rows = [*_of_processes(tables), *_of_allocators(tables)]
    missing = []
    without = sorted(set(tables.ranks).difference(row.rank for row in rows if row.device == "host"))
    if without:
        reason = "a rank writes its peak down when it ends, and this one did not, or was recorded by others"
        missing.append(NotObserved("memory", without, f"host: {reason}"))
    without = sorted(set(tables.ranks).difference(tables.memory["rank"].unique()))
    if without:
        reason = "no window recorded allocations: give --record memory"
        missing.append(NotObserved("memory", without, f"allocators: {reason}"))
    return rows or None, missing


def _of_processes(tables: Tables) -> Iterator[Memory]:
    for rank, facts in sorted(tables.facts.items()):
        peak = facts.get("peak_resident_bytes")
        if peak is not None:
            yield Memory(rank=rank, device="host", zone=None, peak_bytes=peak)


def _of_allocators(tables: Tables) -> Iterator[Memory]:
    held = tables.memory.filter(pl.col("allocated").is_not_null())
    for (rank, kind, number), own in held.partition_by(
        ["rank", "device_type", "device"], as_dict=True, maintain_order=True
    ).items():
        zoned = own.with_columns(zone=zones_at(tables, int(rank), own["time"]))
        peak = zoned.sort("allocated", "time", descending=[True, False]).row(0, named=True)
        by_zone = zoned.drop_nulls("zone").group_by("zone", maintain_order=True).agg(pl.col("allocated").max())
        reserved = own["reserved"].max() if kind != _CPU else None  # the CPU's allocator reserves nothing
        yield Memory(
            rank=int(rank),
            device="cpu" if kind == _CPU else f"device {number}",
            zone=peak["zone"],
            peak_bytes=peak["allocated"],
            reserved_bytes=reserved,  # type: ignore[arg-type]
            zones=[ZoneMemory(zone=zone, peak_bytes=most) for zone, most in by_zone.iter_rows()],
        )
