"""What torch's own annotations tell of a trace that others recorded: the training thread, and zones on it."""

from __future__ import annotations

import polars as pl

from distprof.trace.steps import ANNOTATION, outermost_marks
from distprof.trace.tables import ZONES

_ZONES = (
    (r"^enumerate\(DataLoader\)#", "data_loading"),
    (r"^(?:DistributedDataParallel|FullyShardedDataParallel)\.forward$", "forward"),
    (r"^Optimizer\.step#", "optimizer"),
)


def training_thread(events: pl.DataFrame) -> int | None:
    """The thread that trains: the one with the marks of steps, else with zones of a training, else the one that
    computes the longest."""
    host = host_annotations(events)
    zones = host.filter(pl.any_horizontal(pl.col("name").str.contains(pattern) for pattern, _ in _ZONES))
    for found in (outermost_marks(host), zones):
        if len(found):
            return int(found["thread"].mode().min())  # type: ignore[arg-type]
    busy = events.filter("leaf").group_by("thread").agg((pl.col("end") - pl.col("start")).sum().alias("busy"))
    return int(busy.sort("busy", "thread")["thread"][-1]) if len(busy) else None


def host_annotations(events: pl.DataFrame) -> pl.DataFrame:
    """The host's annotations; not the device's copies of them."""
    return events.filter(pl.col("cat") == "user_annotation")


def nested_marks(events: pl.DataFrame) -> int:
    """How many marks of steps lie inside others, or repeat one."""
    host = host_annotations(events)
    return int(host["name"].str.starts_with(ANNOTATION).sum()) - len(outermost_marks(host))


def zones_of(events: pl.DataFrame, rank: int, thread: int | None) -> pl.DataFrame:
    """ZONES that torch annotates on the training thread: loading, DDP's forward, optimizers. Of nested ones of a kind
    the outermost; backward and everything else is not annotated."""
    own = host_annotations(events).filter(pl.col("thread").eq_missing(pl.lit(thread, pl.Int64)))
    parts = []
    for pattern, kind in _ZONES:
        found = own.filter(pl.col("name").str.contains(pattern)).sort("start", "end", descending=[False, True])
        outer = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(True)
        name = pl.col("name").str.extract(r"#(\w+)").fill_null("DistributedDataParallel")
        parts.append(found.filter(outer).with_columns(kind=pl.lit(kind), name=name))
    table = pl.concat(parts).with_columns(rank=pl.lit(rank), thread=pl.lit(0))
    typed = table.select(pl.col(column).cast(dtype) for column, dtype in ZONES.items())
    return typed.sort("start", "end", descending=[False, True])
