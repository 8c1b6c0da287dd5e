"""What a script sees under `distprof launch` is what it sees under torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launches import ROOT, Launched, launch, torchrun

pytestmark = pytest.mark.launch

ARGUMENTS = ["--nproc-per-node", "9", "-o", "x", "--output=y", "--", "--after", "-m", "mod", "a b", "", "--help"]


def by_rank(launched: Launched) -> list[dict[str, object]]:
    return sorted(launched.printed(), key=lambda row: int(str(row["rank"])))


def test_parameters_are_bit_identical_at_world_size_three(tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "scripts" / "parameters.py")
    plain = torchrun("--standalone", "--nproc-per-node", "3", script)
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "3", script)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert len(by_rank(plain)) == 3
    assert by_rank(ours) == by_rank(plain)
    # It is a proof only if everything was recorded meanwhile.
    for rank in range(3):
        facts = json.loads((tmp_path / "run" / "attempt0" / f"rank0000{rank}.json").read_text())
        assert facts["problems"] == []
        assert facts["own_cost"]["zones"] > 40 * 4
        assert facts["windows"][0]["reason"] is None
        assert (tmp_path / "run" / "attempt0" / f"rank0000{rank}.window0.pt.trace.json.gz").stat().st_size > 1000


def test_arguments_and_main_module_are_untouched(tmp_path: Path, shared: Path) -> None:
    folder = shared / "cases" / "train_argv"
    plain = torchrun("--standalone", "--nproc-per-node", "2", "sub/train.py", *ARGUMENTS, cwd=folder)
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "2", "sub/train.py", *ARGUMENTS, cwd=folder)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert len(by_rank(plain)) == 2
    assert by_rank(ours) == by_rank(plain)


def test_a_failing_rank_keeps_the_exit_code_and_the_recordings(tmp_path: Path, shared: Path) -> None:
    script = str(shared / "cases" / "train_fails" / "train.py")
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "2", script, env={"MODE": "raise"}, report=True)
    assert ours.returncode == 1  # as torchrun, whatever the rank did
    assert "RuntimeError: boom" in ours.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [row["status"] for row in report["ranks"]] == ["complete", "complete"]
    assert report["ranks"][1]["reason"] == "it exited with 1"
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["ended"]["failures"]["1"]["exit_code"] == 1


def test_a_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    refused = launch(tmp_path, "--nproc", "1", "nothing.py")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "Choose another --run-dir" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
