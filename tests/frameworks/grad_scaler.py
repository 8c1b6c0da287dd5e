"""Mixed precision with a GradScaler, which leaves out one step whose gradients overflow."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Samples, loader, network, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SCALE = 2.0**10


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    training = options()
    samples = Samples(training)
    model = DistributedDataParallel(network(), bucket_cap_mb=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step, (x, y) in enumerate(loader(samples)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        if step == training.steps // 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == SCALE / 2, "one step was to overflow"
    say(model, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
