"""Traces that torch's own profiler wrote, of a training with groups that no trace names."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from tests.conftest import ROOT


@pytest.mark.launch
def test_groups_of_gloo_are_told_apart(shared: Path, tmp_path: Path) -> None:
    """Per iteration: four collectives of all ranks and one of all in another group, one of ranks 0 and 1, and one in
    each rank's own group."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    script = shared / "cases" / "train_multi_pg" / "train.py"
    command += [str(ROOT / "tests" / "scripts" / "profiled_groups.py"), str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    launched = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert launched.returncode == 0, launched.stderr
    run = distprof.load(tmp_path)
    used = set(run.tables.collectives["group"])
    members = sorted(group.members for group in run.tables.groups if group.id in used)
    assert members == [[0], [0, 1], [0, 1, 2], [0, 1, 2], [1], [2]]
    result = build(run)
    assert any(row.what == "groups" and "told apart by the timing" in row.reason for row in result.not_observed)
    assert (result.communication.matched, result.communication.unmatched) == (6 * (4 + 1 + 1 + 3), 0)
    for group in used:
        ranks = run.tables.collectives.filter(group=group).partition_by("rank")
        for a, b in itertools.combinations(ranks, 2):
            partners = a.join(b, on="seq").sort("started")
            assert partners["started_right"].is_sorted(), "partners come in one order on all ranks"
