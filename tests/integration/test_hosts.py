"""Two hosts with addresses of their own: with torchrun and with `distprof launch`, with and without a shared disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from distprof.run.directory import RunDirectory
from distprof.run.nodes import read_nodes
from tests.cluster import wait_until
from tests.hosts import LINK, Host, hosts
from tests.launches import ROOT

pytestmark = pytest.mark.launch

TRAIN = str(ROOT / "tests" / "scripts" / "on_cluster.py")
LATE_S = 2.0


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Host]]:
    with hosts(2, lambda source, target: 0.001) as made:
        yield made


@contextlib.contextmanager
def started(host: Host, folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command on a host; its output goes to `<host>.txt`. What is left of it at the end is killed."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": LINK,
        **variables,
    }
    with (folder / f"host{host.number}.txt").open("wb") as output:
        process = subprocess.Popen(
            host.command(*words), cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            die(host)
            process.wait(30)


def die(host: Host) -> None:
    """Kill all that runs on a host at once."""
    listed = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=True)
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_torchrun_by_hand_without_a_shared_disk_and_a_late_second_host(two: list[Host], tmp_path: Path) -> None:
    recipe = str(ROOT / "launch" / "torchrun_by_hand.sh")
    runs = [tmp_path / f"disk{host.number}" for host in two]
    with contextlib.ExitStack() as stack:
        agents = []
        for host, run in zip(two, runs, strict=True):
            known = {"NODE": str(host.number), "NODES": "2", "NPROC": "1", "FIRST": two[0].address, "RUN_ID": "one"}
            agents.append(stack.enter_context(started(host, tmp_path, recipe, TRAIN, **known, RUNS=str(run))))
            time.sleep(LATE_S)
        assert [agent.wait(120) for agent in agents] == [0, 0], (tmp_path / "host0.txt").read_text()
    paths = [run / f"one-node{number}" for number, run in enumerate(runs)]
    alone = build(distprof.load(paths[0]))
    assert [row.status for row in alone.ranks] == ["complete", "missing"]
    result = build(distprof.load(*paths))
    assert [(row.host, row.status) for row in result.ranks] == [("host0", "complete"), ("host1", "complete")]
    assert (result.run.id, result.run.nnodes, result.run.attempts) == ("one", 2, [0])
    assert result.clock.verdict in ("aligned", "same_host")
    assert result.communication.unmatched == 0
    refused = subprocess.run(
        [sys.executable, "-m", "distprof", "report", str(paths[0]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "is a run directory and" in refused.stderr


def c10d(run: Path, host: Host, first: Host, *options: str, conf: str = "timeout=60") -> list[str]:
    """`distprof launch` on a host, with a rendezvous on the first; no name service knows them."""
    words = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first.address}:29400", "--rdzv-id", "two"]
    words += ["--local-addr", host.address, "--rdzv-conf", f"is_host={int(host is first)},{conf}", *options]
    return ["distprof", "launch", "--run-dir", str(run), "--no-window", *words, TRAIN, "--steps", "100000"]


def test_a_second_host_that_dies(two: list[Host], tmp_path: Path) -> None:
    run = tmp_path / "run"
    staged = ("--stage-dir", str(tmp_path / "stage"))
    with contextlib.ExitStack() as stack:
        first, _ = (stack.enter_context(started(host, tmp_path, *c10d(run, host, two[0], *staged))) for host in two)
        outputs = [tmp_path / f"host{host.number}.txt" for host in two]
        wait_until(lambda: all("under_way" in output.read_text() for output in outputs), 120, outputs[0].read_text)
        assert not list((run / "attempt0").glob("rank*"))  # the ranks write to their own disks
        time.sleep(2.0)
        die(two[1])
        assert first.wait(120) == 1
    assert "that it recorded" not in outputs[0].read_text()
    nodes = read_nodes(distprof.load(run).directory)
    assert {node.rank: node.ended is None for node in nodes} == {0: False, 1: True}
    left = [path for path in (tmp_path / "stage").iterdir() if list(path.glob("attempt0/rank00001*"))]
    assert len(left) == 1 == len(list((tmp_path / "stage").iterdir()))  # host 1's; those of host 0 were moved
    result = build(distprof.load(run, *left))
    assert [(row.host, row.status) for row in result.ranks] == [("host0", "complete"), ("host1", "partial")]
    assert all(row.count > 10 for row in result.steps.per_rank)
    reasons = "\n".join(row.reason for row in result.not_observed)
    assert "the launcher on host1 has left no end" in reasons
    report = json.loads((run / "report.json").read_text())  # host 0 made it, of what was there
    assert [row["status"] for row in report["ranks"]] == ["complete", "missing"]


def test_a_second_host_that_never_comes(two: list[Host], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(two[0], tmp_path, *c10d(run, two[0], two[0], conf="join_timeout=3")) as agent:
        assert agent.wait(60) == 1
    (node,) = read_nodes(RunDirectory(run))
    assert node.attempts == []
    assert node.ended is not None
    assert "RendezvousTimeout" in node.ended["error"]
    assert not list(run.glob("attempt*"))
