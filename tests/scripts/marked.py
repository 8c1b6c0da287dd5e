"""Runs a training script once for each of several settings of its environment, in one process, and marks its steps.

marked.py SCRIPT '{"SLOW_RANK": "1"}' '{"SLOW_RANK": "0"}' ...
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import distprof


def mark(*_: Any) -> None:
    """Each setting has an optimizer of its own: none of them tells the steps of the whole run."""
    distprof.step()


def keep(*_: Any, **__: Any) -> None:
    """The process group is made once: a second one would find the first one's addresses in the store."""


script, *settings = sys.argv[1:]
dist.init_process_group("gloo")
end = dist.destroy_process_group
dist.init_process_group = dist.destroy_process_group = keep
register_optimizer_step_post_hook(mark)
for setting in settings:
    os.environ.update(json.loads(setting))
    runpy.run_path(script, run_name="__main__")
end()
