"""The recipes in `launch/` that need no SLURM, and `distprof submit` on this machine.

The other recipes are run by `test_slurm.py` and `test_hosts.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches import ROOT

RECIPES = ROOT / "launch"
TRAIN = str(ROOT / "tests" / "scripts" / "on_cluster.py")


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)


def statuses(folder: Path) -> list[str]:
    return [row["status"] for row in json.loads((folder / "report.json").read_text())["ranks"]]


def test_each_recipe_is_run_by_a_test() -> None:
    tests = "".join((Path(__file__).parent / f"test_{name}.py").read_text() for name in ("recipes", "slurm", "hosts"))
    names = sorted(path.name for path in RECIPES.iterdir())
    assert len(names) == 5
    assert [name for name in names if f'"{name}"' not in tests] == []
    assert all(os.access(RECIPES / name, os.X_OK) for name in names)


@pytest.mark.launch
def test_a_workstation(tmp_path: Path) -> None:
    done = run(tmp_path, str(RECIPES / "workstation.sh"), TRAIN, "--steps", "12", NPROC="1")
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "distprof-runs").iterdir()
    assert statuses(made) == ["complete"]


@pytest.mark.launch
def test_a_job_on_this_machine_takes_the_same_path(tmp_path: Path) -> None:
    words = ("distprof", "submit", "--cluster", "local", "--wait", "--no-window", "--run-dir", "run", TRAIN)
    done = run(tmp_path, *words, "--steps", "12")
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "run") == ["complete"]
    assert '{"rank": 0, "under_way": ' in done.stdout  # the log, as it grew
    assert "There is one rank, and nobody waits for it." in done.stdout
    assert "RUNNING" in done.stderr
    assert "COMPLETED" in done.stderr
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["command"][:4] == ["distprof", "submit", "--cluster", "local"]
    assert (tmp_path / "run" / "submit").stat().st_mode & 0o077 == 0


@pytest.mark.launch
def test_a_job_in_this_process_ends_with_the_scripts_exit_code(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(7)")
    done = run(tmp_path, "distprof", "submit", "--cluster", "debug", "--no-report", "--run-dir", "run", "fails.py")
    assert done.returncode == 7, done.stderr
    (node,) = (json.loads(path.read_text()) for path in (tmp_path / "run" / "nodes").iterdir())
    assert node["ended"]["failures"]["0"]["exit_code"] == 7
