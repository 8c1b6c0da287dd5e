"""Calls in which a host waited for its device, in Kineto windows: which they are, and who made them."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import Times, innermost
from distprof.trace.steps import ANNOTATION
from distprof.trace.tables import Tables, empty

# One row per call, in the order of rank, thread and start; none lies inside another.
#   kind: stream | device | event | copy | item | barrier: what was waited for
#   wait: numbers the waits: an `.item()` copies and synchronises, and is one
#   caller: the operator or annotation around it and, where stacks were recorded, the line of Python; or null
BLOCKING: dict[str, Any] = {
    "rank": pl.Int32,
    "thread": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "kind": pl.String,
    "wait": pl.Int64,
    "caller": pl.String,
}

# Names of CUDA, HIP and MUSA, of Level Zero, Unified Runtime and its predecessor (XPU), and of CANN (Ascend).
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "stream",
            r"^(?:cuda|hip|musa)StreamSynchronize|^cuStreamSynchronize|^zeCommand(?:Queue|ListHost)Synchronize"
            r"|^(?:ur|pi)QueueFinish|aclrtSynchronizeStream",
        ),
        (
            "device",
            r"^(?:cuda|hip|musa)DeviceSynchronize|^(?:cu|hip)CtxSynchronize|^syclDeviceWait|aclrtSynchronizeDevice",
        ),
        (
            "event",
            r"^(?:cuda|hip|musa)EventSynchronize|^cuEventSynchronize|^ze(?:Event|Fence)HostSynchronize"
            r"|^(?:ur|pi)Events?Wait$|aclrtSynchronizeEvent",
        ),
        ("copy", r"^(?:cuda|hip|musa|cu)Memcpy(?!.*(?:Async|Batch))|aclrtMemcpy(?!.*Async)"),
    )
)
_CALLS = r"_(?:runtime|driver)$"
# Copies that never keep the host: within the device, and those of pinned memory, which return at once.
_FREE_COPIES = r"Pinned|DtoD|DeviceToDevice|Device -> Device|D2D"
# What makes a wait another kind: the operator that waits, from the outside to the inside.
_OPERATORS = (
    ("barrier", ("c10d::barrier",)),
    ("item", ("aten::item",)),
    ("item", ("aten::_local_scalar_dense",)),
    ("copy", ("aten::copy_",)),
)
# A Python function of torch's own, or one that is built in, is not where the user looks.
_USERS_LINE = r"\(\d+\): "
_TORCHS_LINE = r"(?:^|/)(?:torch|torch/.*|threading\.py.*)[/(]"


def blocking_calls(tables: Tables) -> pl.DataFrame:
    """All ranks' calls in which a host thread waited for a device; see BLOCKING."""
    if not len(tables.kernels):
        return empty(BLOCKING)
    calls = _outermost(pl.concat([_named(tables.events), _copies(tables.kernels)]))
    told = tables.events.filter(pl.col("cat").is_in(["cpu_op", "user_annotation", "python_function"]))
    around = told.join(calls.select("rank", "thread").unique(), on=["rank", "thread"], how="semi")
    of_thread = around.partition_by("rank", "thread", as_dict=True)
    parts = [empty(BLOCKING)]
    for key, own in calls.partition_by("rank", "thread", as_dict=True, maintain_order=True).items():
        parts.append(_with_callers(own, of_thread.get(key, around.clear())))
    return pl.concat(parts)


def _named(events: pl.DataFrame) -> pl.DataFrame:
    """Calls that wait by their name."""
    calls = events.filter(pl.col("cat").str.contains(_CALLS))
    kinds = {name: kind for name in calls["name"].unique() if (kind := _kind(name)) is not None}
    told = pl.col("name").replace_strict(kinds, default=None, return_dtype=pl.String)
    return calls.select("rank", "thread", "start", "end", kind=told).drop_nulls("kind")


def _kind(name: str) -> str | None:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), None)


def _copies(kernels: pl.DataFrame) -> pl.DataFrame:
    """Calls that returned when their copy was over, though their name does not say that they wait for it."""
    waited = (
        (pl.col("cat") == "gpu_memcpy")
        & ~pl.col("name").str.contains(_FREE_COPIES)
        & (pl.col("launch_end") >= pl.col("end"))
    )
    return kernels.filter(waited).select(
        "rank", thread="launch_thread", start="launched", end="launch_end", kind=pl.lit("copy")
    )


def _outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """A call of a runtime may make the one of a driver that waits, and a copy may be told twice."""
    ordered = calls.sort("rank", "thread", "start", "end", descending=[False, False, False, True], maintain_order=True)
    reach = pl.col("end").cum_max().shift(1).over("rank", "thread")
    return ordered.filter((pl.col("start") >= reach).fill_null(value=True))


def _with_callers(calls: pl.DataFrame, around: pl.DataFrame) -> pl.DataFrame:
    """One thread's calls as BLOCKING; `around` is what that thread ran."""
    start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
    at = start + (end - start) // 2  # rounded times of an operator and of a call at its edge may not nest
    cat, name = pl.col("cat"), pl.col("name")
    kind = calls["kind"].to_numpy().astype(object)
    wait = start.copy()  # a call is a wait of its own, known by its start
    operators = around.filter(cat == "cpu_op")
    for of, names in reversed(_OPERATORS):
        found, began = named_around(at, operators.filter(name.is_in(names)))
        # A copy that waits for an event does so for another reason.
        applies = found.is_not_null().to_numpy() & ((of != "copy") | np.isin(kind, ("stream", "copy")))
        kind[applies], wait[applies] = of, began[applies]
    leaf = pl.col("leaf") | reduce(or_, (name.str.starts_with(prefix) for prefix in ("c10d::", "record_param_comms")))
    operator, _ = named_around(at, operators.filter(leaf))
    annotation, _ = named_around(at, around.filter((cat == "user_annotation") & ~name.str.starts_with(ANNOTATION)))
    users = name.str.contains(_USERS_LINE) & ~name.str.contains(_TORCHS_LINE)
    line, _ = named_around(at, around.filter((cat == "python_function") & users))
    table = calls.with_columns(kind=pl.Series(kind, dtype=pl.String), wait=wait).with_columns(
        operator.alias("operator"), annotation.alias("annotation"), line.alias("line")
    )
    caller = pl.concat_str(
        pl.col("operator"),
        pl.concat_str(pl.lit("in "), "annotation"),
        pl.concat_str(pl.lit("at "), "line"),
        separator=" ",
        ignore_nulls=True,
    ).str.strip_prefix("in ")
    table = table.with_columns(caller=pl.when(caller != "").then(caller))
    return table.select(pl.col(column).cast(dtype) for column, dtype in BLOCKING.items())


def named_around(at: Times, events: pl.DataFrame) -> tuple[pl.Series, npt.NDArray[np.int64]]:
    """The name and the start of the innermost of `events` around each time; null and -1 without one."""
    # An end is inclusive: a call of no duration may stand on it.
    rows = innermost(events["start"].to_numpy(), events["end"].to_numpy() + 1, at)
    names = pl.Series([*events["name"], None], dtype=pl.String)
    return names.gather(np.where(rows < 0, len(events), rows)), np.append(events["start"].to_numpy(), -1)[rows]
