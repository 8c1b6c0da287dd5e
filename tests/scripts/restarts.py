"""Rank 1 dies in the first attempt, before any rank has connected to another; the second attempt trains to its end.

gloo itself often fails to connect anew after a connected rank died (refused connections), under plain torchrun too.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        train(nn.Linear(8, 2), steps=3)
        time.sleep(1)
        if os.environ["RANK"] == "1":
            raise SystemExit(1)
        time.sleep(600)
    dist.init_process_group("gloo")
    train(DistributedDataParallel(nn.Linear(8, 2)), steps=8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
