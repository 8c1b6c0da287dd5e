"""Trains through phases; in each of them other ranks are slow for another reason, or nobody.

torchrun --nproc-per-node 3 ... phases.py

A step takes 25 ms of sleep on every rank, so that ranks do not fight for cores. Rank 0 prints the phases, and every
rank what its plants really slept, by step.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import distprof

BASE_MS = 25.0  # of forward, for a batch of usual length
TOKENS = 100
WIDTH = 16


@dataclass(frozen=True)
class Plant:
    """Extra time of one rank, in every `each`-th step of its phase from `first` on."""

    rank: int
    kind: str
    ms: float
    each: int = 1
    first: int = 0

    def applies(self, rank: int, step: int) -> bool:
        return rank == self.rank and step % self.each == self.first


@dataclass(frozen=True)
class Phase:
    name: str
    plants: list[Plant] = field(default_factory=list)
    steps: int = 14


PHASES = [
    Phase("start", steps=4),
    Phase("healthy", steps=20),
    Phase("data_loading", [Plant(1, "data_loading", 60)]),
    Phase("forward", [Plant(0, "forward", 60)]),
    Phase("backward", [Plant(2, "backward", 60)]),
    Phase("optimizer", [Plant(1, "optimizer", 60)]),
    Phase("gc", [Plant(0, "gc", 60)]),
    Phase("zone", [Plant(2, "zone", 60)]),
    Phase("host", [Plant(1, "host", 60)]),
    Phase("uneven_work", [Plant(0, "tokens", 60)]),
    Phase("a third", [Plant(2, "data_loading", 12)], steps=20),
    Phase("now and then", [Plant(2, "zone", 60, each=4, first=2)], steps=20),
    Phase("two at once", [Plant(0, "data_loading", 60), Plant(2, "backward", 60)]),
    Phase("in turn", [Plant(rank, "host", 120, each=3, first=rank) for rank in range(3)], steps=20),
    Phase("healthy again", steps=20),
]
# What step n of the run is: its phase, and its number within that.
STEPS = [(phase, number) for phase in PHASES for number in range(phase.steps)]
slept: dict[int, float] = {}


def sleep(ms: float) -> float:
    """Sleep; returns how long it really took, in ms."""
    begin = time.perf_counter()
    time.sleep(ms / 1e3)
    return 1e3 * (time.perf_counter() - begin)


def plants(kind: str, step: int) -> Iterator[Plant]:
    phase, number = STEPS[step]
    return (plant for plant in phase.plants if plant.kind == kind and plant.applies(dist.get_rank(), number))


def slow(kind: str, step: int) -> None:
    """Sleep if that is planted here."""
    for plant in plants(kind, step):
        slept[step] = sleep(plant.ms)


class Sequences(Dataset[torch.Tensor]):
    """One sequence for each step; where more tokens are planted, a longer one."""

    def __len__(self) -> int:
        return len(STEPS)

    def __getitem__(self, step: int) -> torch.Tensor:
        slow("data_loading", step)
        more = sum(plant.ms for plant in plants("tokens", step))
        return torch.full((round(TOKENS * (1 + more / BASE_MS)), WIDTH), step / len(STEPS))


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, step: int) -> torch.Tensor:
        ctx.step = step
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        slow("backward", ctx.step)
        return gradients[0], None


class Garbage:
    """Two that hold each other, whose collection takes a while."""

    def __init__(self, step: int) -> None:
        self.step, self.itself = step, self

    def __del__(self) -> None:
        slow("gc", self.step)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.step = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        usual = sleep(BASE_MS)  # each token takes as long, and so
        if len(x) > TOKENS:
            slept[self.step] = sleep(usual * (len(x) / TOKENS - 1))
        slow("forward", self.step)
        with distprof.zone("augment"):
            slow("zone", self.step)
        if any(plants("gc", self.step)):
            Garbage(self.step)
            begin = time.perf_counter()
            gc.collect()
            slept[self.step] = 1e3 * (time.perf_counter() - begin)
        return self.back(SlowGradient.apply(self.front(x), self.step))  # type: ignore[no-any-return]


class Descent(torch.optim.SGD):
    steps = 0

    def step(self, closure: Any = None) -> Any:
        slow("optimizer", self.steps)
        self.steps += 1
        return super().step(closure)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = Descent(model.parameters(), lr=1e-3)
    gc.freeze()  # so that a collection takes what is planted
    for step, batch in enumerate(DataLoader(Sequences(), batch_size=None)):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        slow("host", step)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(json.dumps({"phases": [asdict(phase) for phase in PHASES]}), flush=True)
    print(json.dumps({"rank": dist.get_rank(), "slept": slept}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
