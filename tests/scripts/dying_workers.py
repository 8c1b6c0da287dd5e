"""Trains while one rank's data workers are killed one after another, and prints what came of it.

A worker dies in place of fetching every fifth batch, when the training waits for that batch: so the same steps are
trained each time. With --restarts the script makes a new iterator and goes on with the batch that was lost.

torchrun ... dying_workers.py RANK [--restarts]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 30
EVERY = 5


class Deadly(Dataset[torch.Tensor]):
    """Samples, some of which kill who fetches them for the first time."""

    def __init__(self, *, deadly: bool) -> None:
        self.deadly = deadly
        self.awaited = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.died = torch.zeros(STEPS, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.deadly and index % EVERY == EVERY - 1 and not self.died[index]:
            while int(self.awaited) < index:
                time.sleep(0.001)
            time.sleep(0.05)  # the training is in its loader by now
            self.died[index] = True
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(64, generator=torch.Generator().manual_seed(index))


def batches(data: Deadly, *, restarts: bool) -> Iterator[torch.Tensor]:
    """Each sample once."""
    done = 0
    while done < STEPS:
        loader = iter(DataLoader(data, batch_size=1, sampler=range(done, STEPS), num_workers=2))
        try:
            while done < STEPS:
                data.awaited[0] = done
                batch = next(loader)
                done += 1
                yield batch
        except RuntimeError as error:
            if not restarts or "DataLoader worker" not in str(error):
                raise
            print(json.dumps({"rank": dist.get_rank(), "lost": done}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("--restarts", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    try:
        for x in batches(Deadly(deadly=rank == arguments.rank), restarts=arguments.restarts):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
    finally:
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
        print(json.dumps({"rank": rank, "steps": steps, "parameters": digest.hexdigest()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
