"""Trains on and on, with a loader's worker; says when it is well under way."""

from __future__ import annotations

import os
import time

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
    begin, told = time.monotonic(), False
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if not told and time.monotonic() - begin > 2:
                told = True
                print(f"rank {dist.get_rank()} is under way, pid {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
