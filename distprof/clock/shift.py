"""Putting a run's times on the reference's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.clock.evidence import DEVICE_CATEGORIES, with_device
from distprof.result import Clock, ClockRow
from distprof.trace.tables import Tables

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Correction:
    """What brings a clock's times onto the reference's.

    Attributes:
        offset_ns: how far the clock is ahead when the reference reads `origin_ns`.
        drift: by how much of its own time it gets further ahead.
    """

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0

    def __call__(self, times: Nanoseconds) -> Nanoseconds:
        """Times of the clock, in Unix ns, on the reference's. Only the small correction goes through floating point."""
        corrected: Nanoseconds = times - self.offset_ns
        if self.drift:
            corrected = corrected - np.rint(self.drift * (corrected - self.origin_ns)).astype(np.int64)
        return corrected

    @property
    def is_none(self) -> bool:
        """Whether it leaves times as they are."""
        return not self.offset_ns and not self.drift


@dataclass(frozen=True, slots=True)
class Corrections:
    """The corrections of a run: rank -> that of its host, and that of its device, as far as they are known."""

    hosts: Mapping[int, Correction] = field(default_factory=dict)
    devices: Mapping[int, Correction] = field(default_factory=dict)

    def of(self, rank: int, *, device: bool = False) -> Correction:
        """A rank's correction; none where it is not known. A device without one of its own goes with its host."""
        host = self.hosts.get(rank, Correction())
        return self.devices.get(rank, host) if device else host


def corrections(clock: Clock) -> Corrections:
    """What is to be done to each rank's times; nothing where that is not known."""

    def of(row: ClockRow) -> Correction:
        drift = (row.drift_ppm or 0.0) / 1e6
        return Correction(round((row.offset_us or 0.0) * 1000), drift, clock.origin_unix_ns or 0)

    return Corrections({row.rank: of(row) for row in clock.ranks}, {row.rank: of(row) for row in clock.devices})


def shifted(tables: Tables, by: Corrections) -> Tables:
    """The tables with all times on the reference's clock."""
    if all(correction.is_none for correction in (*by.hosts.values(), *by.devices.values())):
        return tables
    rows = [(rank, device, by.of(rank, device=device)) for rank in tables.ranks for device in (False, True)]
    clocks = pl.DataFrame(
        [(rank, device, it.offset_ns, it.drift, it.origin_ns) for rank, device, it in rows],
        schema={"rank": pl.Int32, "on_device": pl.Boolean, "offset": pl.Int64, "drift": pl.Float64, "origin": pl.Int64},
        orient="row",
    )

    def shift(table: pl.DataFrame, *times: str, device: pl.Expr | None = None) -> pl.DataFrame:
        """`device` tells the rows whose times are the device's."""
        of_host = pl.lit(value=False)
        rows = table.with_columns(on_device=of_host if device is None else device)
        rows = rows.join(clocks, on=["rank", "on_device"], how="left", maintain_order="left")
        for name in times:
            since = pl.col(name) - pl.col("offset") - pl.col("origin")
            drifted = (since.cast(pl.Float64) * pl.col("drift")).round().cast(pl.Int64)
            rows = rows.with_columns(pl.col(name) - pl.col("offset") - drifted)
        return rows.select(table.columns)

    calls = with_device(tables)
    # Where nothing tells when a collective was created, `created` is when it started.
    started = pl.col("device") & (pl.col("created") == pl.col("started"))
    calls = shift(calls.with_columns(started_only=started), "created", device=pl.col("started_only"))
    calls = shift(calls, "started", "ended", device=pl.col("device"))
    kernels = shift(tables.kernels, "start", "end", device=pl.lit(value=True))
    return replace(
        tables,
        zones=shift(tables.zones, "start", "end"),
        steps=shift(tables.steps, "start", "end"),
        batches=shift(tables.batches, "time"),
        device_zones=shift(tables.device_zones, "start"),
        collectives=calls.select(tables.collectives.columns),
        events=shift(tables.events, "start", "end", device=pl.col("cat").is_in(DEVICE_CATEGORIES)),
        windows=shift(tables.windows, "start", "end"),
        kernels=shift(kernels, "launched", "launch_end"),
        memory=shift(tables.memory, "time"),
        signs=shift(tables.signs, "written", "drained"),
    )
