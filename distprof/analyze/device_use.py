"""How busy each device was, what it stood idle for, and how far ahead of it the host launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.analyze.device_parts import HostParts
from distprof.analyze.inputs import HOST_UNSEEN, NO_LOADER, NO_WINDOW, NO_WORK, Inputs
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import MS, pairs, steps_or_windows
from distprof.result import DeviceUse, IdleBecause, NotObserved
from distprof.trace import intervals
from distprof.trace.intervals import Intervals, Times

# No machine has more; traces that tell of more are broken, or made to keep a report busy.
_MOST_DEVICES = 256
_NO_LAUNCHES = "its windows do not tell of work in these steps which call launched it"


def device_use(inputs: Inputs) -> tuple[list[DeviceUse] | None, list[NotObserved]]:
    """One row per rank and device that its windows show; None where they show none."""
    tables = inputs.tables
    rows = []
    missing: dict[tuple[str, str], list[int]] = {}
    for rank, parts in inputs.devices.items():
        own = of_rank(tables.kernels, rank)
        numbers, steps = steps_or_windows(tables, rank)
        devices = own["device"].unique(maintain_order=True)
        if len(devices) > _MOST_DEVICES:
            text = f"its windows tell of {len(devices)} devices: only the first {_MOST_DEVICES} have rows"
            missing.setdefault(("device_use", text), []).append(rank)
            own = own.filter(pl.col("device").is_in(devices.head(_MOST_DEVICES).implode(), nulls_equal=True))
        for (device,), kernels in own.partition_by("device", as_dict=True, maintain_order=True).items():
            figures = _figures(kernels, parts.host, steps, loading=inputs.loading_seen(rank))
            rows.append(DeviceUse(rank=rank, device=device, steps_used=len(numbers), **figures))
        if not len(steps):
            missing.setdefault(("device_use", NO_WINDOW), []).append(rank)
            continue
        if not parts.host.recorded:
            missing.setdefault(("device_use.idle_because", HOST_UNSEEN), []).append(rank)
        elif not inputs.loading_seen(rank):
            missing.setdefault(("device_use.idle_because.data", NO_LOADER), []).append(rank)
        for figure in ("launches", "queue_median", "queue_p10"):
            if any(getattr(row, figure) is None for row in rows if row.rank == rank):
                missing.setdefault((f"device_use.{figure}", _NO_LAUNCHES), []).append(rank)
    if not rows:
        return None, [NotObserved("device_use", None, "no Kineto window holds work of a device")]
    unseen = [rank for rank in tables.ranks if rank not in inputs.devices]
    if unseen:
        missing["device_use", NO_WORK] = unseen
    rows.sort(key=lambda row: (row.rank, row.device or 0))
    return rows, [NotObserved(what, ranks, reason) for (what, reason), ranks in missing.items()]


def _figures(kernels: pl.DataFrame, host: HostParts, steps: Intervals, *, loading: bool) -> dict[str, Any]:
    """All of `DeviceUse` that is measured: means per step of one device's `kernels`."""
    busy = intervals.union(pairs(kernels, "start", "end"))
    launches = launches_of(kernels)
    begun = launches["start"].to_numpy()
    lengths = intervals.assign(steps[:, 0], steps[:, 1], [busy, *idle_for(host, launches)]).sum(axis=0)
    inside = intervals.contains(intervals.union(steps), begun)
    depth = launch_queue(launches)[inside]

    def mean(ns: float, *, known: bool = True) -> float | None:
        return float(ns) / len(steps) / MS if known and len(steps) else None

    data, *other = lengths[1:]
    because = [mean(data, known=host.recorded and loading), *(mean(ns, known=host.recorded) for ns in other)]
    return {
        "step": mean(np.diff(steps).sum()),
        "busy": mean(lengths[0]),
        "idle": mean(lengths[1:].sum()),
        "idle_because": IdleBecause(*because),
        "launches": float(inside.sum()) / len(steps) if len(begun) and len(steps) else None,
        "queue_median": float(np.median(depth)) if len(depth) else None,
        "queue_p10": float(np.quantile(depth, 0.1)) if len(depth) else None,
    }


def launches_of(kernels: pl.DataFrame) -> pl.DataFrame:
    """The calls that launched these, as far as they were recorded, with the first kernel of each: a graph's is one."""
    launched = kernels.drop_nulls(["launched", "launch_end"])
    return launched.unique(["launch_thread", "launched"], keep="first", maintain_order=True)


def idle_for(host: HostParts, launches: pl.DataFrame) -> list[Intervals]:
    """What an idle device waits for, as in `IdleBecause`; if for none of these, its host is slow to launch.

    In this order: a host that waits for what it launched does not launch.
    """
    return [host.data, host.collective, host.sync, intervals.union(pairs(launches, "launch_end", "start"))]


def launch_queue(launches: pl.DataFrame) -> Times:
    """For each launch how many others were issued and had not begun when it began."""
    issued, begun = launches["launched"].to_numpy(), launches["start"].to_numpy()
    waiting = np.searchsorted(np.sort(issued), begun, side="right") - np.searchsorted(
        np.sort(begun), begun, side="right"
    )
    depth: Times = np.maximum(waiting, 0)  # clocks of host and device differ by some us
    return depth
