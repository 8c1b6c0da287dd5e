"""Healthy ranks on a busy machine: other programs take their cores away, for a moment or for some steps."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from tests.worlds.world import Delay, Segment, World, ddp_step

_PLACES = ("data_loading", "forward", "backward", "optimizer")
_LENGTH = 3.0  # steps: the mean length of a burst
_SLOWEST, _SLOWER = 2.5, 1.3  # times the time of a rank that has its core to itself
_STEADY = 0.5  # of bursts; in the others it differs from step to step how much others want the core


def on_a_busy_machine(world: World, rank: int, step: int) -> list[Segment]:
    """Now and then the machine takes a rank's core away, wherever the rank is, and for as long as others want it.

    Bursts are longer: for some steps the rank shares its core, and all that it does takes longer by one factor, which
    depends on how much of the step the others want.
    """
    factor = _bursts(world.seed, world.bursts, world.steps, rank).get(step, 1.0)
    slower = {name: factor * (getattr(world, name) or 0.0) for name in (*_PLACES, "host")}
    program = list(ddp_step(replace(world, **slower), rank, step))
    draw = random.Random(f"{world.seed} accidents {rank} {step}")
    if draw.random() > world.accidents:
        return program
    places = {kind: getattr(world, kind) or 0.0 for kind in _PLACES}
    [kind] = draw.choices([*places, "host"], [*places.values(), 1.0])
    accident = Delay(rank=rank, kind=kind, ms=35 * draw.lognormvariate(0, 0.35), bucket=draw.randrange(3))
    return list(accident.plant(program))


@cache
def _bursts(seed: int, often: float, steps: int, rank: int) -> Mapping[int, float]:
    """By what factor the steps take longer that a rank's bursts fall into, wholly or in part."""
    draw = random.Random(f"{seed} bursts {rank}")
    factors: dict[int, float] = {}
    at = draw.expovariate(often) if often else float(steps)
    while at < steps:
        until = at + draw.expovariate(1 / _LENGTH)
        factor, steady = draw.uniform(_SLOWER, _SLOWEST), draw.random() < _STEADY
        for step in range(int(at), min(steps, int(until) + 1)):
            covered = min(until, step + 1) - max(at, step)
            wanted = covered if steady else covered * draw.random()
            factors[step] = max(factors.get(step, 1.0), 1.0 + (factor - 1.0) * wanted)
        at = until + draw.expovariate(often)
    return factors
