"""64 ranks train a pipeline of tensor-parallel stages in several replicas; one of them is late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import polars as pl
import pytest

from distprof.analyze.stragglers import stragglers
from distprof.trace.tables import Tables
from tests.scenarios.test_straggler_truth import judge, step_ms
from tests.unit.tables import inputs
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

WIDTH, STAGES, REPLICAS = 4, 4, 4


def rank_at(part: int, stage: int, replica: int) -> int:
    return part + WIDTH * (stage + STAGES * replica)


def place(rank: int) -> tuple[int, int, int]:
    """Its part of the layer, its stage, its replica."""
    return rank % WIDTH, rank // WIDTH % STAGES, rank // (WIDTH * STAGES)


LAYERS = [[rank_at(part, stage, replica) for part in range(4)] for replica in range(4) for stage in range(4)]
GRADIENTS = [[rank_at(part, stage, replica) for replica in range(4)] for stage in range(4) for part in range(4)]
HANDED = [
    [rank_at(part, stage, replica), rank_at(part, stage + 1, replica)]
    for replica in range(4)
    for stage in range(3)
    for part in range(4)
]
GROUPS = [*LAYERS, *GRADIENTS, *HANDED]
NAMES = {tuple(group): str(number) for number, group in enumerate(GROUPS, start=1)}


def pipelined(world: World, rank: int, step: int) -> list[Segment]:
    """Activations come from the stage before and go to the next one, gradients the other way; later stages do more."""
    part, stage, replica = place(rank)
    layer = NAMES[tuple(rank_at(each, stage, replica) for each in range(WIDTH))]
    gradients = NAMES[tuple(rank_at(part, stage, each) for each in range(REPLICAS))]
    before = [NAMES[rank_at(part, stage - 1, replica), rank]] if stage else []
    after = [NAMES[rank, rank_at(part, stage + 1, replica)]] if stage < STAGES - 1 else []

    def meet(groups: list[str]) -> list[Segment]:
        return [Collective(group=group, bytes=2000) for group in groups]

    def layers(ms: float) -> list[Segment]:
        return [Compute(ms * (1 + stage / 2) / 8), Collective(group=layer, bytes=5000)] * 2

    bucket = Collective(
        group=gradients, bytes=100_000 * (stage + 1), waits="later", model="DistributedDataParallel#0", bucket=0
    )
    return [
        data_loading(world),
        Zone("forward", "Net#0", (*meet(before), *layers(world.forward), *meet(after))),
        Zone("backward", "backward", (*meet(after), *layers(world.backward), *meet(before), bucket, Await())),
        optimizer(world),
        Collective("barrier", bytes=0, dtype=None),
    ]


JOB = World(ranks=64, groups=GROUPS, steps=10, windows=(), script=pipelined, seed=3)
STEPS: list[Literal["all"] | Collection[int]] = ["all", (2, 5, 8)]


@pytest.fixture(scope="module")
def healthy_ms() -> float:
    tables = simulate(JOB)
    assert judge(tables).verdict == "none"
    return step_ms(tables)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("rank", "kind"), [(37, "forward"), (0, "data_loading")])
def test_a_delay_is_named_and_not_those_that_hand_it_on(
    healthy_ms: float, rank: int, kind: str, steps: Literal["all"] | Collection[int]
) -> None:
    """Its neighbours wait for it, and the other replicas for them: when they reduce their gradients."""
    tables = simulate(replace(JOB, delays=[Delay(rank=rank, kind=kind, ms=10, steps=steps)]))
    (row,) = stragglers(inputs(tables))[0].ranks
    assert (row.rank, row.cause) == (rank, kind)
    assert row.delay == pytest.approx(10, rel=0.15)
    replica = [other for other in range(64) if place(other)[2] == place(rank)[2] and other != rank]
    assert row.via == replica
    assert row.imposed_wait == pytest.approx(10, rel=0.35)
    assert row.saved_if_fixed == pytest.approx(step_ms(tables) - healthy_ms, rel=0.15)


def test_what_is_hidden_in_the_pipeline_saves_nothing(healthy_ms: float) -> None:
    """The last stage waits for its first activations longer than its optimizer is late."""
    tables = simulate(replace(JOB, delays=[Delay(rank=63, kind="optimizer", ms=10)]))
    (row,) = stragglers(inputs(tables))[0].ranks
    assert (row.rank, row.cause, row.via) == (63, "optimizer", [])
    assert step_ms(tables) == pytest.approx(healthy_ms, rel=0.01)
    assert row.saved_if_fixed == pytest.approx(0, abs=0.1)


def plainly_reduced(world: World, rank: int, step: int) -> list[Segment]:
    """The same, but the script reduces gradients itself, all of one size: no bucket tells the stages apart."""

    def plain(segment: Segment) -> Segment:
        if isinstance(segment, Zone):
            return replace(segment, body=tuple(plain(each) for each in segment.body))
        if isinstance(segment, Collective) and segment.bucket is not None:
            return replace(segment, model=None, bucket=None, bytes=100_000, waits="zone")
        return segment

    return [plain(segment) for segment in pipelined(world, rank, step)]


PLAIN = replace(JOB, script=plainly_reduced)


def recorded(world: World, *, exchanged: bool) -> Tables:
    """A world's tables; `exchanged`: what stages hand on is sent point to point, which gloo's recorder leaves out."""
    tables = simulate(world)
    if not exchanged:
        return tables
    handed = [group.id for group in tables.groups if group.members in HANDED]
    return replace(tables, collectives=tables.collectives.filter(~pl.col("group").is_in(handed)))


@pytest.mark.parametrize("exchanged", [False, True])
def test_stages_are_no_peers_whatever_reduces_their_gradients(exchanged: bool) -> None:
    found = judge(recorded(PLAIN, exchanged=exchanged))
    assert (found.verdict, found.ranks) == ("none", [])


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize(("rank", "kind"), [(37, "forward"), (0, "data_loading"), (48, "optimizer")])
def test_a_delay_within_a_stage_is_named(
    exchanged: bool, rank: int, kind: str, steps: Literal["all"] | Collection[int]
) -> None:
    delay = Delay(rank=rank, kind=kind, ms=10, steps=steps)
    tables = recorded(replace(PLAIN, delays=[delay]), exchanged=exchanged)
    (row,) = stragglers(inputs(tables))[0].ranks
    assert (row.rank, row.cause) == (rank, delay.kind)
    assert row.delay == pytest.approx(10, rel=0.15)
    if exchanged:
        assert (row.imposed_wait, row.saved_if_fixed) == (None, None), "who waited for what was sent is not known"
    else:
        saves = step_ms(tables) - step_ms(simulate(PLAIN))
        assert row.saved_if_fixed == pytest.approx(saves, rel=0.15, abs=0.1)


@pytest.mark.parametrize("exchanged", [False, True])
def test_who_holds_up_nobody_may_do_other_work(exchanged: bool) -> None:
    found = judge(recorded(replace(PLAIN, delays=[Delay(rank=63, kind="optimizer", ms=10)]), exchanged=exchanged))
    assert (found.verdict, found.ranks) == ("undecided", [])
    assert found.why == (
        "rank 63 took longer than others that call the same collectives, and nobody waited: they may do other work, as "
        "stages of a pipeline"
    )


def small(replicas: int, first_ms: float = 30.0) -> World:
    """Two stages in some replicas, the first of which does three times as much; all add up a loss in the end."""
    ranks = 2 * replicas
    stages = [list(range(replicas)), list(range(replicas, ranks))]
    handed = [[rank, rank + replicas] for rank in range(replicas)]

    def stage_of(world: World, rank: int, step: int) -> list[Segment]:
        first, replica = rank < replicas, rank % replicas
        hand = Collective(group=str(3 + replica), bytes=2000)
        work = Compute(first_ms if first else first_ms / 3)
        return [
            data_loading(world),
            Zone("forward", "Stage", (work, hand) if first else (hand, work)),
            hand,
            *([Collective(group="1" if first else "2", bytes=100_000)] if replicas > 1 else []),
            optimizer(world),
            Collective(bytes=4),
        ]

    return World(ranks=ranks, groups=[*stages, *handed], steps=20, windows=(), buckets=(), script=stage_of, seed=7)


def without_handed(world: World) -> Tables:
    tables = simulate(world)
    handed = [group.id for group in tables.groups if group.name not in ("0", "1", "2")]
    return replace(tables, collectives=tables.collectives.filter(~pl.col("group").is_in(handed)))


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_two_stages_of_a_few_replicas(replicas: int) -> None:
    healthy = small(replicas)
    assert judge(without_handed(healthy)).verdict == "none"
    for rank in (0, 2 * replicas - 1):
        delay = Delay(rank=rank, kind="optimizer", ms=10)
        (row,) = judge(without_handed(replace(healthy, delays=[delay]))).ranks
        assert (row.rank, row.cause) == (rank, "optimizer")
        assert row.delay == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize("late", [[], [Delay(rank=0, kind="forward", ms=20)]])
def test_a_stage_of_one_rank_has_nobody_to_be_compared_with(late: list[Delay]) -> None:
    found = judge(without_handed(replace(small(1), delays=late)))
    assert (found.verdict, found.ranks) == ("undecided", [])
    assert found.why == (
        "ranks 0, 1 share no work with any other rank that the recordings show, as stages of a pipeline: there is "
        "nobody to compare with"
    )
