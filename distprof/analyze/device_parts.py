"""What a rank's devices did in its windows, and what its host did meanwhile, as intervals."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.analyze.parts import LOADING
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import pairs
from distprof.analyze.waits import ONE
from distprof.analyze.work import work_of
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.kinds import POINT_TO_POINT, SEND_RECV
from distprof.trace.tables import Tables

_H2D = r"HtoD|H2D|M2D|HostToDevice|(?:Host|Memory|Pinned|Pageable) -> Device"
_HOSTS = r"^(?:cpu_op|python_function|.*_runtime|.*_driver)$"


@dataclass(frozen=True, slots=True)
class HostParts:
    """What the host did, in ns since the epoch.

    Attributes:
        recorded: whether the windows hold operators or calls of the host.
        data: in a loader.
        collective: the training thread waited for other ranks, in a barrier or in `Work.wait`.
        sync: a thread that launches kernels waited for the device otherwise.
    """

    recorded: bool
    data: Intervals
    collective: Intervals
    sync: Intervals


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What one rank's devices did, together, in ns since the epoch.

    Attributes:
        compute, comm: as in `work.Work`.
        wait: the part of `comm` in which somebody had not begun the collective.
        unknown: the part of `comm` of which that is not known.
        h2d: copies from the host.
        busy: anything at all: kernels, copies, fills.
        host: what the host did.
    """

    compute: Intervals
    comm: Intervals
    wait: Intervals
    unknown: Intervals
    h2d: Intervals
    busy: Intervals
    host: HostParts


def device_parts(tables: Tables, blocking: pl.DataFrame, matched: pl.DataFrame) -> dict[int, DeviceParts]:
    """Collect the intervals of each rank whose windows hold work of a device.

    Args:
        blocking: `blocking.blocking_calls`'.
        matched: `waits.match`'s.
    """
    if not len(tables.kernels):
        return {}
    # Of what was not seen to start on all members nobody knows who waited.
    started = pl.col("started").is_not_null().all().over(ONE)
    matched = matched.filter(started)
    seen = tables.events.select("rank", "cat").unique()
    recorded = set(seen.filter(pl.col("cat").str.contains(_HOSTS))["rank"])
    parts = {}
    for rank in sorted(set(tables.kernels["rank"].unique()).intersection(tables.ranks)):
        waits = of_rank(blocking, rank).filter(pl.col("thread").is_in(launching_threads(tables, rank)))
        host = _host(tables, waits, rank, recorded=rank in recorded)
        parts[rank] = _of_rank(tables, matched, host, rank)
    return parts


def _of_rank(tables: Tables, matched: pl.DataFrame, host: HostParts, rank: int) -> DeviceParts:
    own = of_rank(tables.kernels, rank)
    work = work_of(tables, rank)
    wait, known = _waits(of_rank(matched, rank), own)
    copies = own.filter((pl.col("cat") == "gpu_memcpy") & pl.col("name").str.contains(_H2D))
    return DeviceParts(
        compute=work.compute,
        comm=work.comm,
        wait=intervals.intersect(wait, work.comm),
        unknown=intervals.subtract(work.comm, known),
        h2d=intervals.union(pairs(copies, "start", "end")),
        busy=intervals.union(pairs(own, "start", "end")),
        host=host,
    )


def _waits(calls: pl.DataFrame, kernels: pl.DataFrame) -> tuple[Intervals, Intervals]:
    """Where the rank's kernels waited for others', and where it is known whether they did; `calls` are `match`'s."""
    until = pl.min_horizontal("binds_until", "ended")
    bound = calls.filter(pl.col("binds_until").is_not_null()).with_columns(until=until)
    free = calls.filter(~pl.col("binds"))
    sent = kernels.filter(pl.col("collective").is_in([*POINT_TO_POINT, SEND_RECV]))
    known = intervals.union(
        pairs(bound, "started", "ended"), pairs(free, "started", "ended"), pairs(sent, "start", "end")
    )
    return intervals.union(pairs(bound, "started", "until")), known


def _host(tables: Tables, waits: pl.DataFrame, rank: int, *, recorded: bool) -> HostParts:
    zones = training_zones(tables, rank)
    barrier = waits.filter(pl.col("kind") == "barrier")
    collective = intervals.union(
        pairs(zones.filter(pl.col("kind") == "wait"), "start", "end"), pairs(barrier, "start", "end")
    )
    return HostParts(
        recorded=recorded,
        data=intervals.union(pairs(zones.filter(pl.col("kind").is_in(LOADING)), "start", "end")),
        collective=collective,
        sync=intervals.subtract(intervals.union(pairs(waits, "start", "end")), collective),
    )


def launching_threads(tables: Tables, rank: int) -> list[int]:
    """The threads whose waits hold the rank up: the one that trains, and those that launch its kernels."""
    kernels = of_rank(tables.kernels, rank).filter(pl.col("cat") == "kernel")
    threads = set(kernels["launch_thread"].drop_nulls().unique())
    return sorted(threads | {tables.training_thread[rank]} if rank in tables.training_thread else threads)
