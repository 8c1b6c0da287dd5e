"""FSDP2: each layer's parameters are sharded over the ranks by `fully_shard`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import WORLD_SIZE, Samples, loader, network, options, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    samples = Samples(options())
    model = network()
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader(samples):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    say(model, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
