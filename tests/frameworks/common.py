"""What the trainings of this folder share: options, samples with a planted delay, and what a rank says at its end.

torchrun --nproc-per-node 2 ... SCRIPT.py [--steps 20] [--slow RANK MS]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 16
WIDTH = 512


@dataclass(frozen=True)
class Options:
    """How many steps are trained, and which rank's samples come slowly: by so many ms in each step."""

    steps: int
    slow_rank: int
    slow_ms: int


def options() -> Options:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slow", type=int, nargs=2, metavar=("RANK", "MS"), default=(-1, 0))
    given = parser.parse_args()
    return Options(given.steps, *given.slow)


class Planted:
    """Sleeps at the first sample of each batch, where a delay is planted on this rank.

    Attributes:
        slept_ms: how long each sleep really took.
    """

    def __init__(self, of: Options, micro_steps: int = 1) -> None:
        """`micro_steps`: batches that this rank reads in a step."""
        self._seconds = of.slow_ms / 1e3 / micro_steps if of.slow_rank == RANK else 0.0
        self._micro_steps = micro_steps
        self._samples = 0
        self.slept_ms: list[float] = []

    def sample(self) -> None:
        """A sample is read."""
        if self._samples % BATCH == 0:
            begin = time.perf_counter()
            if self._seconds:
                time.sleep(self._seconds)
            self.slept_ms.append(1e3 * (time.perf_counter() - begin))
        self._samples += 1

    def by_step(self) -> list[float]:
        """What was slept in each step, in ms."""
        starts = range(0, len(self.slept_ms), self._micro_steps)
        return [sum(self.slept_ms[start : start + self._micro_steps]) for start in starts]


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Vectors, and the vectors that a network is to make of them: as many as all ranks together read in all steps."""

    def __init__(self, of: Options, micro_steps: int = 1) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(of.steps * micro_steps * BATCH * WORLD_SIZE, WIDTH, generator=generator)
        self.planted = Planted(of, micro_steps)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.planted.sample()
        return self.x[index], self.x[index].flip(0)


def loader(samples: Samples) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of the samples, in batches."""
    return DataLoader(samples, BATCH, sampler=DistributedSampler(samples, WORLD_SIZE, RANK))


def network() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def say(model: nn.Module, planted: Planted, package: str = "torch") -> None:
    """Print a checksum of this rank's parameters and buffers, what it slept in each step, and what it trained with."""
    row = {
        "rank": RANK,
        "sha256": _checksum(model.state_dict().values()),
        "slept_ms": planted.by_step(),
        "package": f"{package} {importlib.metadata.version(package)}",
    }
    print(json.dumps(row), flush=True)


def _checksum(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        digest.update(local.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
