"""The profiler is not stopped while a thread of torch's is still to write the end of a collective."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def play(folder: Path, held_at: int) -> dict[str, Any]:
    """The boundaries of a short training; a collective is under way at `held_at`."""
    command = [sys.executable, "-m", "tests.unit.held_collective", str(folder), str(held_at)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["settled"] is False
    return result


def test_a_window_is_closed_late_where_a_collective_is_under_way(tmp_path: Path) -> None:
    result = play(tmp_path, held_at=3)
    assert result["did"] == ["window probe", "window probe", None, None, "window export"]
    assert "closed late" in result["reason"]
    assert sorted(result["steps"]) == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
    assert len(result["ended"]) == 2  # of both ends, and both are in the trace with their ends


def test_a_probe_that_can_not_be_stopped_becomes_the_window(tmp_path: Path) -> None:
    result = play(tmp_path, held_at=1)
    assert result["did"] == ["window probe", "window probe", None, "window export", None]
    assert result["reason"] is None
    assert sorted(result["steps"]) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert len(result["ended"]) == 2
