"""The kernels of one trace, with the calls that launched them, and the collectives that they carry out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.trace.intervals import innermost
from distprof.trace.kinds import POINT_TO_POINT, UNCLASSIFIED, UNKNOWN, kind_of, kinds_by_name
from distprof.trace.tables import KERNELS

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("_runtime", "_driver")
_ANNOTATION = r"^(?:nccl|rccl|xccl|ccl|hccl|ucc|mpi):"
_OPERATOR = "c10d::"
_RECORD = "record_param_comms"

# One row per collective of a trace; `group`, `desc` and `members` as the trace writes them, `root` a place among these.
# Collectives of one group are in one `lane`: a stream, or gloo's workers. `returned` is when the host's call that
# created it was over; null where nothing tells of that call.
CARRIED_OUT: dict[str, Any] = {
    "kind": pl.String,
    "family": pl.String,
    "group": pl.String,
    "desc": pl.String,
    "members": pl.String,
    "seq": pl.Int64,
    "bytes": pl.Int64,
    "dtype": pl.String,
    "created": pl.Int64,
    "returned": pl.Int64,
    "started": pl.Int64,
    "ended": pl.Int64,
    "lane": pl.Int64,
    "root": pl.Int64,
}
# Bytes of an element, by torch's and by the operators' names of types.
_SIZES = {
    1: ("byte", "char", "bool", "int8", "uint8", "unsigned char", "signed char", "float8_e4m3fn", "float8_e5m2"),
    2: ("half", "bfloat16", "short", "int16", "c10::half", "c10::bfloat16"),
    4: ("float", "int", "int32"),
    8: ("double", "long", "int64", "long int", "complexfloat", "c10::complex<float>"),
    16: ("complexdouble", "c10::complex<double>"),
}
_BYTES = {name: size for size, names in _SIZES.items() for name in names}


def size_of(dtype: pl.Expr) -> pl.Expr:
    """Bytes of an element of a type; null for an unknown one."""
    return dtype.str.to_lowercase().replace_strict(_BYTES, default=None, return_dtype=pl.Int64)


def read_kernels(
    events: pl.DataFrame, calls: pl.DataFrame, patterns: Sequence[tuple[str, str | None]] = ()
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What the device did.

    A collective is known by the metadata on its kernel, else by the kernel's name; what it is, by the metadata on the
    kernel or on the call around its launch, else by annotations and operators there, else by its name. Kernels launched
    by one call are one collective.

    Args:
        events: FILE_EVENTS.
        calls: CALLS of these events.
        patterns: see `kinds.kinds_by_name`.

    Returns:
        KERNELS without rank and window, and CARRIED_OUT of its collectives; sending and receiving is none.
    """
    numbered = events.drop("leaf", "finished", "process", "shapes").with_row_index("row")
    work = numbered.filter(pl.col("cat").is_in(DEVICE_CATEGORIES)).unique(
        ["cat", "name", "device", "stream", "start", "end", "correlation"], keep="first", maintain_order=True
    )
    launches = (
        events.select("cat", "correlation", launched="start", launch_end="end", launch_thread="thread")
        .filter(_ends_with(pl.col("cat"), _LAUNCHES) & (pl.col("correlation") > 0))
        .unique("correlation", keep="first")
        .drop("cat")
    )
    work = work.join(launches, on="correlation", how="left", maintain_order="left")
    work = work.join(calls, on="row", how="left", maintain_order="left")
    by_name = pl.when(pl.col("cat") == "kernel").then(kinds_by_name(work["name"], patterns))
    work = work.with_columns(family=by_name).with_columns(
        pl.when(pl.col("collective").is_not_null()).then(_kinds(work["collective"])).alias("told"),
    )
    work = work.with_columns(
        pl.when(pl.col("told").is_not_null() & (pl.col("family").is_null() | (pl.col("family") == UNCLASSIFIED)))
        .then(pl.col("told"))
        .otherwise("family")
        .alias("family")
    )
    communicating = work.filter(pl.col("family").is_not_null() & (pl.col("family") != UNCLASSIFIED))
    called = _called(communicating, numbered, calls)
    kinds = called.select("row", kind="kind")
    kernels = work.join(kinds, on="row", how="left", maintain_order="left").with_columns(
        collective=pl.coalesce("kind", "family")
    )
    schema = {name: dtype for name, dtype in KERNELS.items() if name not in ("rank", "window")}
    return kernels.select(pl.col(name).cast(dtype) for name, dtype in schema.items()), _carried_out(called)


def _ends_with(text: pl.Expr, endings: Sequence[str]) -> pl.Expr:
    return pl.any_horizontal(text.str.ends_with(ending) for ending in endings)


def _kinds(names: pl.Series) -> pl.Series:
    distinct = {name: kind_of(name) for name in names.drop_nulls().unique()}
    return names.replace_strict(distinct, default=None, return_dtype=pl.String)


