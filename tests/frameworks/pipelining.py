"""A pipeline of one stage per rank; the first reads the vectors, the last what is to be made of them."""

from __future__ import annotations

from itertools import islice

import torch
import torch.distributed as dist
from common import BATCH, RANK, WORLD_SIZE, Samples, network, options, say
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    training = options()
    samples = Samples(training)
    layers = network()
    each = len(layers) // WORLD_SIZE
    model = layers[RANK * each : (RANK + 1) * each]
    schedule = Schedule1F1B(
        PipelineStage(model, RANK, WORLD_SIZE, torch.device("cpu")), MICRO_BATCHES, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in islice(DataLoader(samples, BATCH), training.steps):  # all stages read the same batches
        optimizer.zero_grad()
        if RANK == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        optimizer.step()
    say(model, samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
