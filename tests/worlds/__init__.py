"""The one generator of synthetic worlds: a distributed training is described, played, and recorded.

    world = World(ranks=4, steps=20, delays=[Delay(rank=2, kind="data_loading", ms=60)])
    tables = simulate(world)        what `load` gives, exactly
    write(world, path)              the run directory that such a training leaves

Describing is `world`, playing is `play`; `recorded` and `files` turn what happened into tables and into files.
"""

from tests.worlds.busy import on_a_busy_machine
from tests.worlds.files import write
from tests.worlds.recorded import simulate
from tests.worlds.world import (
    Await,
    Clock,
    Collective,
    Compute,
    Delay,
    Idle,
    Probes,
    Segment,
    World,
    Zone,
    data_loading,
    ddp_step,
    forward,
    optimizer,
)

__all__ = [
    "Await",
    "Clock",
    "Collective",
    "Compute",
    "Delay",
    "Idle",
    "Probes",
    "Segment",
    "World",
    "Zone",
    "data_loading",
    "ddp_step",
    "forward",
    "on_a_busy_machine",
    "optimizer",
    "simulate",
    "write",
]
