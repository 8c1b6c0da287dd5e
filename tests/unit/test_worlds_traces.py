"""The generator's traces alone, as if others had recorded them: read back equal, as far as traces tell."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.pipeline import build
from distprof.trace.tables import Tables
from tests.worlds import (
    Await,
    Clock,
    Collective,
    Compute,
    Delay,
    Idle,
    Segment,
    World,
    Zone,
    data_loading,
    forward,
    optimizer,
    simulate,
    write,
)


def several_groups(world: World, rank: int, step: int) -> list[Segment]:
    """Collectives of all ranks and of pairs, and ranks 0 and 3 have a group of their own each."""
    pair = "1" if rank < 2 else "2"
    body: list[Segment] = [Collective(bytes=100_000, waits="later"), Compute(1.0 + 0.3 * rank)]
    body += [Collective(group=pair, waits="later"), Idle(0.5), Collective("all_gather", group=pair), Await(zone=True)]
    if rank in (0, 3):
        body += [Collective(group="3" if rank == 0 else "4"), Idle(0.2)]
    return [data_loading(world), forward(world, step), Zone("zone", "exchange", tuple(body)), optimizer(world)]


WORLDS = {
    "plain": World(),
    "delays": World(delays=[Delay(rank=2, kind="data_loading", ms=60), Delay(rank=1, kind="backward", ms=30)]),
    "hosts": World(ranks_per_host=2, clocks=[Clock(), Clock(offset_ms=-2500.123457, drift_ppm=55.5)], steps=40),
    "broadcasts": World(ranks=3, broadcast_buffers=True, unused_parameters=True, micro_steps=2),
    "windows": World(steps=12, windows=[(1, 3), (5, 7), (9, 12)]),
    "missing": World(missing=[3]),
    "several groups": World(groups=[(0, 1), (2, 3), (0,), (3,)], script=several_groups, buckets=(), windows=[(3, 12)]),
    "many steps": World(ranks=2, steps=60, windows=[(5, 55)]),
}

Together = set[frozenset[tuple[int, int]]]


def load(world: World, path: Path) -> distprof.trace.loaded.Run:  # type: ignore[name-defined]
    write(world, path)
    return distprof.load(path / "attempt0" / "*.pt.trace.json.gz")


def partners(tables: Tables) -> Together:
    """The collectives that a window saw, as (rank, started) of those that took part."""
    seen = tables.collectives.drop_nulls("started")
    together = seen.group_by("group", "seq").agg(pl.struct("rank", "started").alias("calls"))
    return {frozenset((call["rank"], call["started"]) for call in calls) for calls in together["calls"]}


@pytest.mark.parametrize("name", WORLDS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    run = load(world, tmp_path / "run")
    read, simulated = run.tables, simulate(world)
    assert_frame_equal(read.events, simulated.events, check_row_order=False)
    assert (read.ranks, read.world_size) == (simulated.ranks, world.ranks)
    assert read.training_thread == simulated.training_thread
    assert partners(read) == partners(simulated)
    told = pl.col("started").is_not_null()
    columns = ["rank", "kind", "started", "ended", "step"]
    in_steps = pl.col("step").is_not_null()
    assert_frame_equal(
        read.collectives.filter(in_steps).select(columns),
        simulated.collectives.filter(told & in_steps).select(columns),
        check_row_order=False,
    )


def test_a_collective_is_created_in_the_operator_that_creates_it(tmp_path: Path) -> None:
    world = World()
    read = load(world, tmp_path / "run").tables.collectives
    simulated = simulate(world).collectives.drop_nulls("started")
    both = read.join(simulated, on=["rank", "started"], suffix="_true")
    assert both.height == simulated.height
    assert set(both["created_true"] - both["created"]) == {5_000}, "the operator begins 5 us before"


def test_zones_that_torch_annotates(tmp_path: Path) -> None:
    world = World(windows=[(5, 10)])
    read = load(world, tmp_path / "run").tables
    simulated = simulate(world)
    window = simulated.windows.row(0, named=True)
    for kind in ("data_loading", "forward", "optimizer"):
        inside = (pl.col("rank") == 0) & (pl.col("kind") == kind)
        expected = simulated.zones.filter(inside & pl.col("start").is_between(window["start"], window["end"]))
        assert read.zones.filter(inside).select("start", "end").rows() == expected.select("start", "end").rows()


def test_who_was_late_is_named_by_the_windows_alone(tmp_path: Path) -> None:
    result = build(load(World(delays=[Delay(rank=2, kind="backward", ms=60)]), tmp_path / "run"))
    (row,) = result.stragglers.ranks
    assert (row.rank, result.stragglers.basis) == (2, "window")
    assert row.delay == pytest.approx(60, rel=0.15)
    assert row.last_arrivals == row.of_collectives > 0
    waits = {row.rank: row.wait for row in result.communication.per_rank}
    assert waits.pop(2) == pytest.approx(0, abs=2)
    assert all(wait is not None and 55 < wait < 85 for wait in waits.values())
