"""What a rank's devices did in its windows, and what its host did meanwhile, as intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.parts import LOADING, NEGLIGIBLE
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import pairs, steps_or_windows
from distprof.analyze.waits import ONE
from distprof.analyze.work import work_of
from distprof.trace import intervals
from distprof.trace.intervals import Intervals, Mask
from distprof.trace.kinds import FROM_ROOT, TO_ROOT
from distprof.trace.tables import Tables

UNBOUND_DEVICE = (
    "who waited for whom is not known: it takes kernels of symmetric collectives on all members, and clocks that can "
    "be compared"
)

TO_DEVICE = r"HtoD|H2D|M2D|HostToDevice|(?:Host|Memory|Pinned|Pageable) -> Device"
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

    def known(self, steps: Intervals) -> Mask:
        """In which of these steps it is known of its communication whether it waited, but for what cannot matter."""
        unknown, comm = (intervals.covered(a, steps[:, 0], steps[:, 1]) for a in (self.unknown, self.comm))
        return np.asarray(unknown <= NEGLIGIBLE * comm)


def device_parts(
    tables: Tables, blocking: pl.DataFrame, matched: pl.DataFrame, *, comparable: bool = True
) -> dict[int, DeviceParts]:
    """Collect the intervals of each rank whose windows hold work of a device.

    Args:
        blocking: `blocking.blocking_calls`'.
        matched: `waits.match`'s.
        comparable: whether times of different ranks can be compared.
    """
    if not len(tables.kernels):
        return {}
    # Of what was not seen on all members, or not to start on them, nobody knows who waited.
    started = pl.col("started").is_not_null().all().over(ONE)
    matched = matched.filter(started & (pl.col("seen") == pl.col("members")) & (comparable | (pl.col("members") == 1)))
    matched = matched.with_columns(_until())
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
    wait, known = _waits(of_rank(matched, rank))
    copies = own.filter((pl.col("cat") == "gpu_memcpy") & pl.col("name").str.contains(TO_DEVICE))
    return DeviceParts(
        compute=work.compute,
        comm=work.comm,
        wait=intervals.intersect(wait, work.comm),
        unknown=intervals.subtract(work.comm, known),
        h2d=intervals.union(pairs(copies, "start", "end")),
        busy=intervals.union(pairs(own, "start", "end")),
        host=host,
    )


def _until() -> pl.Expr:
    """`until`: when those had begun that a collective waits for, its own start if it waits for nobody; null: unknown.

    With a known root, all others wait for it or it waits for all others. An all-to-all that binds nobody has no data
    for some, and who is alone has nobody to wait for.
    """
    root = pl.col("root").drop_nulls()
    known = root.n_unique().over(ONE) == 1
    is_root = pl.col("rank") == root.first().over(ONE)
    roots = pl.col("started").filter(pl.col("root") == pl.col("rank")).first().over(ONE)
    free = (pl.col("kind") == "all_to_all") | (pl.col("members") == 1)
    return (
        pl.when(pl.col("binds"))
        .then("binds_until")
        .when(free)
        .then("started")
        .when(known & pl.col("kind").is_in(FROM_ROOT))
        .then(pl.when(is_root).then("started").otherwise(roots))
        .when(known & pl.col("kind").is_in(TO_ROOT))
        .then(pl.when(is_root).then(pl.col("started").max().over(ONE)).otherwise("started"))
        .alias("until")
    )


def _waits(calls: pl.DataFrame) -> tuple[Intervals, Intervals]:
    """Where the rank's kernels waited for others', and where it is known whether they did.

    Args:
        calls: `match`'s, with `until`. Kernels that send or receive are none.
    """
    told = calls.drop_nulls("until").with_columns(until=pl.min_horizontal("until", "ended"))
    return intervals.union(pairs(told, "started", "until")), intervals.union(pairs(told, "started", "ended"))


def steps_known(tables: Tables, devices: Mapping[int, DeviceParts]) -> set[int]:
    """Steps in which it is known of every rank with a device whom its kernels waited for."""
    known: set[int] = set(tables.steps["step"])
    for rank, parts in devices.items():
        numbers, steps = steps_or_windows(tables, rank)
        known.difference_update(
            number for number, is_known in zip(numbers, parts.known(steps), strict=False) if not is_known
        )
    return known


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
