"""Whatever torchrun can start, and however, `distprof launch` starts in the same way."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.launches import ROOT, launch, torchrun

pytestmark = pytest.mark.launch

SCRIPTS = ROOT / "tests" / "scripts"
OURS = {"DISTPROF_ATTEMPT", "DISTPROF_CONFIG", "PYTHONPATH", "TORCH_FR_BUFFER_SIZE"}


def recorded(run_dir: Path) -> list[int]:
    """Ranks of a run whose recordings are whole, with a window."""
    folder = run_dir / "attempt0"
    facts = (json.loads(path.read_text()) for path in sorted(folder.glob("rank?????.json")))
    ranks = [row["rank"] for row in facts if row["status"] == "finished" and row["problems"] == []]
    return [rank for rank in ranks if (folder / f"rank0000{rank}.window0.pt.trace.json.gz").exists()]


def without_ours(row: dict[str, Any]) -> dict[str, Any]:
    environment = {name: value for name, value in row["environment"].items() if name not in OURS}
    return {**row, "environment": environment}


def logs(folder: Path) -> dict[str, list[str]]:
    """Lines of every log file, by its path below the launch's own folder; a profiler's notices are left out."""
    files = (path for path in folder.glob("*/**/*.log"))
    return {
        str(path.relative_to(next(folder.iterdir()))): [
            line for line in path.read_text().splitlines() if not line.startswith("USDT:")
        ]
        for path in files
    }


def rows(files: Iterable[list[str]]) -> list[dict[str, Any]]:
    found = [json.loads(line) for lines in files for line in lines if line.startswith("{")]
    return sorted(found, key=lambda row: int(row["rank"]))


def test_logs_role_environment_and_a_script_that_changes_directory(tmp_path: Path) -> None:
    options = ["--standalone", "--nproc_per_node", "2", "--role", "trainer", "--redirects", "0:1", "--tee", "1:3"]
    options += ["--local-ranks-filter", "1", "--log-dir", "logs"]
    launched = {}
    for name in ("plain", "ours"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").symlink_to(SCRIPTS / "surroundings.py")
        start = torchrun if name == "plain" else lambda *words, cwd: launch(Path("run"), *words, cwd=cwd)
        launched[name] = start(*options, "train.py", "--run-dir", "x", cwd=folder)
        assert launched[name].returncode == 0, launched[name].stderr
    plain, ours = (logs(tmp_path / name / "logs") for name in ("plain", "ours"))
    assert sorted(ours) == sorted(plain)
    assert len(rows(plain.values())) == 2
    text = json.dumps([without_ours(row) for row in rows(ours.values())])
    as_if_plain = json.loads(text.replace(str(tmp_path / "ours"), str(tmp_path / "plain")))
    assert as_if_plain == [without_ours(row) for row in rows(plain.values())]
    for launch_output in launched.values():  # rank 0's standard output went to its file only, rank 1's to both
        assert [row["rank"] for row in launch_output.printed() if "rank" in row] == [1]
        assert "[trainer1]:rank 1 to standard error" in launch_output.stderr
    assert recorded(tmp_path / "ours" / "run") == [0, 1]


def test_a_module_of_a_package(tmp_path: Path, shared: Path) -> None:
    folder = shared / "cases" / "train_module_pkg"  # asserts itself that it sees what it does under torchrun
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "2", "-m", "pkg.train", cwd=folder)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.count("argv0 train.py done") == 2
    assert sorted(path.name[:9] for path in (tmp_path / "run" / "attempt0").glob("rank?????.json")) == [
        "rank00000",
        "rank00001",
    ]


def test_a_program_that_starts_python_and_one_that_hides_the_ranks(tmp_path: Path) -> None:
    program = tmp_path / "wrapper"
    python = f"exec '{sys.executable}' $flags '{SCRIPTS / 'surroundings.py'}' \"$@\""
    program.write_text(f'#!/bin/bash\n[ "$LOCAL_RANK" = 0 ] && flags=-I\n{python}\n')
    program.chmod(0o755)
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "2", "--no-python", str(program), "a", "--", "")
    assert ours.returncode == 0, ours.stderr
    assert {tuple(row["argv"][1:]) for row in ours.printed()} == {("a", "--", "")}
    assert recorded(tmp_path / "run") == [1]
    ended = json.loads((tmp_path / "run" / "run.json").read_text())["ended"]
    assert list(ended["absent"]) == ["0"]
    assert f"{program} started" in ended["absent"]["0"]
    assert "python -I, -E and -S ignore PYTHONPATH" in ended["absent"]["0"]


def test_a_hydra_app(tmp_path: Path) -> None:
    overrides = ["+lr=0.25", "hydra.job.chdir=true", "hydra.run.dir=out"]
    ours = launch(Path("run"), "--standalone", str(SCRIPTS / "hydra_app.py"), *overrides, cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr
    assert ours.printed() == [{"lr": 0.25, "argv": overrides, "in_its_folder": True}]
    assert (tmp_path / "out" / ".hydra" / "overrides.yaml").read_text() == "- +lr=0.25\n"
    assert recorded(tmp_path / "run") == [0]


def test_a_script_that_starts_its_own_ranks(tmp_path: Path) -> None:
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "1", str(SCRIPTS / "own_ranks.py"))
    assert ours.returncode == 0, ours.stderr
    assert sorted(row["rank"] for row in ours.printed()) == [0, 1]
    assert "Traceback" not in ours.stderr
