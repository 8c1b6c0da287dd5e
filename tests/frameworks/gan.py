"""A GAN: two DDP models, whose optimizers take turns."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import BATCH, RANK, WIDTH, Samples, loader, network, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    samples = Samples(options())
    generator = DistributedDataParallel(network(), bucket_cap_mb=2)
    discriminator = DistributedDataParallel(nn.Sequential(network(), nn.Linear(WIDTH, 1)), bucket_cap_mb=2)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
    judge = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    torch.manual_seed(RANK)
    for x, _ in loader(samples):
        made = generator(torch.randn(BATCH, WIDTH))
        of_discriminator.zero_grad()
        (judge(discriminator(x), real) + judge(discriminator(made.detach()), fake)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        judge(discriminator(made), real).backward()
        of_generator.step()
    say(nn.ModuleList([generator, discriminator]), samples.planted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
