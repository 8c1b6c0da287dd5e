"""Trains a network with all that could differ (buffers, several buckets, a loader) and prints a checksum of it."""

from __future__ import annotations

import hashlib
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64)),
        bucket_cap_mb=0.02,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    loader = DataLoader(TensorDataset(torch.randn(320, 64)), batch_size=16, shuffle=True)
    for _ in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print(json.dumps({"rank": rank, "sha256": digest.hexdigest(), "random": torch.rand(1).item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
