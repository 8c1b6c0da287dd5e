"""DDP fed from an iterable dataset, which shards itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from common import BATCH, RANK, WORLD_SIZE, Samples, network, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for index in range(RANK, len(self.samples), WORLD_SIZE):
            yield self.samples[index]


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    samples = Samples(options())
    model = DistributedDataParallel(network(), bucket_cap_mb=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in DataLoader(Stream(samples), BATCH):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    say(model, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
