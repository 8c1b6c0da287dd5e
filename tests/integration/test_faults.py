"""What goes wrong around a training stays around it: the training ends as it would, and what was recorded is kept."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.pipeline import build
from distprof.run.config import Schedule
from tests.machine import small_disk
from tests.ranks import Captured, capture, run_in

TRAINING = """
import os, shutil, signal, sys, time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    AT_STEP
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
print("trained", float(model.weight.sum()), flush=True)
"""
WINDOW: dict[str, object] = {"schedule": Schedule(wait=8, warmup=1, active=8)}


def train(tmp_path: Path, at_step: str = "pass", config: dict[str, object] | None = None) -> Captured:
    return capture(tmp_path, TRAINING.replace("AT_STEP", at_step), config={**WINDOW, **(config or {})})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 kB."""
    with small_disk(tmp_path / "disk", kilobytes=100) as folder:
        yield folder


def test_a_full_disk_does_not_touch_the_training(disk: Path) -> None:
    done = train(disk, "if step == 5: open(sys.argv[0] + '.fill', 'wb').write(b'x' * 60000)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained")
    assert "failed and is left off" in done.stderr
    assert "The training is not affected" in done.stderr
    assert "Traceback" not in done.stderr
    result = build(done.run)
    assert result.steps.steady.count > 0  # what came to the disk is used


def test_a_read_only_run_directory_does_not_touch_the_training(disk: Path) -> None:
    remount = f"if step == 0: assert os.system('mount -o remount,ro {disk}') == 0"
    done = train(disk, remount)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained")
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_directory_removed_during_training_does_not_touch_it(tmp_path: Path) -> None:
    done = train(tmp_path, f"if step == 5: shutil.rmtree({str(tmp_path / 'run')!r})")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained")
    assert "Traceback" not in done.stderr
    assert "The training is not affected" in done.stderr


def test_steps_that_came_late_and_were_quick_are_there_after_kill_nine(tmp_path: Path) -> None:
    """What is recorded is written once in a second, and has just been when the steps begin."""
    size = f"os.path.getsize({str(tmp_path / 'run' / 'attempt0' / 'rank00000.zones.jsonl')!r})"
    group = "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)"
    begin = f"{group}; time.sleep(3); size = {size}\n        while {size} == size: time.sleep(0.001)"
    kill = "time.sleep(0.15); os.kill(os.getpid(), signal.SIGKILL)"
    done = train(tmp_path, f"if step == 0:\n        {begin}\n    if step == 4: {kill}")
    assert done.returncode == -signal.SIGKILL
    (steps,) = build(done.run).steps.per_rank
    assert steps.count > 0


@pytest.mark.parametrize(("moment", "step"), [("before", 5), ("inside", 12), ("after", 24)])
def test_kill_nine_leaves_what_there_was(moment: str, step: int, tmp_path: Path) -> None:
    kill = f"if step == {step}: time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)"
    done = train(tmp_path, kill)
    assert done.returncode == -signal.SIGKILL
    result = build(done.run)
    (rank,) = result.ranks
    assert rank.status == "partial"
    assert done.run.tables.steps.height == step
    folder = done.run_dir / "attempt0"
    traces = [path.name for path in folder.glob("*.pt.trace.json*")]
    assert traces == (["rank00000.window0.pt.trace.json"] if moment == "after" else [])
    if moment == "after":
        assert done.run.tables.events.height > 0
    assert not list(folder.glob("*.tmp"))


def test_an_exception_is_told_and_the_recording_is_whole(tmp_path: Path) -> None:
    done = train(tmp_path, "if step == 20: raise RuntimeError('boom token=ghp_0123456789abcdefghij')")
    assert done.returncode == 1
    assert "RuntimeError: boom" in done.stderr
    (rank,) = build(done.run).ranks
    assert rank.status == "complete"
    assert rank.reason is not None
    assert rank.reason.startswith("RuntimeError: boom")
    assert "ghp_0123456789abcdefghij" not in (done.run_dir / "attempt0" / "rank00000.json").read_text()


def test_two_processes_of_one_rank_are_kept_apart(tmp_path: Path) -> None:
    first = train(tmp_path)
    second = run_in(first.run_dir, tmp_path / "script.py")
    assert second.returncode == 0, second.stderr
    assert "another process has recorded as rank 0" in second.stderr
    facts = sorted(path.name for path in (first.run_dir / "attempt0").glob("*.json"))
    assert facts[0].startswith("rank00000-")
    assert facts[1] == "rank00000.json"
    run = first.run
    assert run.tables.steps.height == 30
    assert [note.file.name for note in run.notes] == [facts[0]]
    assert json.loads((first.run_dir / "attempt0" / "rank00000.json").read_text())["problems"] == []
