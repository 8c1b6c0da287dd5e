"""Trains small networks in every way that wraps gradients differently, and prints a checksum of each one's parameters.

torchrun ... parameters.py plain static_graph ...
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import distprof

STEPS = 24


class Network(nn.Module):
    """Has buffers, dropout, several buckets, and a branch that not every rank takes in every step."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1))
        self.left = nn.Linear(128, 64)
        self.right = nn.Linear(128, 64)
        self.branches = branches
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        self.step += 1
        if self.branches and (self.step + dist.get_rank()) % 2:
            return self.left(x)  # type: ignore[no-any-return]
        return self.left(x) + self.right(x)  # type: ignore[no-any-return]


def ddp(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Network(bool(options.get("find_unused_parameters"))), bucket_cap_mb=0.02, **options)


def hooked() -> DistributedDataParallel:
    model = ddp()
    model.register_comm_hook(None, fp16_compress_hook)
    return model


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[no-any-return]


def compiled() -> nn.Module:
    # The optimizer of compiled DDP wants a first bucket that is not larger than the others.
    return torch.compile(DistributedDataParallel(Network(branches=False)), backend="aot_eager")  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[], nn.Module]] = {
    "plain": ddp,
    "static_graph": lambda: ddp(static_graph=True),
    "find_unused": lambda: ddp(find_unused_parameters=True),
    "bucket_view": lambda: ddp(gradient_as_bucket_view=True),
    "no_sync": ddp,
    "comm_hook": hooked,
    "fsdp2": sharded,
    "compile": compiled,
}


def train(way: str) -> str:
    torch.manual_seed(0)
    model = WAYS[way]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    loader = DataLoader(TensorDataset(torch.randn(16 * STEPS, 64)), batch_size=16, shuffle=True)
    for number, (x,) in enumerate(loader):
        accumulates = way == "no_sync" and number % 2 == 0
        with model.no_sync() if accumulates else contextlib.nullcontext():  # type: ignore[operator]
            model(x).square().mean().backward()
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(local.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    row: dict[str, Any] = {"rank": dist.get_rank()}
    for way in sys.argv[1:]:
        with distprof.zone(way):
            row[way] = train(way)
    row["random"] = torch.rand(1).item()
    print(json.dumps(row), flush=True)
    gc.collect()  # a model that outlives its process group aborts the process at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
