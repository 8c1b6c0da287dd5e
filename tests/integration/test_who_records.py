"""Only the process that trains as a rank is armed, whatever else inherits its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distprof
from tests.launches import ROOT, launch

pytestmark = pytest.mark.launch


def test_only_the_training_process_records(tmp_path: Path) -> None:
    scripts = ROOT / "tests" / "scripts"
    done = launch(
        tmp_path / "run",
        "--standalone",
        "--nproc",
        "2",
        str(scripts / "who_records.py"),
        env={"PYTHONPATH": str(scripts / "users_site")},
    )
    assert done.returncode == 0, done.stderr
    assert "distprof:" not in done.stderr
    printed = {int(str(row["rank"])): row for row in done.printed()}
    files = sorted(path.name for path in (tmp_path / "run" / "attempt0").iterdir())
    assert [name for name in files if name.endswith(".zones.jsonl")] == [
        "rank00000.zones.jsonl",
        "rank00001.zones.jsonl",
    ]
    tables = distprof.load(tmp_path / "run").tables
    for rank, row in printed.items():
        facts = json.loads((tmp_path / "run" / "attempt0" / f"rank0000{rank}.json").read_text())
        assert facts["pid"] == row["pid"]
        assert tables.steps.filter(rank=rank).height == row["steps"] == 12
        assert row["users_sitecustomize_ran"] is True
