"""Trains with a planted loader: decoding a batch sleeps, and so does the step, so that both cost what they should on a
busy machine, too. With workers the one hides behind the other.

torchrun ... planted.py [--decode-ms 60] [--work-ms 60] [--layers 2] [--width 16] [--bucket-mb 25]
"""

from __future__ import annotations

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset[torch.Tensor]):
    def __init__(self, width: int, decode_s: float, noisy: bool) -> None:
        self.width, self.decode_s, self.noisy = width, decode_s, noisy

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.decode_s:
            time.sleep(self.decode_s)
        generator = torch.Generator().manual_seed(index)
        noise = random.random() if self.noisy else 0.0  # workers draw other numbers than the training's process
        return torch.randn(self.width, generator=generator) + noise


def train(
    *,
    decode_ms: float,
    work_ms: float,
    layers: int = 2,
    width: int = 16,
    noisy: bool = False,
    breaks: bool = False,
    bucket_mb: float | None = None,
) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    loader = DataLoader(Decoded(width, decode_ms / 1e3, noisy), batch_size=1)
    if breaks and loader.num_workers:
        raise RuntimeError("no workers here")
    linear = [nn.Linear(width, width) for _ in range(layers)]
    model = DistributedDataParallel(nn.Sequential(*linear), gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        time.sleep(work_ms / 1e3)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--decode-ms", type=float, default=60.0)
    parser.add_argument("--work-ms", type=float, default=60.0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--bucket-mb", type=float)
    parser.add_argument("--noisy", action="store_true", help="decoding draws random numbers")
    parser.add_argument("--breaks", action="store_true", help="it breaks with workers")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
