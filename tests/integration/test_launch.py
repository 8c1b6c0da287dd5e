"""What a script sees under `distprof launch` is what it sees under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import distprof
from tests.launches import ROOT, Launched, launch, torchrun

pytestmark = [pytest.mark.launch, pytest.mark.timing]

ARGUMENTS = ["--nproc-per-node", "9", "-o", "x", "--output=y", "--", "--after", "-m", "mod", "a b", "", "--help"]


def by_rank(launched: Launched) -> list[dict[str, object]]:
    return sorted(launched.printed(), key=lambda row: int(str(row["rank"])))


WAYS = ["plain", "static_graph", "find_unused", "bucket_view", "no_sync", "comm_hook", "fsdp2", "compile"]


def test_parameters_are_bit_identical_at_world_size_three(tmp_path: Path) -> None:
    script = [str(ROOT / "tests" / "scripts" / "parameters.py"), *WAYS]
    plain = torchrun("--standalone", "--nproc-per-node", "3", *script)
    schedule = ["--schedule", "wait=2,warmup=2,active=4,repeat=100"]
    ours = launch(tmp_path / "run", "--standalone", "--nproc", "3", *schedule, *script)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert len(by_rank(plain)) == 3
    assert all(set(WAYS) <= set(row) for row in by_rank(plain))
    assert by_rank(ours) == by_rank(plain)
    # It is a proof only if everything was recorded meanwhile, and a window was open in each of the ways.
    tables = distprof.load(tmp_path / "run").tables
    assert tables.events.filter(name="aten::addmm").height > 0
    for rank in range(3):
        assert tables.facts[rank]["problems"] == []
        assert tables.zones.filter(rank=rank).height > len(WAYS) * 24 * 4
        windows = tables.windows.filter(rank=rank)
        for way in WAYS:
            (zone,) = tables.zones.filter(rank=rank, kind="zone", name=way).rows(named=True)
            assert windows.filter((windows["start"] > zone["start"]) & (windows["end"] < zone["end"])).height > 0, way


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
    assert report["ranks"][1]["status"] == "complete"  # the other may be ended before
    assert report["ranks"][1]["reason"] == "it exited with 1: RuntimeError: boom"
    assert "after rank 1 had failed" in report["ranks"][0]["reason"]
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["ended"]["failures"]["1"]["exit_code"] == 1


def test_two_launches_side_by_side(tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "scripts" / "parameters.py")
    command = [
        sys.executable,
        "-m",
        "distprof",
        "launch",
        "--no-report",
        "--standalone",
        "--nproc",
        "1",
        script,
        "plain",
    ]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert printed[0] == printed[1]
    runs = sorted((tmp_path / "distprof-runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        tables = distprof.load(run).tables
        assert tables.steps.height == 24
        assert tables.facts[0]["problems"] == []


def test_a_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    refused = launch(tmp_path, "--nproc", "1", "nothing.py")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "Choose another --run-dir" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
