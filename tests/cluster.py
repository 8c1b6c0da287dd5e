"""The tests' own SLURM (`slurm_cluster.sh`): starting it, and jobs on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import skip_but_in_ci
from tests.launches import ROOT

_SCRIPT = ROOT / "tests" / "slurm_cluster.sh"
_ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")


@dataclass(frozen=True)
class Cluster:
    """A SLURM that runs, and a folder that its nodes share."""

    environment: dict[str, str]
    folder: Path

    def run(self, *words: str, timeout_s: float = 240, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command that finds the cluster, in the folder, to its end."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, *words: str) -> Job:
        """`distprof submit` with these words."""
        done = self.run(sys.executable, "-m", "distprof", "submit", *words)
        assert done.returncode == 0, done.stderr
        told = dict(re.findall(r"^(run|job|then): +(.+)$", done.stdout, re.MULTILINE))
        after = re.search(r"job (\d+) does", told["then"])
        assert after is not None
        return Job(self, told["job"], Path(told["run"]), after[1])

    def batch(self, *words: str, **variables: str) -> str:
        """`sbatch` with these words; the job's id."""
        done = self.run("sbatch", "--parsable", *words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job_id: str) -> str:
        """A job's state; of an array that of its task that is least far."""
        states = re.findall(r"JobState=(\w+)", self.run("scontrol", "show", "job", "-o", job_id).stdout)
        assert states, job_id
        return next((state for state in states if state not in _ENDED), states[0])

    def fail(self, node: str) -> None:
        """Cut a node's power."""
        self._script("fail", node)

    def repair(self, node: str) -> None:
        """Start it again; it is idle afterwards."""
        self._script("repair", node)

    def _script(self, command: str, node: str) -> None:
        state = Path(self.environment["SLURM_CONF"]).parents[1]
        done = self.run(str(_SCRIPT), command, str(state), node)
        assert done.returncode == 0, done.stderr

    def wait_for_end(self, job_id: str, within_s: float = 180) -> str:
        """Wait until a job is over; its state."""
        wait_until(lambda: self.state(job_id) in _ENDED, within_s, job_id)
        return self.state(job_id)


@dataclass(frozen=True)
class Job:
    """A job that `distprof submit` submitted.

    Attributes:
        after: the job that makes the report if this one is killed.
    """

    cluster: Cluster
    job_id: str
    run: Path
    after: str

    def log(self, stream: str = "out") -> str:
        """What it has printed so far, on all nodes."""
        return "".join(path.read_text() for path in (self.run / "submit").glob(f"{self.job_id}_*_log.{stream}"))

    def wait_until_under_way(self) -> None:
        """Wait until `on_cluster.py` is some steps far."""
        wait_until(lambda: "under_way" in self.log(), 120, self.log)

    def report(self) -> dict[str, Any]:
        """The report, once the job, and the one after it, are over."""
        self.cluster.wait_for_end(self.job_id)
        wait_until(lambda: "report.json" in {path.name for path in self.run.iterdir()}, 90, self.log)
        return json.loads((self.run / "report.json").read_text())  # type: ignore[no-any-return]


def wait_until(holds: Callable[[], bool], within_s: float, otherwise: object) -> None:
    """Wait until something holds; that it does not in time is a failure that shows `otherwise`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, otherwise() if callable(otherwise) else otherwise
        time.sleep(0.2)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A SLURM, for as long as the block lasts.

    Args:
        folder: what its nodes share, for the runs.
    """
    if os.geteuid() != 0:
        skip_but_in_ci("a SLURM of our own needs root")
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") and not shutil.which("apt-get"):
        skip_but_in_ci(
            "a SLURM of our own needs Debian's packages slurmctld, slurmd, slurmdbd, or apt-get to install them"
        )
    state = Path(tempfile.mkdtemp(prefix="dp-slurm-"))  # short: it holds sockets
    try:
        up = subprocess.run([_SCRIPT, "up", state], capture_output=True, text=True, timeout=600, check=False)
        if up.returncode != 0:
            skip_but_in_ci(f"no SLURM could be started: {up.stderr.strip()[-500:]}")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the recipes call distprof, python and torchrun
        configured = {"SLURM_CONF": str(state / "etc" / "slurm.conf"), "PATH": path, "OMP_NUM_THREADS": "1"}
        yield Cluster({**ours, **configured}, folder)
    finally:
        subprocess.run([_SCRIPT, "down", state], capture_output=True, timeout=120, check=False)
        shutil.rmtree(state, ignore_errors=True)
