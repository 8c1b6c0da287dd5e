"""What recording zones costs per step: switched on and off in blocks of steps inside one process.

    python benchmarks/zones.py                 prints, for steps of about 2 and 10 ms, the cost in us and per cent

One training process records as under `distprof launch --no-window`; every block of steps its recorder is taken away or
given back, so that both halves see the same machine. The figure is the difference of the medians of a step; its
interval comes from resampling the blocks. There is no peer: the other half is the same process without us.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from distprof.launcher.spec import LaunchSpec
from distprof.run.config import CaptureConfig
from distprof.run.manifest import create_run

STEPS_MS = (2.0, 10.0)
LIMITS = {2.0: 0.03, 10.0: 0.01}
BLOCK = 20
BATCH = 64


def training_step(width: int) -> Callable[[torch.Tensor], None]:
    """A step of a small network under DDP."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def train(step_ms: float, blocks: int) -> None:
    """In a process of its own: train, and print the durations of steps with and without zones."""
    from distprof.capture.process import process

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    width = 64
    while True:  # a network whose step takes about as long as asked for
        step = training_step(width)
        for _ in range(5):
            step(torch.randn(BATCH, width))
        begin = time.perf_counter()
        for _ in range(10):
            step(torch.randn(BATCH, width))
        if (time.perf_counter() - begin) * 100 >= step_ms:
            break
        width = int(width * 1.15) + 1

    data = iter(DataLoader(torch.randn(BATCH * BLOCK * (2 * blocks + 2), width), batch_size=BATCH))
    agent = process._agent
    assert agent is not None
    on, off = [], []
    for block in range(2 * blocks):
        process._agent = agent if block % 2 else None
        for number in range(BLOCK):
            begin = time.perf_counter()
            step(next(data))
            if number >= 2:
                (on if block % 2 else off).append(time.perf_counter() - begin)
    process._agent = agent
    print(json.dumps({"on": on, "off": off}))


def measure(step_ms: float, blocks: int) -> dict[str, float]:
    """Run one training and compare."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        create_run(run_dir, run_id=None, command=[], world_size=1, config={}, versions={})
        spec = LaunchSpec([], __file__, CaptureConfig(run_dir=str(run_dir), window_ranks=[]))
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, __file__, "--train", str(step_ms), "--blocks", str(blocks)],
            env={**environment, **spec.environment(environment)},
            stdout=subprocess.PIPE,
            check=True,
        )
    times = json.loads(done.stdout.splitlines()[-1])
    on, off = (np.array(times[key]).reshape(blocks, -1) for key in ("on", "off"))
    generator = np.random.default_rng(0)
    draws = generator.integers(0, blocks, size=(2000, blocks))
    costs = np.median(on[draws].reshape(2000, -1), axis=1) - np.median(off[draws].reshape(2000, -1), axis=1)
    cost = float(np.median(on) - np.median(off))
    low, high = np.quantile(costs, [0.025, 0.975])
    base = float(np.median(off))
    return {"step_ms": base * 1e3, "us": cost * 1e6, "low_us": low * 1e6, "high_us": high * 1e6, "share": cost / base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=int, default=60, help="blocks of each half")
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train, arguments.blocks)
        return
    for step_ms in STEPS_MS:
        got = measure(step_ms, arguments.blocks)
        interval = f"[{got['low_us']:.0f}, {got['high_us']:.0f}]"
        share = f"{got['share']:.2%} (limit {LIMITS[step_ms]:.0%})"
        print(f"step of {got['step_ms']:.2f} ms: zones cost {got['us']:.0f} us {interval} = {share}")


if __name__ == "__main__":
    main()
