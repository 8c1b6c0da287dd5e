"""Two ranks train a network whose input is prepared in time and whose ranks do equal work: nothing is to be found.

A report that finds something here finds it everywhere. It names nobody, says that the input pipeline keeps up, and
shows what a step is made of. `distprof launch --nproc-per-node 2 examples/healthy.py`
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = arguments.steps * arguments.batch_size * dist.get_world_size()
    data = TensorDataset(torch.randn(samples, 128), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=DistributedSampler(data))
    network = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
