"""Which zone of the training thread a time lies in."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.analyze.ranks import training_zones
from distprof.trace.intervals import innermost
from distprof.trace.tables import Tables


def zones_at(tables: Tables, rank: int, times: pl.Series) -> pl.Series:
    """Kind of the innermost zone of `rank` at each of `times` (ns), of the script's own zones its name; or null."""
    zones = training_zones(tables, rank)
    row = innermost(zones["start"].to_numpy(), zones["end"].to_numpy(), times.to_numpy())
    names = zones.select(pl.when(pl.col("kind") == "zone").then("name").otherwise("kind").alias("zone"))["zone"]
    found: pl.Series = pl.Series([*names, None], dtype=pl.String).gather(np.where(row < 0, len(names), row))
    return found.alias("zone")
