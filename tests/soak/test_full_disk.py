"""A disk that is full in the middle of an export: the training ends as it would, and the loss is told."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.pipeline import build
from distprof.run.config import Schedule
from tests.conftest import Tell
from tests.machine import small_disk
from tests.ranks import Captured, capture

pytestmark = [pytest.mark.soak]

STEPS = 40
TRAINING = f"""
import hashlib, time, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
print(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest())
"""
WINDOW: dict[str, object] = {"schedule": Schedule(wait=8, warmup=1, active=10)}


@pytest.fixture(scope="module")
def unprofiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the training prints without distprof: a checksum of its parameters."""
    script = tmp_path_factory.mktemp("unprofiled") / "script.py"
    script.write_text(TRAINING)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """The same with room for all of it."""
    return capture(tmp_path_factory.mktemp("whole"), TRAINING, config=WINDOW)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.02])
def test_the_disk_is_full_in_the_middle_of_the_export(
    share: float, *, tmp_path: Path, unprofiled: str, whole: Captured, tell: Tell
) -> None:
    """With room for this share of the trace: with a little more than all of it, none is left to compress it."""
    [packed] = whole.run_dir.glob("attempt0/*.gz")
    trace_bytes = len(gzip.decompress(packed.read_bytes()))
    others = list(whole.run_dir.parent.glob("*.py"))
    others += [path for path in whole.run_dir.rglob("*.json*") if path != packed and path.parent.name != "digest"]
    # What is written under a temporary name takes its place twice; a file takes whole pages.
    rest = sum(path.stat().st_size + 4096 for path in others) + whole.run.directory.rank(0, 0).facts.stat().st_size
    with small_disk(tmp_path / "disk", kilobytes=int(rest + share * trace_bytes) // 1024) as disk:
        done = capture(disk, TRAINING, config=WINDOW)
        assert done.returncode == 0, done.stderr
        assert done.stdout == unprofiled
        assert "Traceback" not in done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("distprof:")]
        assert any("recording a Kineto window failed and is left off" in line for line in told)
        assert all("The training is not affected" in line for line in told)
        left = sorted(path.name for path in (disk / "run").rglob("*") if path.name.endswith(".tmp"))
        result, run = build(done.run), done.run
    said = " ".join(told).replace(f"{tmp_path}/", "")
    tell(
        f"room for {share:.0%} of a trace of {trace_bytes >> 10} KiB: {said}\n"
        f"  the report has {run.tables.steps.height} steps, and {run.tables.events.height} of "
        f"{whole.run.tables.events.height} events; {len(left)} temporary files left"
    )
    assert left == []
    if len(told) == 1:  # else the zones were to be written just when there was no room
        assert run.tables.steps.height == STEPS
    assert result.steps.steady.count > STEPS / 2
    [row] = result.ranks
    assert row.status == "complete"
    assert any("Kineto window failed" in note.reason for note in result.not_observed)
    events = run.tables.events.height
    assert (events == whole.run.tables.events.height) if share > 1 else events == 0
