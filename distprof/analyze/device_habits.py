"""Habits that waste steps and show in what a Kineto window recorded: copies, and tiny work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from distprof.analyze.data_loading import loader_settings
from distprof.analyze.device_parts import TO_DEVICE
from distprof.analyze.dominating import dominating_kernel, dominating_operator
from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import Judged, validate
from distprof.analyze.operators import in_steps, steps_of_windows
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import MS, on_device, pairs, times_of_steps
from distprof.analyze.zones import zones_at
from distprof.result import Finding
from distprof.trace import intervals
from distprof.trace.tables import Tables

_WORTH_SHARE = 0.02  # of the step: a habit that costs less is not told
_LISTED_STEPS = 5
# A batch is copied in every step and must be; that happens between the zones. What is copied inside these is none.
_NO_BATCH = ("forward", "backward", "optimizer")
# CUDA's names tell which memory is pinned; of a copy by another name that keeps its call, the host waits for it alike.
_PAGEABLE, _PINNED = "Pageable", "Pinned"
_SMALL_GAP_NS = 100_000  # between two pieces of work: the next was not there in time
_TINY_US = {"kernel": 10.0, "operator": 30.0}
_MANY = 100  # per step
_GAPS_SHARE = 0.2
_MOST = 0.5  # of all the kernels or operators: that much must be in one place to say that most is

Steps = Mapping[int, Sequence[int]]


def copies(inputs: Inputs, judged: Judged) -> list[Finding]:
    """The same data copied to the device in every step, and copies that block since their memory is not pinned."""
    tables = inputs.tables
    steps = {rank: own for rank, own in steps_of_windows(tables, tables.kernels).items() if own}
    to_device = tables.kernels.filter((pl.col("cat") == "gpu_memcpy") & pl.col("name").str.contains(TO_DEVICE))
    if not steps or not len(to_device):
        return []
    launched = to_device.with_columns(at=pl.coalesce("launched", "start"))
    # From memory that is not pinned the call itself takes as long as the copy.
    blocked = pl.max_horizontal(pl.col("end") - pl.col("start"), pl.col("launch_end") - pl.col("launched"))
    used = _zoned(tables, in_steps(tables, launched, steps, "at"), steps).with_columns(ns=blocked)
    again = _repeated(used, steps)
    rest = used.join(again.select("rank", "zone", "bytes"), on=["rank", "zone", "bytes"], how="anti", nulls_equal=True)
    return [*_of_repeated(judged, again, steps), *_of_pageable(tables, judged, rest, steps)]


def _zoned(tables: Tables, rows: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """With the columns `zone` and `step` in which the host was at the time `at`."""
    parts = []
    for (rank,), own in rows.partition_by("rank", as_dict=True).items():
        number = int(rank)
        spans = times_of_steps(tables, number, list(steps[number]))
        numbers = np.array(steps[number])[intervals.innermost(spans[:, 0], spans[:, 1], own["at"].to_numpy())]
        parts.append(own.with_columns(zones_at(tables, number, own["at"]), pl.Series("step", numbers)))
    return pl.concat(parts) if parts else rows.with_columns(zone=pl.lit(None, pl.String), step=pl.lit(None, pl.Int64))


def _repeated(used: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Copies of one size in one kind of zone that each of a rank's steps has: `calls` per step, `ns` per step."""
    counts = pl.DataFrame(
        {"rank": list(steps), "steps": [len(own) for own in steps.values()]},
        schema={"rank": pl.Int32, "steps": pl.Int64},
    )
    return (
        used.filter(pl.col("zone").is_in(_NO_BATCH) & pl.col("bytes").is_not_null())
        .group_by("rank", "zone", "bytes")
        .agg(pl.col("step").n_unique().alias("in_steps"), pl.len().alias("calls"), pl.col("ns").sum())
        .join(counts, on="rank")
        .filter((pl.col("in_steps") == pl.col("steps")) & (pl.col("steps") > 1))
        .with_columns(pl.col("calls") / pl.col("steps"), pl.col("ns") / pl.col("steps"))
    )


def _of_repeated(judged: Judged, again: pl.DataFrame, steps: Steps) -> list[Finding]:
    if not len(again):
        return []
    cost = again.group_by("rank").agg(pl.col("ns").sum()).sort("ns", "rank")
    rank, taken = int(cost["rank"][-1]), float(cost["ns"][-1]) / MS
    saves = judged.outside(taken)
    if judged.share(saves) < _WORTH_SHARE:
        return []
    zone, size, calls = again.filter(pl.col("rank") == rank).sort("ns").select("zone", "bytes", "calls").row(-1)
    return [
        Finding(
            id="habit.repeated_copy",
            severity=judged.severity(saves),
            ranks=sorted(again["rank"].unique()),
            steps=list(steps[rank])[:_LISTED_STEPS],
            observation=f"in {zone} rank {rank} copies {size} bytes to the device {calls:.0f} times in every step; "
            f"such copies take {taken:.2f} ms per step",
            hypothesis="something that never changes, such as a mask or a table, is made on the host and copied anew",
            next_check="make it once on the device: with register_buffer, or before the first step",
            evidence={"kernels.calls": float(calls), "kernels.bytes": float(size), "kernels.total": taken},
            saves=saves,
        )
    ]


