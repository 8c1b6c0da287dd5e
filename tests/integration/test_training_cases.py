"""The handed training scripts that end badly, start anew, accumulate or hardly train, with every mode they offer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from distprof.result import Result
from tests.cluster import wait_until
from tests.launches import ROOT, Launched, launch

pytestmark = [pytest.mark.launch, pytest.mark.timing]


def run_case(tmp_path: Path, shared: Path, name: str, *options: str, **env: str) -> Launched:
    script = str(shared / "cases" / name / "train.py")
    return launch(tmp_path / "run", *(options or ("--standalone", "--nproc", "2")), script, env=env)


def report(launched: Launched) -> Result:
    return build(distprof.load(launched.run_dir))


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("exit3", "it exited with 3"), ("sigkill", "it was killed by SIGKILL"), ("sigterm", "it was killed by SIGTERM")],
)
def test_the_first_to_fail_is_named_and_not_the_victim(mode: str, reason: str, tmp_path: Path, shared: Path) -> None:
    done = run_case(tmp_path, shared, "train_fails", MODE=mode, FAIL_STEP="9")
    assert done.returncode == 1
    result = report(done)
    assert result.ranks[1].reason == reason
    assert result.ranks[1].status == ("complete" if mode == "exit3" else "partial")
    failures = json.loads((done.run_dir / "run.json").read_text())["ended"]["failures"]
    assert failures["1"]["first"] is True
    assert not any(failure["first"] for rank, failure in failures.items() if rank != "1")
    assert result.steps.per_rank[0].count > 0  # the other rank's recording is used


def test_a_rank_that_leaves_early_with_zero_is_partial(tmp_path: Path, shared: Path) -> None:
    done = run_case(tmp_path, shared, "train_fails", MODE="exit0early")
    assert done.returncode == 1
    row = report(done).ranks[1]
    assert row.status == "partial"
    assert row.reason is not None


def test_a_hung_training_can_be_stopped_and_reported(tmp_path: Path, shared: Path) -> None:
    command = [sys.executable, "-m", "distprof", "launch", "--run-dir", str(tmp_path / "run"), "--no-report"]
    command += ["--standalone", "--nproc", "2", str(shared / "cases" / "train_fails" / "train.py")]
    env = {**os.environ, "MODE": "hang", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        folder = tmp_path / "run" / "attempt0"
        wait_until(lambda: len(list(folder.glob("*.zones.jsonl"))) == 2, 60, "no zones")

        def running() -> Result:
            return build(distprof.load(tmp_path / "run"))  # a report can be made meanwhile, from outside

        wait_until(lambda: running().steps.per_rank[0].first is not None, 60, running)
        assert [row.status for row in running().ranks] == ["partial", "partial"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("env", "in_synced_steps"), [({}, 1), ({"UNUSED": "1"}, 2), ({"STATIC": "1"}, 1)], ids=["plain", "unused", "static"]
)
def test_accumulation(env: dict[str, str], in_synced_steps: int, tmp_path: Path, shared: Path) -> None:
    done = run_case(tmp_path, shared, "train_accumulate", **env)
    assert done.returncode == 0, done.stderr
    run = distprof.load(done.run_dir)
    result = build(run)
    assert run.tables.step_source == "optimizer"
    assert run.tables.steps.filter(rank=0)["backwards"].to_list() == [4, 4, 4, 4]
    assert result.steps.micro_steps == 4
    reductions = run.tables.collectives.filter(rank=0, kind="all_reduce")
    static = "STATIC" in env
    assert reductions.height == (17 if static else 4 * in_synced_steps)
    assert reductions["bucket"].drop_nulls().len() == (16 if static else 4)
    assert result.communication.unmatched == 0
    assert [row.what for row in result.not_observed if "missing" in row.reason] == []


def test_an_elastic_restart_keeps_attempts_apart(tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "scripts" / "restarts.py")
    done = launch(tmp_path / "run", "--standalone", "--nproc", "2", "--max-restarts=1", script)
    assert done.returncode == 0, done.stderr
    run = distprof.load(done.run_dir)
    assert (run.attempt, run.attempts) == (1, [0, 1])
    result = build(run)
    assert (result.run.attempt, result.run.attempts) == (1, [0, 1])
    assert run.tables.steps.filter(rank=1).height == 8
    assert [row.status for row in result.ranks] == ["complete", "complete"]
    facts = json.loads((done.run_dir / "attempt0" / "rank00001.json").read_text())
    assert (facts["attempt"], facts["boundaries"]) == (0, 3)


def test_the_handed_elastic_restart(tmp_path: Path, shared: Path) -> None:
    """gloo's second attempt fails in about half of the tries, under plain torchrun too: tried until it comes up."""
    for number in range(8):
        done = launch(
            tmp_path / f"run{number}",
            *("--standalone", "--nproc", "2", "--max-restarts=1"),
            str(shared / "cases" / "train_elastic_restart" / "train.py"),
            env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        assert (done.run_dir / "attempt0" / "rank00001.zones.jsonl").stat().st_size > 0
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    run = distprof.load(done.run_dir)
    assert (run.attempt, run.attempts) == (1, [0, 1])
    assert run.tables.step_source == "backward"
    assert run.tables.steps.filter(rank=1).height == 8


@pytest.mark.parametrize("steps", ["0", "1"])
def test_shorter_than_any_window(steps: str, tmp_path: Path, shared: Path) -> None:
    done = run_case(tmp_path, shared, "train_short", STEPS=steps)
    assert done.returncode == 0, done.stderr
    result = report(done)
    assert result.windows == []
    (row,) = [row for row in result.not_observed if row.what == "windows"]
    assert "never opened" in row.reason
    assert result.communication.collectives == (int(steps) or None)


@pytest.mark.parametrize("ranks", [2, 4])
def test_groups_of_different_members(ranks: int, tmp_path: Path, shared: Path) -> None:
    done = run_case(tmp_path, shared, "train_multi_pg", "--standalone", "--nproc", str(ranks))
    assert done.returncode == 0, done.stderr
    run = distprof.load(done.run_dir)
    result = build(run)
    members = sorted(group.members for group in result.groups)
    assert [0, 1] in members
    assert [list(range(ranks))] == [group.members for group in result.groups if group.desc == "default_pg"]
    assert all([rank] in members for rank in range(ranks))
    assert result.communication.unmatched == 0
    # By position in the file rank 2's collectives would be held against rank 0's in the pair's group.
    ids = {group.id: group.members for group in run.tables.groups}
    for rank in range(ranks):
        groups = run.tables.collectives.filter(rank=rank)["group"].unique()
        assert all(rank in ids[group] for group in groups)
    assert result.stragglers.verdict == "undecided"  # no optimizer, no backward: there are no steps
