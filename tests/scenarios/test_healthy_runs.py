"""Ten healthy real runs, in none of which anybody is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from tests.conftest import Tell
from tests.launches import EXAMPLES, launch

RUNS = [
    *3 * [("4", "slow_loader.py", "--healthy")],
    *3 * [("4", "slow_backward.py", "--healthy")],
    *2 * [("4", "uneven_batches.py", "--healthy")],
    ("2", "healthy.py"),
    ("4", "healthy.py"),
]


@pytest.mark.soak
@pytest.mark.launch
def test_nobody_is_named_in_ten_healthy_runs(tmp_path: Path, tell: Tell) -> None:
    found = []
    for number, (ranks, script, *healthy) in enumerate(RUNS):
        run_dir = tmp_path / str(number)
        launched = launch(run_dir, "--standalone", "--nproc", ranks, str(EXAMPLES / script), *healthy)
        assert launched.returncode == 0, launched.stderr
        found.append(build(distprof.load(run_dir)).stragglers)
    for (ranks, script, *_), section in zip(RUNS, found, strict=True):
        tell(f"{script}, {ranks} ranks: {section.verdict}: {section.why}")
    assert [section.ranks for section in found] == [[]] * len(RUNS)
