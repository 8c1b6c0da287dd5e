"""Trains a small network step by step, does to itself what it is told, and prints a checksum of its parameters.

torchrun ... steps.py [--steps 40] [--pause-ms 20] [--hang RANK:STEP] [--write STEP:FILE:TEXT]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="each step sleeps so long in forward")
    parser.add_argument("--hang", default="", help="this rank sleeps in this step and never wakes")
    parser.add_argument("--write", default="", help="before this step rank 0 writes this file")
    arguments = parser.parse_args()
    rank_that_hangs, _, hangs_at = arguments.hang.partition(":")
    writes_at, _, what = arguments.write.partition(":")
    file, _, text = what.partition(":")

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.monotonic()
    for step in range(arguments.steps):
        if rank == 0 and writes_at == str(step):
            Path(f"{file}.new").write_text(text)
            Path(f"{file}.new").replace(file)  # who reads it meanwhile sees the old text or the new one
        if (rank_that_hangs, hangs_at) == (str(rank), str(step)):
            print(f"rank {rank} hangs, pid {os.getpid()}", flush=True)
            while True:
                time.sleep(3600)
        optimizer.zero_grad()
        out = model(torch.randn(16, 64))
        select.select([], [], [], arguments.pause_ms / 1e3)  # time.sleep fails under libfaketime
        out.square().mean().backward()
        optimizer.step()
        if step == 0:
            print(f"rank {rank} is under way, pid {os.getpid()}", flush=True)
    took = time.monotonic() - began
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
    print(json.dumps({"rank": rank, "parameters": digest.hexdigest(), "trained_s": took}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