def _called(kernels: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels that communicate with what the host said when it launched them, and `call`, the same for those of one."""
    name = pl.col("name")
    host = pl.col("cat").is_in(["cpu_op", "user_annotation"])
    copy = pl.col("cat") == "gpu_user_annotation"
    annotation = name.str.contains(_ANNOTATION)
    places = events.select("row", "cat", "name", "thread", "start", "end")  # the rest of millions is not to be copied
    around: dict[str, npt.NDArray[np.int64]] = {
        "record": _around(kernels, "launch_thread", "launched", places.filter(host & (name == _RECORD))),
        "annotation": _around(kernels, "launch_thread", "launched", places.filter(host & annotation)),
        "operator": _around(
            kernels, "launch_thread", "launched", places.filter(host & name.str.starts_with(_OPERATOR))
        ),
        "copy": _around(kernels, "thread", "start", places.filter(copy & annotation)),
    }
    table = kernels.with_columns(
        pl.Series(name, rows).replace(-1, None).cast(pl.UInt32) for name, rows in around.items()
    )
    meta = calls.rename({column: f"call_{column}" for column in calls.columns if column != "row"})
    table = table.join(meta, left_on="record", right_on="row", how="left", maintain_order="left")
    roots = calls.select("row", operator_root="root")
    table = table.join(roots, left_on="operator", right_on="row", how="left", maintain_order="left")
    for place in around:
        told = (events[column].gather(table[place]).alias(f"{place}_{column}") for column in ("name", "start", "end"))
        table = table.with_columns(*told)
    table = table.with_columns(
        call_kind=_kinds(table["call_collective"]),
        annotation_kind=_kinds(table["annotation_name"]),
        operator_kind=_kinds(table["operator_name"]),
        copy_kind=_kinds(table["copy_name"]),
    )
    fields = ("group", "desc", "members", "seq", "elements", "dtype")
    table = table.with_columns(pl.coalesce(field, f"call_{field}").alias(field) for field in fields)
    # A communicator has a stream of its own.
    groups = pl.col("group").drop_nulls()
    only = pl.when(groups.n_unique().over("device", "stream") == 1)
    return table.with_columns(
        kind=pl.coalesce("told", "call_kind", "annotation_kind", "operator_kind", "copy_kind", "family"),
        root=pl.coalesce("call_root", "operator_root"),
        call=pl.coalesce(pl.col("record", "annotation").cast(pl.Int64), -1 - pl.col("row").cast(pl.Int64)),
        created=pl.coalesce("operator_start", "record_start", "annotation_start", "launched", "start"),
        returned=pl.coalesce("operator_end", "record_end", "annotation_end"),
        members=pl.col("members").fill_null(only.then(pl.col("members").drop_nulls().first().over("device", "stream"))),
        desc=pl.col("desc").fill_null(only.then(pl.col("desc").drop_nulls().first().over("device", "stream"))),
        group=pl.col("group").fill_null(only.then(groups.first().over("device", "stream"))),
    )


def _around(kernels: pl.DataFrame, thread: str, at: str, calls: pl.DataFrame) -> npt.NDArray[np.int64]:
    """For each kernel the row of the innermost of `calls` on its `thread` that holds its time `at`; -1 without one."""
    found = np.full(len(kernels), -1, dtype=np.int64)
    threads = kernels[thread].fill_null(-1).to_numpy()
    known = kernels[at].is_not_null().to_numpy()
    times = kernels[at].fill_null(0).to_numpy()
    for (number,), own in calls.partition_by("thread", as_dict=True).items():
        here = np.flatnonzero((threads == number) & known)
        # An end is inclusive: a launch of no duration may stand on it.
        within = innermost(own["start"].to_numpy(), own["end"].to_numpy() + 1, times[here])
        rows = own["row"].to_numpy().astype(np.int64)
        found[here] = np.append(rows, -1)[within]
    return found


def _carried_out(called: pl.DataFrame) -> pl.DataFrame:
    table = called.filter(~pl.col("kind").is_in(POINT_TO_POINT)).group_by("call", maintain_order=True)
    first = ("kind", "family", "group", "desc", "members", "seq", "dtype", "root")
    rows = table.agg(
        *(pl.col(name).first() for name in first),
        pl.col("elements", "stream").first(),
        pl.col("created", "start").min(),
        pl.col("returned", "end").max(),
    )
    named = rows.with_columns(
        bytes=pl.col("elements") * size_of(pl.col("dtype")),
        family=pl.col("family").fill_null(UNKNOWN),
        started=pl.col("start"),
        ended=pl.col("end"),
        lane=pl.col("stream"),
    )
    return named.select(pl.col(name).cast(dtype) for name, dtype in CARRIED_OUT.items())
