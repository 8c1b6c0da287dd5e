"""Trains as jobs on clusters do: to its end, on and on until somebody ends it, or until one of its ranks dies.

A step costs little CPU, so that jobs side by side do not slow each other down; it says when it is under way.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--endless-until-restart", action="store_true", help="a requeued job comes to its end")
    parser.add_argument("--killed-at", type=int, help="the last rank dies at this step")
    parser.add_argument("--slow-rank", type=int)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    endless = arguments.endless_until_restart and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    step = 0
    while endless or step < arguments.steps:
        if step == arguments.killed_at and rank == world_size - 1:
            time.sleep(1.5)  # a second of zones is lost
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        if rank == arguments.slow_rank:
            time.sleep(0.06)
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        step += 1
        if step == 10:
            print(json.dumps({"rank": rank, "under_way": socket.gethostname()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
