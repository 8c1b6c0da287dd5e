"""A rank that hangs: while the job still stands there, a report from outside says who holds whom up, and in what."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Tell
from tests.launches import ROOT, report
from tests.running import Job, job

pytestmark = [pytest.mark.soak, pytest.mark.launch]

SCRIPT = str(ROOT / "tests" / "scripts" / "steps.py")
HUNG = 1
STEP = 20
# Ranks that hang read their flight recorder after ten seconds, and are looked at each second.
SETTLED_S = 16


def launched(run_dir: Path, *arguments: str) -> tuple[str, ...]:
    ours = ("distprof", "launch", "--run-dir", str(run_dir), "--standalone", "--nproc-per-node", "3")
    return (*ours, "--schedule", "wait=2,warmup=1,active=4", SCRIPT, *arguments)


def told_meanwhile(run_dir: Path) -> tuple[dict[str, Any], str]:
    """The report as data, and what the terminal says."""
    shown = report(run_dir)
    assert shown.returncode == 0, shown.stderr
    data = report(run_dir, "--json", "-")
    assert "Traceback" not in shown.stderr + data.stderr
    return json.loads(data.stdout), " ".join(shown.stdout.split())


def check(run_dir: Path, running: Job, tell: Tell, how: str) -> dict[int, str]:
    """Report on a job that hangs; the reasons of its ranks. Then it is ended."""
    before = set(running.alive())
    time.sleep(SETTLED_S)
    result, shown = told_meanwhile(run_dir)
    assert before == set(running.alive()), "the report touched the job"
    rows = {row["rank"]: row for row in result["ranks"]}
    assert [row["status"] for row in rows.values()] == ["partial"] * 3
    reasons = {rank: row["reason"] for rank, row in rows.items()}
    tell("\n  ".join([f"{how}:", *(f"rank {rank}: {reason}" for rank, reason in reasons.items())]))
    for reason in reasons.values():  # the terminal says it, too, a little earlier
        assert re.search(re.sub(r"\d+ s\b", r"\\d+ s", re.escape(reason).replace(r"\ ", " ")), shown), shown
    return reasons


def test_a_rank_that_sleeps_inside_a_step(tmp_path: Path, tell: Tell) -> None:
    run_dir = tmp_path / "run"
    with job(*launched(run_dir, "--hang", f"{HUNG}:{STEP}")) as running:
        running.wait_until("hangs, pid", 1)
        reasons = check(run_dir, running, tell, f"rank {HUNG} sleeps in step {STEP}")
        running.launcher.terminate()
        assert running.end() == 1
        assert running.alive() == {}
    assert "it has not come to" in reasons[HUNG]
    assert re.search(r"in which ranks 0, 2 wait for \d+ s", reasons[HUNG])
    for rank in (0, 2):
        assert re.search(rf"it waits in \w+ \d+ of group \S+ for rank {HUNG}", reasons[rank])
    assert f"cut off at step {STEP}" in reasons[HUNG]
    later, _ = told_meanwhile(run_dir)
    assert "it has not come to" in later["ranks"][HUNG]["reason"]
    assert later["steps"]["steady"]["count"] > 0


def test_a_rank_that_was_stopped(tmp_path: Path, tell: Tell) -> None:
    run_dir = tmp_path / "run"
    with job(*launched(run_dir, "--steps", "100000")) as running:
        running.wait_until("is under way", 3)
        time.sleep(2)
        [pid] = re.findall(rf"rank {HUNG} is under way, pid (\d+)", running.output)
        os.kill(int(pid), signal.SIGSTOP)
        reasons = check(run_dir, running, tell, f"rank {HUNG} got SIGSTOP")
        os.kill(int(pid), signal.SIGCONT)
        running.launcher.terminate()
        assert running.end() == 1
        assert running.alive() == {}
    silent = re.search(r"it wrote nothing for (\d+) s while others went on", reasons[HUNG])
    assert silent is not None
    assert int(silent[1]) >= SETTLED_S - 2, "the others write each second, also while they wait"
    for rank in (0, 2):
        assert f"for rank {HUNG}" in reasons[rank]
