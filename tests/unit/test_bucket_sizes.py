"""Whether DDP's buckets fit the links, with planted latencies and bandwidths; times are ms."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from distprof.analyze.bucket_sizes import of_buckets, reduced_at
from distprof.analyze.inputs import Inputs, prepare
from distprof.clock.align import align
from distprof.result import Finding, TransferModel
from tests.unit.tables import judged
from tests.worlds import (
    Await,
    Collective,
    Compute,
    Segment,
    World,
    Zone,
    data_loading,
    forward,
    optimizer,
    simulate,
)

MODEL = "DistributedDataParallel#0"
MIB = 1024 * 1024


def offered(world: World) -> list[Finding]:
    tables = simulate(world)
    inputs: Inputs = prepare(tables, align(tables)[0])
    return of_buckets(inputs, judged(inputs))


@pytest.mark.parametrize(("at_once", "together"), [(1, 5 + 5 + 3), (2, 5 + 3), (3, 1 + 5)])
def test_buckets_queue_for_the_links(at_once: int, together: float) -> None:
    model = TransferModel(
        0, latency=1, algbw_gbps=1, at_once=at_once, calls=9, smallest_bytes=1, largest_bytes=9, error=0
    )
    sizes = np.array([4e6, 4e6, 2e6])
    assert reduced_at(sizes, np.array([0.0, 100.0, 200.0]), model) == 203
    assert reduced_at(sizes, np.array([0.0, 1.0, 2.0]), model) == together


def by_bytes(world: World, rank: int, step: int) -> list[Segment]:
    """A step in which backward takes as long for a bucket as that is large."""
    body: list[Segment] = []
    for bucket, size in enumerate(world.buckets):
        body.append(Compute(world.backward * size / sum(world.buckets)))
        body.append(Collective(bytes=size, waits="later", model=MODEL, bucket=bucket))
    return [data_loading(world), forward(world, step), Zone("backward", "backward", (*body, Await())), optimizer(world)]


def resized(world: World, finding: Finding) -> tuple[World, int]:
    """The world with the size of bucket that a finding proposes, and that size in MiB."""
    found = re.search(r"--candidate ddp\.bucket_cap_mb=(\d+) ", finding.next_check)
    assert found is not None
    cap, total = int(found[1]) * MIB, sum(world.buckets)
    return replace(world, buckets=[min(cap, total - start) for start in range(0, total, cap)]), int(found[1])


# 20 ms of backward fill the buckets. Each of 40 waits for the latency of those before it; one of 12 MB comes too late.
MANY_SMALL = World(steps=14, buckets=(100_000, 500_000) * 20, latency=3.0, script=by_bytes)
FEW_LARGE = World(steps=14, buckets=(1_000_000, 12_000_000), latency=0.05, script=by_bytes)
FITTING = World(steps=14, buckets=(1_000_000, *[2_000_000] * 5, 500_000), latency=0.05, script=by_bytes)


@pytest.mark.parametrize(("world", "which"), [(MANY_SMALL, "too_small"), (FEW_LARGE, "too_large")])
def test_buckets_that_do_not_fit_and_what_others_would_save(world: World, which: str) -> None:
    (found,) = offered(world)
    assert found.id == f"buckets.{which}"
    assert f"{len(world.buckets)} buckets" in found.observation
    assert found.next_check.startswith("`distprof validate --nproc-per-node 4 --baseline '' --candidate ddp.bucket_cap")
    assert found.next_check.endswith(" train.py`")
    assert found.saves is not None
    better, cap = resized(world, found)
    assert (cap * MIB > np.median(world.buckets)) == (which == "too_small")
    assert step(world) - step(better) == pytest.approx(found.saves, rel=0.35), "as the finding foresees"
    assert offered(better) == [] or (offered(better)[0].saves or 0) < 0.5 * found.saves


def step(world: World) -> float:
    tables = simulate(world)
    median = judged(prepare(tables, align(tables)[0])).step
    assert isinstance(median, float)
    return median


def test_buckets_that_fit_are_left_alone() -> None:
    assert offered(FITTING) == []


def test_one_bucket_overlaps_with_nothing() -> None:
    """Its single size tells neither latency nor bandwidth, and yet that all of it comes after backward."""
    (found,) = offered(World(steps=14, buckets=(20_000_000,)))
    assert found.id == "buckets.too_large"
    assert "1 bucket of 19.1 MiB" in found.observation
    assert "ddp.bucket_cap_mb=2 " in found.next_check


def test_many_tiny_buckets_of_one_size() -> None:
    """Their single size tells neither latency nor bandwidth, and yet that there are too many."""
    (found,) = offered(World(steps=14, buckets=(20_000,) * 24, latency=3.0))
    assert found.id == "buckets.too_small"
    assert "24 buckets of 20 KiB" in found.observation
    assert "ddp.bucket_cap_mb=25 " in found.next_check


def test_links_too_slow_for_any_size() -> None:
    (found,) = offered(World(steps=14, buckets=(10_000_000,) * 6, bytes_per_ms=400_000))
    assert found.id == "communication.exposed"
    assert found.severity == "critical"
    assert "no_sync" in found.next_check


def test_without_windows_or_buckets_nothing_is_said() -> None:
    assert offered(World(steps=14, buckets=(1_000_000, 12_000_000), windows=())) == []
    assert offered(World(steps=14, buckets=())) == []
