"""Synthetic trainings with a planted answer, which is asked for back, and healthy ones, in which nobody is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.analyze.breakdown import breakdown
from distprof.analyze.communication import communication
from distprof.analyze.inputs import Inputs, prepare
from distprof.analyze.stragglers import stragglers
from distprof.clock.align import align
from distprof.result import Straggler, Stragglers
from tests.worlds import (
    Await,
    Collective,
    Compute,
    Delay,
    Segment,
    World,
    Zone,
    data_loading,
    optimizer,
    simulate,
)

MODEL = "DistributedDataParallel#0"
STEP_MS = 35.0  # what a step of the worlds below takes, give or take a millisecond


def prepared(world: World) -> Inputs:
    tables = simulate(world)
    return prepare(tables, align(tables)[0])


def judge(world: World) -> Stragglers:
    return stragglers(prepared(world))[0]


# What is planted -> the cause and the zone to be named.
CAUSES = {
    "data_loading": ("data_loading", "DataLoader#0"),
    "forward": ("forward", MODEL),
    "backward": ("backward", "backward"),
    "optimizer": ("optimizer", "SGD#0"),
    "gc": ("gc", "generation 2"),
    "host": ("host", None),
    "zone:augment": ("zone", "augment"),
}


def check(found: Straggler, planted: Delay) -> None:
    cause, zone = CAUSES[planted.kind]
    assert (found.rank, found.cause, found.zone) == (planted.rank, cause, zone)
    assert found.delay == pytest.approx(planted.ms, rel=0.15)


@pytest.mark.parametrize("before", ["data_loading", "forward", "backward", "optimizer"])
def test_time_between_zones_is_the_hosts_wherever_it_is(before: str) -> None:
    (row,) = judge(World(steps=17, windows=(), delays=[Delay(rank=1, kind="host", ms=10, before=before)])).ranks
    check(row, Delay(rank=1, kind="host", ms=10))


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["data_loading", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("size", [4, 8])
def test_buffers_that_forward_broadcasts_do_not_shift_the_blame(size: int, kind: str, rank: int) -> None:
    """A late root makes the others wait in their forward, a late receiver the rank that sends to it."""
    planted = Delay(rank=rank, kind=kind, ms=10)
    (row,) = judge(World(ranks=size, steps=17, windows=(), broadcast_buffers=True, delays=[planted])).ranks
    check(row, planted)
    assert row.imposed_wait is not None
    if rank == 0:
        assert row.imposed_wait == pytest.approx(10, rel=0.25)
        assert row.last_arrivals >= 0.9 * row.of_collectives > 0
    else:  # who waited for it in forward comes as late to backward, where it is the last about as often
        assert 3 < row.imposed_wait < 11


def synchronised_norms(world: World, rank: int, step: int) -> list[Segment]:
    """SyncBatchNorm: forward and backward meet again and again, and each time wait at once."""
    there: list[Segment] = []
    back: list[Segment] = []
    for layer in range(6):
        there += [Compute(world.forward / 6), Collective("all_gather", bytes=256)]
        back += [Compute(world.backward / 6), Collective(bytes=256)]
        if layer % 2:
            bucket = layer // 2
            back.append(Collective(bytes=world.buckets[bucket], waits="later", model=MODEL, bucket=bucket))
    return [
        data_loading(world),
        Zone("forward", MODEL, tuple(there)),
        Zone("backward", "backward", (*back, Await())),
        optimizer(world),
    ]


def reduced_by_hand(world: World, rank: int, step: int) -> list[Segment]:
    """No DDP: gradients are reduced after backward, and each step ends at a barrier."""
    reduced = [
        Collective(bytes=size, waits="later", model=MODEL, bucket=bucket) for bucket, size in enumerate(world.buckets)
    ]
    return [
        data_loading(world),
        Zone("forward", MODEL, (Compute(world.forward),)),
        Zone("backward", "backward", (Compute(world.backward), *reduced)),
        Await(zone=True),
        optimizer(world),
        Collective("barrier", bytes=0, dtype=None),
    ]


def in_two_dimensions(world: World, rank: int, step: int) -> list[Segment]:
    """Pairs share their layers, and each rank reduces with its twin of the other pair."""
    layers, replicas = str(1 + rank // 2), str(3 + rank % 2)
    layer = [Compute(world.forward / 3), Collective(group=layers, bytes=5000)]
    back = [Compute(world.backward / 3), Collective(group=layers, bytes=5000)]
    gradient = Collective(group=replicas, bytes=100_000, waits="later", model=MODEL, bucket=0)
    return [
        data_loading(world),
        Zone("forward", MODEL, (*layer, *layer, *layer)),
        Zone("backward", "backward", (*back, *back, *back, gradient, Await())),
        optimizer(world),
    ]


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", ["data_loading", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("script", [synchronised_norms, reduced_by_hand, in_two_dimensions])
def test_other_ways_of_meeting(script: Callable[[World, int, int], Sequence[Segment]], kind: str, rank: int) -> None:
    groups = [(0, 1), (2, 3), (0, 2), (1, 3)] if script is in_two_dimensions else []
    world = World(steps=17, windows=(), script=script, groups=groups)
    planted = Delay(rank=rank, kind=kind, ms=8)
    (row,) = judge(replace(world, delays=[planted])).ranks
    check(row, planted)
    assert judge(world).verdict == "none"


durations = st.floats(0.05, 30.0)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ranks = draw(st.integers(1, 4))
    steps = draw(st.integers(4, 8))
    optimizer_ms = draw(st.none() | durations)
    first = draw(st.integers(0, steps - 2))
    kinds = st.sampled_from(["data_loading", "forward", "gc", "host"])
    delays = st.builds(
        Delay,
        rank=st.integers(0, ranks - 1),
        kind=kinds,
        ms=durations,
        before=st.just("backward"),
        computes=st.booleans(),
    )
    return World(
        ranks=ranks,
        steps=steps,
        data_loading=draw(durations),
        forward=draw(durations),
        backward=draw(durations),
        after_buckets=draw(durations),
        optimizer=optimizer_ms,
        source="backward" if optimizer_ms is None else draw(st.sampled_from(["optimizer", "user"])),
        buckets=draw(st.lists(st.integers(1_000, 30_000_000), min_size=1, max_size=5)),
        broadcast_buffers=draw(st.booleans()),
        unused_parameters=draw(st.booleans()),
        micro_steps=draw(st.integers(1, 2)),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.5])),
        windows=[(first, draw(st.integers(first + 1, steps)))],
        missing=draw(st.sets(st.integers(1, 3), max_size=1)) if ranks == 4 else (),
        delays=draw(st.lists(delays, max_size=3)),
        seed=draw(st.integers(0, 1000)),
    )


@given(worlds())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_parts_add_up_to_the_step(world: World) -> None:
    inputs = prepared(world)
    rows, _ = breakdown(inputs)
    section, _ = communication(inputs)
    for row, comm in zip(rows, section.per_rank, strict=True):
        shown = [row.data_wait, row.compute, row.comm_exposed, row.other, row.comm_wait, row.comm_transfer]
        assert all(part is None or part >= 0 for part in (*shown, row.comm_overlapped))
        if row.basis == "window":
            data, compute, exposed, other = shown[:4]
            assert None not in shown[:4]
            assert data + compute + exposed + other == pytest.approx(row.step)  # type: ignore[operator]
            assert (row.comm_wait is None) == bool(world.missing)
            if row.comm_wait is not None:
                assert row.comm_wait + row.comm_transfer == pytest.approx(exposed)  # type: ignore[operator]
        if comm.total is not None:
            assert comm.exposed is not None
            assert -1e-9 <= comm.exposed <= comm.total + 1e-9
            assert comm.wait is None or comm.wait <= comm.total + 1e-9
