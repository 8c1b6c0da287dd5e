"""What fails at a window costs the window, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from distprof.capture.window import _is_whole

ROOT = Path(__file__).parents[2]

# A loop without step boundaries, whose window is opened and closed after zones of the loader; and one with steps.
SCRIPT = """
import os, sys, time
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
import torch
from distprof.capture import agent, hooks, window
from distprof.capture.process import process
from distprof.run.config import CaptureConfig, Schedule
process.arm(CaptureConfig(run_dir=sys.argv[1], schedule=Schedule(0, 0, 1, 1)), hooks.watch_plain_modules, None)
hooks.install()
agent._PLAIN_MODULES_AFTER_NS = 1
window._OPEN_BY_TIME_NS, window._CLOSE_BY_TIME_NS = 1, 2

def settled(patience):
    raise RuntimeError("the flight recorder tells nothing")
window.settled = settled

stopped = []
class Profile(window.torch_profiler.profile):
    def __exit__(self, *error):
        stopped.append(self)
        return super().__exit__(*error)
window.torch_profiler.profile = Profile

parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=1.0)
for batch in torch.utils.data.DataLoader(list(range(5))):
    time.sleep(0.01)
    if sys.argv[2] == "steps":
        optimizer.step()
print("stopped", len(stopped), "learnt", parameter.item())
"""


@pytest.mark.parametrize("marks", ["steps", "none"])
def test_a_profiler_is_stopped_though_nobody_tells_whether_collectives_ended(marks: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), marks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"stopped 1 learnt {-5.0 if marks == 'steps' else 0.0}\n"
    assert "Traceback" not in done.stderr
    [problem] = json.loads((tmp_path / "attempt0" / "rank00000.json").read_text())["problems"]
    assert problem.startswith("recording a Kineto window failed and is left off: RuntimeError: the flight recorder")


TRACE = '{"traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2}], "traceName": "/a/rank0.json"}\n'


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (TRACE, True),
        (TRACE.replace("}]", "}" + " " * 40_000 + "]"), True),
        (TRACE[:-3], False),
        (TRACE[:40], False),
        ("", False),
        (TRACE.replace("traceName", "other"), False),
    ],
    ids=["whole", "long", "cut at its end", "cut in an event", "empty", "without its name"],
)
def test_a_trace_that_torch_could_not_write_whole_is_noticed(text: str, whole: bool, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    assert _is_whole(path) is whole
    assert not _is_whole(tmp_path / "missing.json")
