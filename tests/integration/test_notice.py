"""The scheduler's notice in a rank: what is recorded goes to the disk, and training goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from distprof.pipeline import build
from distprof.run.config import Schedule
from distprof.run.notice import NOTICE_VARIABLE, NoticeBoard
from tests.ranks import capture

TRAINING = """
import os, pathlib, signal, time, torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == 10:
        os.kill(os.getpid(), signal.SIGUSR2)  # as SLURM sends it to every process of a step
        folder = pathlib.Path(os.environ["DISTPROF_NOTICE"])
        (folder / "told.json").write_text('{"signal": "SIGUSR2", "unix_ns": 5}')
        time.sleep(0.5)
    if step == 12:
        assert list(folder.glob("answer-*"))
    if step == 40:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
"""


def test_the_window_is_closed_zones_are_written_and_the_training_goes_on(tmp_path: Path) -> None:
    board = NoticeBoard()
    schedule = Schedule(wait=2, warmup=0, active=1000)
    done = capture(tmp_path, TRAINING, env={NOTICE_VARIABLE: str(board.folder)}, config={"schedule": schedule})
    assert board.answers() == 1
    board.remove()
    assert done.returncode == -9, done.stderr
    facts = json.loads((done.run_dir / "attempt0" / "rank00000.json").read_text())
    assert facts["told"] == {"signal": "SIGUSR2", "unix_ns": 5, "boundary": 10}
    (window,) = facts["windows"]
    assert window["reason"] == "closed early: the scheduler was about to end the job"
    result = build(done.run)
    assert done.run.tables.steps.height == 40
    assert done.run.tables.windows.height == 1
    (row,) = result.ranks
    assert row.status == "partial"
    assert row.reason is not None
    assert "cut off at step 40" in row.reason
    assert "at step 10 the scheduler's SIGUSR2" in row.reason


@pytest.mark.parametrize("signals", [("SIGUSR2",), ("SIGUSR2", "SIGTERM")])
def test_what_was_told_first_stays(signals: tuple[str, ...]) -> None:
    board = NoticeBoard()
    begin = time.time_ns()
    for name in signals:
        board.tell(name)
    told = json.loads((board.folder / "told.json").read_text())
    assert told["signal"] == "SIGUSR2"
    assert begin <= told["unix_ns"] <= time.time_ns()
    board.remove()
    assert not board.folder.exists()
    board.tell("SIGTERM")  # too late, and no error
