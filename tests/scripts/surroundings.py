"""Prints what it finds around it, and trains while it changes directory."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path

OF_THE_LAUNCH = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}  # differ between any two launches

seen = {
    "argv": sys.argv,
    "original": sys.orig_argv[1:],
    "file": __file__,
    "name": __name__,
    "package": __package__,
    "spec": repr(__spec__),
    "path": sys.path,
    "folder": str(Path.cwd()),
    "threads": threading.active_count(),
    "environment": {name: value for name, value in sorted(os.environ.items()) if name not in OF_THE_LAUNCH},
}

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        os.chdir(elsewhere)  # before training
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        model = DistributedDataParallel(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(16):
            if step == 8:
                os.chdir("/")  # inside the window
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
        print(json.dumps({"rank": dist.get_rank(), **seen}), flush=True)
        print(f"rank {dist.get_rank()} to standard error", file=sys.stderr, flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
