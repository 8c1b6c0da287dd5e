"""Trains for some seconds with a slow backward in one rank, and prints readings of the rank's own clock beside the
kernel's, which libfaketime does not reach: the truth about its clock, since all ranks share one kernel.

torchrun ... clocks.py SECONDS SLOW_RANK
"""

from __future__ import annotations

import ctypes
import json
import platform
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}[platform.machine()]
_LIBC = ctypes.PyDLL(None)  # keeps the interpreter's lock: nothing comes between the readings
_READINGS = 50
_MS = 60


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def kernel_ns() -> int:
    now = Timespec()
    assert _LIBC.syscall(_CLOCK_GETTIME, 0, ctypes.byref(now)) == 0
    return int(now.seconds) * 1_000_000_000 + int(now.nanoseconds)


def reading() -> tuple[int, int]:
    """(own, kernel) Unix ns at one moment, of several the closest."""
    found = []
    for _ in range(_READINGS):
        before = time.time_ns()
        kernel = kernel_ns()
        found.append((time.time_ns() - before, before, kernel))
    width, before, kernel = min(found)
    return before + width // 2, kernel


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(_MS / 1e3)
        return gradients[0]


class Network(nn.Module):
    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.slow = slow
        self.front, self.back = nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        return self.back(Slow.apply(x) if self.slow else x)  # type: ignore[no-any-return]


def main() -> None:
    seconds, slow_rank = float(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DistributedDataParallel(Network(rank == slow_rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    readings = [reading()]
    for _ in range(int(seconds * 1e3 / _MS)):
        optimizer.zero_grad()
        model(torch.randn(32, 256)).square().mean().backward()
        optimizer.step()
    readings.append(reading())
    print(json.dumps({"rank": rank, "readings": readings}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
