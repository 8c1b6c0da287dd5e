"""Four ranks train a small network; in one of them backward is slow, and the others wait for it.

Neither step times nor communication times find this rank: all steps take equally long, and the rank that is
late has the least communication. Its backward is even the shortest of all, since the others' backward
contains the wait for it. `distprof launch --nproc-per-node 4 examples/slow_backward.py` names it.

With `--healthy` no rank is slow. At the end each rank says what it really slept in each step.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SlowGradient(torch.autograd.Function):
    """Hands its input through; its backward takes a while, as a layer that falls back to a slow kernel does."""

    slept: ClassVar[list[float]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
        ctx.ms = ms
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        begin = time.perf_counter()
        time.sleep(ctx.ms / 1e3)
        SlowGradient.slept.append(1e3 * (time.perf_counter() - begin))
        return gradients[0], None


class Network(nn.Module):
    """A small multi-layer perceptron with one odd layer in its middle."""

    def __init__(self, slow_ms: float) -> None:
        super().__init__()
        self.slow_ms = slow_ms
        self.front = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.back = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        if self.slow_ms:
            x = SlowGradient.apply(x, self.slow_ms)
        return self.back(x)  # type: ignore[no-any-return]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", action="store_true", help="no rank is slow")
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    slow = rank == arguments.slow_rank and not arguments.healthy
    model = DistributedDataParallel(Network(arguments.slow_ms if slow else 0.0), bucket_cap_mb=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for _ in range(arguments.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 256)).square().mean()
        loss.backward()
        optimizer.step()

    print(json.dumps({"rank": rank, "slept_ms": SlowGradient.slept}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
