"""`torch.compile` of a DDP model."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Samples, loader, network, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    samples = Samples(options())
    distributed = DistributedDataParallel(network(), bucket_cap_mb=2)
    model = torch.compile(distributed)
    optimizer = torch.optim.Adam(distributed.parameters(), lr=1e-3)
    for x, y in loader(samples):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    say(distributed, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
