"""A script's own profiler comes first, in every order; its file is whole, and the report says where our window went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.run.config import Schedule
from tests.ranks import capture

SCRIPT = """
import sys, threading, torch
from torch import nn
from torch.profiler import profile, schedule, ProfilerActivity
torch.set_num_threads(1)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
out = sys.argv[0].replace("script.py", "users.json")
cpu = [ProfilerActivity.CPU]
BODY
"""

# Where the script's profiler is active, in steps; ours is open in steps 4 to 7 (opened in 3, closed after 7).
BODIES = {
    "before ours": """
with profile(activities=cpu) as p:
    for _ in range(2): step()
p.export_chrome_trace(out)
for _ in range(10): step()
""",
    "around ours": """
with profile(activities=cpu) as p:
    for _ in range(12): step()
p.export_chrome_trace(out)
""",
    "begins inside ours": """
for _ in range(6): step()
with profile(activities=cpu) as p:
    for _ in range(6): step()
p.export_chrome_trace(out)
""",
    "warms up before ours opens": """
with profile(activities=cpu, schedule=schedule(wait=2, warmup=3, active=2, repeat=1),
             on_trace_ready=lambda p: p.export_chrome_trace(out)) as p:
    for _ in range(12):
        step(); p.step()
""",
    "warms up inside ours": """
with profile(activities=cpu, schedule=schedule(wait=5, warmup=1, active=2, repeat=1),
             on_trace_ready=lambda p: p.export_chrome_trace(out)) as p:
    for _ in range(12):
        step(); p.step()
""",
    "autograd.profiler inside ours": """
for _ in range(6): step()
with torch.autograd.profiler.profile() as p:
    for _ in range(3): step()
p.export_chrome_trace(out)
for _ in range(3): step()
""",
    "on another thread inside ours": """
for _ in range(6): step()
def other():
    with profile(activities=cpu) as p:
        torch.ones(4) + 1
    p.export_chrome_trace(out)
thread = threading.Thread(target=other); thread.start(); thread.join()
for _ in range(6): step()
""",
}


@pytest.mark.parametrize("order", BODIES)
def test_the_scripts_profiler_is_whole(order: str, tmp_path: Path) -> None:
    config: dict[str, object] = {"schedule": Schedule(wait=3, warmup=1, active=4)}
    done = capture(tmp_path, SCRIPT.replace("BODY", BODIES[order]), config=config)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "users.json").read_text())["traceEvents"]
    operators = [event["name"] for event in events if event.get("cat") == "cpu_op"]
    assert ("aten::add" if "thread" in order else "aten::addmm") in operators
    assert done.facts["problems"] == []
    (window,) = done.facts["windows"]  # type: ignore[misc]
    traces = list((done.run_dir / "attempt0").glob("*.pt.trace.json.gz"))
    ours_is_whole = order == "before ours"
    assert (window["reason"] is None) == ours_is_whole
    if window["end_unix_ns"] is not None:
        assert len(traces) == 1
        assert done.run.tables.events.filter(name="aten::addmm").height > 0
    else:
        assert traces == []
        assert "profiler" in window["reason"]