def _of_pageable(tables: Tables, judged: Judged, used: pl.DataFrame, steps: Steps) -> list[Finding]:
    told = pl.col("name").str.contains(_PAGEABLE, literal=True)
    kept = ~pl.col("name").str.contains(_PINNED, literal=True) & (pl.col("launch_end") >= pl.col("end"))
    pageable = used.filter(told | kept)
    if not len(pageable):
        return []
    cost = pageable.group_by("rank").agg(pl.col("ns").sum(), pl.len().alias("calls"), told.all()).sort("rank")
    per_step = {
        rank: (ns / MS / len(steps[rank]), calls / len(steps[rank]), named)
        for rank, ns, calls, named in cost.iter_rows()
    }
    rank = max(per_step, key=lambda number: per_step[number][0])
    taken, calls, named = per_step[rank]
    saves = judged.outside(taken)
    if judged.share(saves) < _WORTH_SHARE:
        return []
    pinned = loader_settings(tables, rank).get("pin_memory")
    check = (
        "the loader pins its batches: pin what else is copied (Tensor.pin_memory()), and copy it with non_blocking=True"
        if pinned
        else validate(tables, "loader.pin_memory=true") + " and copy batches with non_blocking=True"
    )
    seen = (
        "copies memory that is not pinned to the device"
        if named
        else "waits in its copies to the device until they are over"
    )
    return [
        Finding(
            id="habit.pageable_copy",
            severity=judged.severity(saves),
            ranks=sorted(per_step),
            steps=list(steps[rank])[:_LISTED_STEPS],
            observation=f"rank {rank} {seen}, {calls:.1f} times and {taken:.2f} ms per step",
            hypothesis="such copies block the host and cannot run beside kernels"
            if named
            else "their memory is not pinned, or they are not asked to return at once, and so they block the host",
            next_check=check,
            evidence={"kernels.calls": calls, "kernels.total": taken},
            saves=saves,
        )
    ]


def tiny_work(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Many tiny kernels, or operators where ranks train on the CPU, with gaps between: launching them takes longer."""
    tables = inputs.tables
    device = len(tables.kernels) > 0
    if device:
        work = tables.kernels.filter((pl.col("cat") == "kernel") & pl.col("collective").is_null())
        around = tables.kernels
    elif on_device(tables):
        return []
    else:
        work = around = _leaves(tables)
    what = "kernel" if device else "operator"
    steps = {rank: own for rank, own in steps_of_windows(tables, work).items() if own}
    found = {rank: _gaps(tables, work, around, rank, own) for rank, own in steps.items()}
    tiny = {
        rank: row
        for rank, row in found.items()
        if row[0] >= _MANY and row[1] <= _TINY_US[what] and judged.share(judged.outside(row[2])) >= _GAPS_SHARE
    }
    if not tiny:
        return []
    rank = max(tiny, key=lambda number: tiny[number][2])
    count, median_us, gaps = tiny[rank]
    saves = judged.outside(gaps)
    own = of_rank(work, rank).with_columns(at=pl.coalesce("launched", "start") if device else "start")
    zones = _zoned(tables, in_steps(tables, own, {rank: steps[rank]}, "at"), steps)["zone"]
    most = zones.drop_nulls().value_counts().filter(pl.col("count") > _MOST * len(zones))["zone"]
    zone = most[0] if len(most) else None
    optimizer = zone == "optimizer"
    return [
        Finding(
            id=f"habit.tiny_{what}s",
            severity=judged.severity(saves),
            ranks=sorted(tiny),
            steps=list(steps[rank])[:_LISTED_STEPS],
            observation=f"rank {rank} runs {count:.0f} {what}s per step of {median_us:.1f} us in the median"
            f"{f', most in {zone}' if zone else ''}, and {gaps:.1f} ms of short gaps lie between them",
            hypothesis=f"starting so many small {what}s from Python takes longer than they do",
            next_check="give the optimizer fused=True or foreach=True, and `distprof compare` the runs"
            if optimizer
            else "compile the model (torch.compile) or use larger batches, and `distprof compare` the runs",
            evidence={f"{what}s.calls": count, f"{what}s.median_us": median_us, "gaps": gaps},
            saves=saves,
        )
    ]


def _leaves(tables: Tables) -> pl.DataFrame:
    """What computes on the ranks' training threads."""
    threads = pl.DataFrame(
        {"rank": list(tables.training_thread), "thread": list(tables.training_thread.values())},
        schema={"rank": pl.Int32, "thread": pl.Int64},
    )
    return tables.events.filter("leaf").join(threads, on=["rank", "thread"], maintain_order="left")


def _gaps(
    tables: Tables, work: pl.DataFrame, around: pl.DataFrame, rank: int, own: Sequence[int]
) -> tuple[float, float, float]:
    """Of a rank: pieces of `work` per step, their median in us, and the short gaps in `around` per step in ms."""
    spans = times_of_steps(tables, rank, list(own))
    mine = pairs(of_rank(work, rank), "start", "end")
    mine = mine[intervals.contains(intervals.union(spans), mine[:, 0])]
    if not len(mine):
        return 0.0, 0.0, 0.0
    busy = intervals.union(pairs(of_rank(around, rank), "start", "end"))
    gaps = np.column_stack([busy[:-1, 1], busy[1:, 0]])
    short = intervals.union(gaps[gaps[:, 1] - gaps[:, 0] <= _SMALL_GAP_NS])
    between = float(intervals.covered(short, spans[:, 0], spans[:, 1]).mean()) / MS
    return len(mine) / len(own), float(np.median(mine[:, 1] - mine[:, 0])) / 1e3, between


DEVICE_HABITS: tuple[Callable[[Inputs, Judged], list[Finding]], ...] = (
    copies,
    tiny_work,
    dominating_operator,
    dominating_kernel,
)
