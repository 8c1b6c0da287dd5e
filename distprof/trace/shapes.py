"""Shapes of the inputs with which operators were called, where a window recorded them."""

from __future__ import annotations

import polars as pl

from distprof.trace.tables import SHAPES

_LONGEST = 256


def read_shapes(events: pl.DataFrame) -> pl.DataFrame:
    """SHAPES without rank and window, of one trace's FILE_EVENTS."""
    called = events.filter((pl.col("cat") == "cpu_op") & pl.col("shapes").is_not_null())
    table = called.group_by("name", pl.col("shapes").str.head(_LONGEST)).agg(
        pl.len().alias("calls"), (pl.col("end") - pl.col("start")).sum().alias("ns")
    )
    schema = {name: dtype for name, dtype in SHAPES.items() if name not in ("rank", "window")}
    return table.select(pl.col(name).cast(dtype) for name, dtype in schema.items()).sort("name", "shapes")
