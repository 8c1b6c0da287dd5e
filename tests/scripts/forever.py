"""Trains on and on, with a loader's worker; says when it is well under way."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8, num_workers=1, persistent_workers=True)
    steps = 0
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps == 30:
                print(f"rank {dist.get_rank()} is under way, pid {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
