"""Runs a training script with torch's profiler on, from the first group to the end: profiled_groups.py SCRIPT OUT."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

script, out = sys.argv[1:3]
profiler = profile(activities=[ProfilerActivity.CPU])
begin, end = dist.init_process_group, dist.destroy_process_group


def begin_profiled(*arguments: Any, **named: Any) -> None:
    begin(*arguments, **named)
    profiler.start()


def end_profiled(*arguments: Any) -> None:
    profiler.stop()
    profiler.export_chrome_trace(f"{out}/trace-{dist.get_rank()}.json")
    end(*arguments)


dist.init_process_group, dist.destroy_process_group = begin_profiled, end_profiled
runpy.run_path(script, run_name="__main__")
