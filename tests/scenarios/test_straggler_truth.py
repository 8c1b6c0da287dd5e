"""Synthetic trainings with planted stragglers, each beside its healthy twin: the same world without the delay.

The twin also tells what fixing the straggler would save. A part of the worlds is played by `make test`, all of them by
`make soak`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import polars as pl
import pytest

from distprof.analyze.stragglers import stragglers
from distprof.result import Straggler, Stragglers
from distprof.trace.tables import Tables
from tests.conftest import Tell
from tests.unit.tables import inputs
from tests.worlds import Compute, Delay, Segment, World, Zone, ddp_step, forward, on_a_busy_machine, simulate

STEPS = 17
STEP_MS = 35.0  # what a step takes, give or take a millisecond
SMALL_MS = 0.01 * STEP_MS  # what two plays of a world may differ by for other reasons
# What is planted -> the cause and the zone to be named.
CAUSES = {
    "data_loading": ("data_loading", "DataLoader#0"),
    "forward": ("forward", "DistributedDataParallel#0"),
    "backward": ("backward", "backward"),
    "optimizer": ("optimizer", "SGD#0"),
    "gc": ("gc", "generation 2"),
    "host": ("host", None),
    "zone:augment": ("zone", "augment"),
}
SHARES = (0.1, 0.3, 1.0)
AT_TIMES = (3, 7, 8, 13)
FOR_A_WHILE = (6, 7, 8, 9)
PLACES = [(size, rank) for size in range(2, 9) for rank in sorted({0, size // 2, size - 1})]


def with_a_zone(world: World, rank: int, step: int) -> list[Segment]:
    """A DDP step in whose forward the user has a zone of his own; with `World.elements` it takes as long as these."""
    scale = 1.0 if world.elements is None else world.elements(rank, step) / 1000
    scaled = replace(world, forward=world.forward * scale, backward=world.backward * scale)
    program = list(ddp_step(scaled, rank, step))
    at = program.index(forward(scaled, step))
    inside = forward(scaled, step)
    program[at] = replace(inside, body=(*inside.body, Zone("zone", "augment", (Compute(1.0),))))
    return program


def judge(of: Tables) -> Stragglers:
    return stragglers(inputs(of))[0]


def step_ms(of: Tables) -> float:
    steady = of.steps.filter(pl.col("excluded").is_null())
    return float((steady["end"] - steady["start"]).mean()) / 1e6  # type: ignore[arg-type]


def check(found: Straggler, planted: Delay, *, saves: float, noise: float = 0.0) -> None:
    """The amount is right to 15%, or to a quarter of the stated noise: three noisy steps tell it no better."""
    cause, zone = CAUSES[planted.kind]
    pattern = "persistent" if planted.steps == "all" else "intermittent"
    assert (found.rank, found.cause, found.zone, found.pattern) == (planted.rank, cause, zone, pattern)
    assert found.delay == pytest.approx(planted.ms, rel=0.15, abs=noise / 4)
    assert found.saved_if_fixed == pytest.approx(saves, rel=0.15, abs=SMALL_MS)


def some(cases: Sequence[object], every: int) -> list[object]:
    """All cases, of which `make test` takes every so-manieth."""
    order = random.Random(1).sample(range(len(cases)), len(cases))
    marks = [[] if place % every == 0 else [pytest.mark.soak] for place in order]
    return [pytest.param(case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


@pytest.mark.parametrize("case", some(list(product(CAUSES, PLACES, SHARES, ["all", AT_TIMES])), 16))
def test_a_planted_delay_and_its_healthy_twin(case: tuple[str, tuple[int, int], float, str]) -> None:
    kind, (size, rank), share, steps = case
    seed = 1000 * round(10 * share) + 100 * list(CAUSES).index(kind) + 10 * size + rank
    twin = World(
        ranks=size, steps=STEPS, windows=(), seed=seed, script=with_a_zone, broadcast_buffers=bool(seed % 3 == 0)
    )
    planted = Delay(rank=rank, kind=kind, ms=share * STEP_MS, bucket=seed % 3, steps=steps)  # type: ignore[arg-type]
    with_it, without = simulate(replace(twin, delays=[planted])), simulate(twin)
    found = judge(with_it)
    assert found.verdict == "straggler"
    (row,) = found.ranks
    check(row, planted, saves=step_ms(with_it) - step_ms(without))
    assert judge(without).verdict == "none"
    if not twin.broadcast_buffers:
        assert row.imposed_wait == pytest.approx(planted.ms, rel=0.3)
        if steps == "all":
            assert row.last_arrivals >= 0.9 * row.of_collectives > 0


# Of two ranks a tenth of a step is hardly more than the noise of a single one.
IN_A_ROW = [case for case in product(CAUSES, [2, 3, 4, 8], SHARES, [4, 10]) if case[1] > 2 or case[2] > 0.1]


@pytest.mark.parametrize("case", some(IN_A_ROW, 16))
def test_a_planted_delay_in_steps_in_a_row(case: tuple[str, int, float, int]) -> None:
    """They may have happened once, but they are alike and in one place, as what the machine does is not."""
    kind, size, share, count = case
    seed = 1000 * round(10 * share) + 100 * list(CAUSES).index(kind) + 10 * size + count
    steps = range(count, 2 * count)
    planted = Delay(rank=size - 1, kind=kind, ms=share * STEP_MS, bucket=seed % 3, steps=steps)
    twin = World(ranks=size, steps=4 * count, windows=(), seed=seed, script=with_a_zone)
    with_it = simulate(replace(twin, delays=[planted]))
    (row,) = judge(with_it).ranks
    check(row, planted, saves=step_ms(with_it) - step_ms(simulate(twin)))
    assert len(row.steps) == count and row.steps[-1] - row.steps[0] == count - 1


def test_a_stretch_that_may_be_an_accident_is_told_and_nobody_named() -> None:
    lengths = dict(enumerate([30.0, 12.0, 55.0, 20.0, 41.0, 33.0, 18.0], 11))
    delays = [Delay(rank=2, kind="forward", ms=ms, steps=[step]) for step, ms in lengths.items()]
    found = judge(simulate(World(steps=40, windows=(), delays=delays)))
    assert (found.verdict, found.ranks) == ("none", [])
    assert found.why.endswith("; rank 2 took longer in several steps in a row, which may have happened once")


def test_a_rank_that_is_slower_in_all_it_does_is_named_as_that() -> None:
    def slower(world: World, rank: int, step: int) -> list[Segment]:
        factor = 1.5 if rank == 1 else 1.0
        names = ("data_loading", "forward", "backward", "optimizer", "host")
        return ddp_step(replace(world, **{name: factor * getattr(world, name) for name in names}), rank, step)

    found = judge(simulate(World(steps=STEPS, windows=(), script=slower)))
    assert [(row.rank, row.cause, row.pattern) for row in found.ranks] == [(1, "backward", "persistent")]
    assert found.why.endswith("; rank 1 took longer in all places in proportion, as on a slower or shared processor")


@pytest.mark.parametrize("case", some(list(product(PLACES, [1.2, 1.5, 2.0], ["all", AT_TIMES, FOR_A_WHILE])), 18))
def test_more_work_is_told_from_slower_work(case: tuple[tuple[int, int], float, str]) -> None:
    (size, rank), more, steps = case

    def uneven(of: int, step: int) -> int:
        return round(1000 * more) if of == rank and (steps == "all" or step in steps) else 1000

    world = World(ranks=size, steps=STEPS, windows=(), seed=size, script=with_a_zone, elements=lambda *_: 1000)
    (row,) = judge(simulate(replace(world, elements=uneven))).ranks
    assert (row.rank, row.cause) == (rank, "uneven_work")
    assert row.delay == pytest.approx((more - 1) * (world.forward + world.backward), rel=0.15)
    (row,) = judge(simulate(replace(world, delays=[Delay(rank=rank, kind="forward", ms=10)]))).ranks
    assert (row.rank, row.cause) == (rank, "forward")


@dataclass(frozen=True)
class Pair:
    """Two culprits in a world of three ranks or more: of two ranks only the later one can be seen. Of three they are
    late for different reasons: what two of three do is usual. And the third alone tells how often accidents happen, so
    that it takes four late steps, in which the other one is not late, to tell them from these."""

    seed: int

    @property
    def world(self) -> World:
        draw = random.Random(self.seed)
        size = draw.choice([3, 4, 5, 8])
        kinds = [kind for kind in CAUSES if kind != "zone:augment"]
        chosen = draw.sample(kinds, 2) if size == 3 else draw.choices(kinds, k=2)
        plants = [
            Delay(
                rank=rank,
                kind=kind,
                ms=draw.choice(SHARES) * STEP_MS,
                steps="all"
                if draw.random() < 0.5
                else sorted(draw.sample(range(1, STEPS - 1), draw.choice([5 if size == 3 else 3, 5]))),
                bucket=draw.randrange(3),
            )
            for rank, kind in zip(draw.sample(range(size), 2), chosen, strict=True)
        ]
        buffers = draw.random() < 0.3
        return World(ranks=size, steps=STEPS, windows=(), seed=self.seed, delays=plants, broadcast_buffers=buffers)


@pytest.mark.parametrize("pair", some([Pair(seed) for seed in range(1000, 1400)], 16))
def test_two_culprits_are_not_credited_with_the_same_saving(pair: Pair) -> None:
    world = pair.world
    of = simulate(world)
    found = judge(of)
    assert found.noise is not None and found.noise_of_a_step is not None
    rows = {row.rank: row for row in found.ranks}
    seen = []
    for planted in world.delays:
        others = [delay for delay in world.delays if delay is not planted]
        noise = found.noise if planted.steps == "all" else found.noise_of_a_step
        # Of three ranks one step that the noise hides may be one too many of a few.
        margin = 1.3 if world.ranks == 3 and planted.steps != "all" else 1.05
        if planted.ms <= margin * noise:
            rows.pop(planted.rank, None)
        else:
            saves = step_ms(of) - step_ms(simulate(replace(world, delays=others)))
            check(rows.pop(planted.rank), planted, saves=saves, noise=noise)
            seen.append(planted)
    assert not rows
    if len(seen) == 2:
        saves = step_ms(of) - step_ms(simulate(replace(world, delays=())))
        assert found.saved_if_all_fixed == pytest.approx(saves, rel=0.15, abs=SMALL_MS)


def with_common_noise(world: World, rank: int, step: int) -> list[Segment]:
    """In each step all ranks are slower or faster by one factor."""
    factor = random.Random(f"{world.seed} {step}").lognormvariate(0, 0.5)
    slower = {name: factor * getattr(world, name) for name in ("data_loading", "forward", "backward")}
    return ddp_step(replace(world, **slower), rank, step)


def healthy(seed: int) -> World:
    draw = random.Random(seed)
    return World(
        ranks=draw.choice([2, 3, 4, 5, 8]),
        steps=draw.choice([5, 8, 12, 20, 40]),
        seed=seed,
        windows=(),
        jitter=draw.choice([0.01, 0.05, 0.15, 0.4]),
        buckets=draw.choice([(2_000_000, 4_000_000, 1_000_000), (7_000_000,), (500_000,) * 8]),
        broadcast_buffers=draw.random() < 0.5,
        unused_parameters=draw.random() < 0.3,
        micro_steps=draw.choice([1, 1, 3]),
        source=draw.choice(["optimizer", "user"]),
        data_loading=draw.choice([0.1, 2.0, 20.0]),
        script=with_common_noise if draw.random() < 0.4 else ddp_step,
    )


def busy(seed: int) -> World:
    draw = random.Random(seed)
    return replace(
        healthy(seed),
        ranks=draw.choice([2, 3, 4, 4, 8]),
        steps=draw.choice([12, 25, 40]),
        buckets=(2_000_000, 4_000_000, 1_000_000),
        micro_steps=1,
        jitter=draw.choice([0.05, 0.15]),
        accidents=draw.choice([0.02, 0.05, 0.1]),
        script=on_a_busy_machine,
    )


def busy_for_some_steps(seed: int) -> World:
    """Another program shares a rank's core for three steps on average, and in some worlds there are accidents, too."""
    draw = random.Random(seed)
    return replace(
        busy(seed),
        accidents=draw.choice([0.0, 0.02]),
        bursts=draw.choice([0.02, 0.04, 0.08]),
        steps=draw.choice([25, 40]),
    )


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(200, 2000), marks=pytest.mark.soak)])
def test_nobody_is_named_in_healthy_worlds(seeds: range, tell: Tell) -> None:
    found = {seed: judge(simulate(healthy(seed))) for seed in seeds}
    named = {seed: section for seed, section in found.items() if section.verdict == "straggler"}
    undecided = [section.why for section in found.values() if section.verdict == "undecided"]
    tell(f"healthy: worlds {len(seeds)}, named {len(named)}, undecided {len(undecided)}")
    assert len(named) <= len(seeds) // 1000, named
    assert len(undecided) <= 0.03 * len(seeds), "they shake so much that a few steps tell nothing"
    assert all("steps" in why for why in undecided)


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 1000), marks=pytest.mark.soak)])
def test_hardly_anybody_is_named_for_what_a_busy_machine_does(seeds: range, tell: Tell) -> None:
    """A few accidents on one rank alone may look like one reason by chance."""
    named = {seed: judge(simulate(busy(seed))).ranks for seed in seeds}
    wrong = {seed: rows for seed, rows in named.items() if rows}
    tell(f"busy machine: worlds {len(seeds)}, named {len(wrong)}")
    assert len(wrong) <= 0.02 * len(seeds), wrong


@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 1000), marks=pytest.mark.soak)])
def test_hardly_anybody_is_named_for_a_busy_machines_bursts(seeds: range, tell: Tell) -> None:
    """While other programs want its core, all that a rank does takes longer, and not what it does in one place."""
    found = {seed: judge(simulate(busy_for_some_steps(seed))) for seed in seeds}
    wrong = {seed: section.ranks for seed, section in found.items() if section.ranks}
    undecided = sum("as on a core that other programs use" in section.why for section in found.values())
    tell(f"bursts: worlds {len(seeds)}, named {len(wrong)}, undecided {undecided}")
    assert len(wrong) <= 0.015 * len(seeds), wrong
    assert undecided
