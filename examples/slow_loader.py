"""Four ranks train a small network; one rank's data comes slowly, and the others wait for it.

The slow rank reads its samples from a disk that is slow (a sleep stands for it). Every rank then takes equally
long for a step, since the gradient all-reduce holds the others until the slow one arrives: step times show
nothing. `distprof launch --nproc-per-node 4 examples/slow_loader.py` says which rank, why and how much.

With `--healthy` no rank is slow. At the end each rank says what it really slept in each step, since a sleep of
40 ms takes longer than that on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Random images of ten classes; reading one may take a while."""

    def __init__(self, samples: int, read_ms: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(samples, 1, 16, 16, generator=generator)
        self.labels = torch.randint(0, 10, (samples,), generator=generator)
        self.read_ms = read_ms
        self.slept: list[float] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.read_ms:
            begin = time.perf_counter()
            time.sleep(self.read_ms / 1e3)
            self.slept.append(time.perf_counter() - begin)
        return self.images[index], int(self.labels[index])


def network() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", action="store_true", help="no rank is slow")
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--read-ms", type=float, default=10.0, help="how long the slow rank reads each sample")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    slow = rank == arguments.slow_rank and not arguments.healthy
    data = Digits(arguments.steps * arguments.batch_size * world_size, arguments.read_ms if slow else 0.0)
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=DistributedSampler(data))
    model = DistributedDataParallel(network(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    batch = arguments.batch_size
    slept = [1e3 * sum(data.slept[i : i + batch]) for i in range(0, len(data.slept), batch)]
    print(json.dumps({"rank": rank, "slept_ms": slept}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
