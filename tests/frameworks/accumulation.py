"""DDP whose optimizer steps after every fourth batch; the gradients of the other three are not reduced."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from common import Samples, loader, network, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    samples = Samples(options(), MICRO_STEPS)
    model = DistributedDataParallel(network(), bucket_cap_mb=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(loader(samples), 1):
        is_last = number % MICRO_STEPS == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            (nn.functional.mse_loss(model(x), y) / MICRO_STEPS).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    say(model, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
