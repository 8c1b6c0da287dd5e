"""64 ranks train a pipeline of tensor-parallel stages in several replicas; one of them is late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import pytest

from distprof.analyze.stragglers import stragglers
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
