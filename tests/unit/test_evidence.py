"""Ranks that train on a device are judged by what their windows hold; times are ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.analyze.stragglers import stragglers
from distprof.result import Stragglers
from distprof.trace.tables import KERNELS, Tables
from tests.unit.tables import Call, Step, Zone, inputs, ns, tables

RANKS, LATE = 4, 2
LOADING, COMPUTING, TRANSFER = 5, 20, 4


def on_device(*, loading: float = 0, computing: float = 0, steps: int = 8, extra_in: range | None = None) -> Tables:
    """Load, compute on the device, and reduce there, which ends for all when the last one has come.

    Args:
        loading, computing: what rank 2 takes longer, in these steps.
    """
    zones, rows, calls, kernels = [], [], [], []
    begin = 0.0
    for step in range(steps):
        late = extra_in is None or step in extra_in
        more = {rank: (loading, computing) if late and rank == LATE else (0.0, 0.0) for rank in range(RANKS)}
        comes = {rank: begin + LOADING + COMPUTING + sum(more[rank]) for rank in range(RANKS)}
        end = max(comes.values()) + TRANSFER
        for rank, came in comes.items():
            loaded = begin + LOADING + more[rank][0]
            rows.append(Step(rank, step, begin, end))
            zones += [Zone(rank, "data_loading", begin, loaded, "DataLoader#0"), Zone(rank, "forward", loaded, end)]
            calls.append(Call(rank, step + 1, loaded, end, came, step=step))
            for name, start, stop in (("mm", loaded, came), ("ncclAllReduce", came, end)):
                kind = "all_reduce" if name.startswith("nccl") else None
                kernels.append((rank, 0, "kernel", name, 0, 7, ns(start), ns(stop), kind, *[None] * (len(KERNELS) - 9)))
        begin = end
    of = tables(
        ranks=range(RANKS),
        zones=zones,
        steps=rows,
        calls=calls,
        windows=[(rank, -1, begin + 1) for rank in range(RANKS)],
        facts={rank: {"host": "a", "boot_id": "b", "device": "cuda:0"} for rank in range(RANKS)},
    )
    return replace(of, kernels=pl.DataFrame(kernels, schema=KERNELS, orient="row"), arrival="started")


def judge(of: Tables) -> Stragglers:
    given = inputs(of)
    same = replace(given.clock, verdict="same_host")
    return stragglers(replace(given, clock=same))[0]


@pytest.mark.parametrize(
    ("late", "cause", "zone"),
    [({"loading": 10}, "data_loading", "DataLoader#0"), ({"computing": 10}, "device", None)],
)
def test_the_host_or_the_device_is_slow(late: dict[str, Any], cause: str, zone: str | None) -> None:
    found = judge(on_device(**late))
    assert (found.verdict, found.basis) == ("straggler", "window"), found.why
    (row,) = found.ranks
    assert (row.rank, row.cause, row.zone, row.pattern) == (LATE, cause, zone, "persistent")
    assert (row.delay, row.imposed_wait, row.saved_if_fixed) == pytest.approx((10, 10, 10))


def test_late_at_times() -> None:
    (row,) = judge(on_device(loading=10, steps=20, extra_in=range(2, 20, 5))).ranks
    assert (row.pattern, row.steps) == ("intermittent", [2, 7, 12, 17])


def test_healthy_ones_name_nobody() -> None:
    assert judge(on_device()).verdict == "none"


def test_without_kernels_the_hosts_times_tell_nothing() -> None:
    of = on_device(loading=10)
    found = judge(replace(of, kernels=of.kernels.clear(), arrival="created"))
    assert (found.verdict, found.ranks) == ("undecided", [])
    assert "no window holds its kernels" in found.why


def test_few_steps_in_a_window_are_too_few() -> None:
    of = on_device(loading=10)
    short = of.windows.with_columns(end=pl.lit(ns(80), pl.Int64))
    found = judge(replace(of, windows=short))
    assert (found.verdict, found.why) == (
        "undecided",
        "too few steps: 2 steady and inside the windows on all ranks, and 3 are needed",
    )
