"""Two ranks train a deep and narrow network whose gradients are reduced in many tiny buckets.

Each all-reduce costs its latency, however few bytes it carries, and DDP waits for the last one at the end of
backward. Nobody is slow, so nobody is named: what the report shows is communication that nothing hides, bucket by
bucket, and the size that would fit. `distprof launch --nproc-per-node 2 examples/small_buckets.py`

With `--bucket-cap-mb 25`, torch's default, all gradients fit into one bucket.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network(layers: int) -> nn.Module:
    """Many narrow layers behind a wide one, so that buckets are of very different sizes."""
    narrow = [part for _ in range(layers) for part in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 64), *narrow, nn.Linear(64, 10))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket-cap-mb", type=float, default=0.01)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(network(arguments.layers), bucket_cap_mb=arguments.bucket_cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(arguments.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
