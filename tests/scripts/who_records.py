"""Has every kind of process that inherits the environment of a rank, and trains a little."""

from __future__ import annotations

import builtins
import json
import multiprocessing
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

TRAIN = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.ones(8, 2), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
"""


class Ones(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4)


def train_in_child(_: int = 0) -> None:
    exec(TRAIN, {})


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for method in ("fork", "spawn", "forkserver"):
        for x in DataLoader(Ones(), batch_size=4, num_workers=1, multiprocessing_context=method):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            steps += 1
    child = os.fork()
    if child == 0:
        train_in_child()
        os._exit(0)
    os.waitpid(child, 0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(train_in_child, [0])
    subprocess.run([sys.executable, "-c", TRAIN], check=True)
    row = {"rank": dist.get_rank(), "pid": os.getpid(), "steps": steps}
    row["users_sitecustomize_ran"] = getattr(builtins, "users_sitecustomize_ran", False)
    print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
