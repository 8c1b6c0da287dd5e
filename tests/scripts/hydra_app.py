"""A Hydra app: its arguments are overrides, and it trains in a directory that Hydra made for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for _ in range(16):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    output = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
    print(json.dumps({"lr": config.lr, "argv": sys.argv[1:], "in_its_folder": str(Path.cwd()) == output}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
