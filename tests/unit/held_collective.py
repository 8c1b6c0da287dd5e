"""A process whose window is due to close while a collective is under way: prints what was recorded, as JSON.

Two process groups of one process are the two ranks, so that the collective ends when this script wants it to. It is a
process of its own since Kineto's threads and the forks of other tests do not go together.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distprof.capture.collectives import settled
from distprof.capture.other_profilers import OtherProfilers
from distprof.capture.window import Window
from distprof.run.config import CaptureConfig, Schedule
from distprof.run.directory import RunDirectory
from distprof.run.identity import Identity


def pair() -> list[Any]:
    """Both ends of a gloo group of two, connected."""
    store = dist.HashStore()
    ends: list[Any] = [None, None]

    def connect(rank: int) -> None:
        ends[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def main(folder: Path) -> None:
    """Play boundaries 0 to 4; the schedule wants a probe at 0, the window from 1 to 3."""
    here, there = pair()
    config = CaptureConfig(str(folder), schedule=Schedule(wait=0, warmup=2, active=1, repeat=1), activities=["cpu"])
    files = RunDirectory(folder).rank(0, 0)
    files.folder.mkdir(parents=True)
    window = Window(config, files, Identity(0, 0, 2, 0, "torchrun"), OtherProfilers(lambda where, error: None))
    did = []
    held = None
    for boundary in range(5):
        if boundary == int(sys.argv[2]):
            held = here.allreduce([torch.ones(4)])
        did.append(window.at_boundary(boundary))
        torch.ones(4).add_(1)
        if held is not None and boundary == int(sys.argv[2]):
            was_settled = settled(0.0)
            there.allreduce([torch.ones(4)]).wait()
            held.wait()
    trace = json.loads(files.window(0, compressed=False).read_text())
    steps = [event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep")]
    ended = [event["dur"] for event in trace["traceEvents"] if event.get("name") == "gloo:all_reduce"]
    result = {"did": did, "settled": was_settled, "reason": window.facts[0]["reason"], "steps": steps, "ended": ended}
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
