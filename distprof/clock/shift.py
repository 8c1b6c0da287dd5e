"""Putting a run's tables on one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from distprof.result import Clock
from distprof.trace.tables import Tables


def offsets_ns(clock: Clock) -> dict[int, int]:
    """What is to be subtracted from each rank's times, in ns; nothing where it is not known."""
    return {row.rank: round((row.offset_us or 0.0) * 1000) for row in clock.ranks}


def shifted(tables: Tables, offsets: Mapping[int, int]) -> Tables:
    """The tables with the ranks' offsets, in ns, taken from all times."""
    if not any(offsets.values()):
        return tables
    clock = pl.DataFrame(
        {"rank": tables.ranks, "offset": [offsets.get(rank, 0) for rank in tables.ranks]},
        schema={"rank": pl.Int32, "offset": pl.Int64},
    )

    def shift(table: pl.DataFrame, *times: str) -> pl.DataFrame:
        moved = table.join(clock, on="rank", how="left", maintain_order="left")
        return moved.with_columns(pl.col(times) - pl.col("offset")).drop("offset")

    return replace(
        tables,
        zones=shift(tables.zones, "start", "end"),
        steps=shift(tables.steps, "start", "end"),
        batches=shift(tables.batches, "time"),
        device_zones=shift(tables.device_zones, "start"),
        collectives=shift(tables.collectives, "created", "started", "ended"),
        events=shift(tables.events, "start", "end"),
        windows=shift(tables.windows, "start", "end"),
        kernels=shift(tables.kernels, "start", "end", "launched", "launch_end"),
        memory=shift(tables.memory, "time"),
    )
