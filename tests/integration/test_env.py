"""`distprof env` arms what a shell starts after it, whatever starts the ranks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches import ROOT

SURROUNDINGS = str(ROOT / "tests" / "scripts" / "surroundings.py")
ALONE = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(16):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def shell(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines in one POSIX shell, up to the first that fails."""
    return subprocess.run(
        ["sh", "-e", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def words(*command: str) -> str:
    return shlex.join([sys.executable, "-m", *command])


@pytest.mark.launch
def test_torchrun_in_an_armed_shell(tmp_path: Path) -> None:
    run_dir = tmp_path / "it's a run"  # a name that needs quoting
    done = shell(
        tmp_path,
        f'eval "$({words("distprof", "env", "--run-dir", run_dir.name, "--window-ranks", "1")})"',
        words("torch.distributed.run", "--standalone", "--nproc-per-node", "2", SURROUNDINGS),
        words("distprof", "report", str(run_dir)),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((run_dir / "report.json").read_text())
    assert [row["status"] for row in report["ranks"]] == ["complete", "complete"]
    assert [row["requested"] for row in report["ranks"]] == [[], ["cpu"]]
    assert report["steps"]["steady"]["count"] > 0
    assert report["run"]["command"] == ["distprof", "env", "--run-dir", run_dir.name, "--window-ranks", "1"]


@pytest.mark.launch
def test_plain_python_in_an_armed_shell_is_a_world_of_one(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    done = shell(
        tmp_path,
        f'eval "$({words("distprof", "env", "--run-dir", "run", "--no-window")})"',
        shlex.join([sys.executable, "alone.py"]),
        words("distprof", "report", "run"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [row["status"] for row in report["ranks"]] == ["complete"]
    assert report["steps"]["steady"]["count"] > 0


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").touch()
    done = shell(tmp_path, words("distprof", "env", "--run-dir", "run"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "is not empty and belongs to another run" in done.stderr
    assert done.stderr.count("\n") == 1
