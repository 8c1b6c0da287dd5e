"""A launch that is told to end: its ranks end with it, nothing stays behind, and what was recorded can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import _terminate_process_handler

import distprof
from distprof.cli import launch as cli
from distprof.pipeline import build
from distprof.report import make
from tests.launches import ROOT

FOREVER = str(ROOT / "tests" / "scripts" / "forever.py")
MARK = "LAUNCHED_BY_TEST"
WITHIN_S = 60


class Job:
    """A launcher under way, and all that descends from it: every process inherits a mark in its environment."""

    def __init__(self, command: list[str]) -> None:
        self._mark = uuid.uuid4().hex
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", *command, "--standalone", "--nproc-per-node", "2", FOREVER],
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a signal meant for one of them must not reach the test
        )
        self.output = ""

    def wait_until_under_way(self) -> None:
        assert self.launcher.stdout is not None
        while self.output.count("is under way") < 2:
            line = self.launcher.stdout.readline()
            assert line, self.output
            self.output += line

    def end(self) -> int:
        """Wait for the launcher's end; its exit status."""
        self.output += self.launcher.communicate(timeout=WITHIN_S)[0]
        return self.launcher.returncode

    def alive(self) -> dict[int, str]:
        """Processes of this job that are there now, the launcher included, with their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(folder.name)
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def kill(self) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def job(command: list[str]) -> Iterator[Job]:
    """A job whose ranks train; whatever is left of it at the end is killed."""
    running = Job(command)
    try:
        running.wait_until_under_way()
        assert len(running.alive()) >= 5  # the launcher, two ranks and their loaders' workers
        yield running
    finally:
        running.kill()
        running.end()


@pytest.fixture(scope="module")
def torchruns_status() -> int:
    """torchrun's exit status after a signal; it is the same for all that it handles."""
    with job(["torch.distributed.run"]) as plain:
        plain.launcher.send_signal(signal.SIGINT)
        return plain.end()


@pytest.mark.launch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_ranks_and_leaves_a_report(
    number: signal.Signals, tmp_path: Path, torchruns_status: int
) -> None:
    with job(["distprof", "launch", "--run-dir", str(tmp_path / "run")]) as ours:
        ours.launcher.send_signal(number)
        status = ours.end()
        assert ours.alive() == {}
    assert status == torchruns_status
    assert f"got signal: {number.value}" in ours.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [row["status"] == "missing" for row in report["ranks"]] == [False, False]
    assert report["steps"]["steady"]["count"] > 0
    ended = json.loads((tmp_path / "run" / "run.json").read_text())["ended"]
    assert "SignalException" in ended["error"]
    assert ended["absent"] == {}


@pytest.mark.launch
def test_a_killed_launcher_leaves_recordings_that_can_be_read(tmp_path: Path) -> None:
    with job(["distprof", "launch", "--run-dir", str(tmp_path / "run")]) as ours:
        ours.launcher.kill()
        time.sleep(1.5)
        assert len(ours.alive()) >= 4  # as under torchrun, its ranks train on
        ours.kill()
    result = build(distprof.load(tmp_path / "run"))
    assert [row.status for row in result.ranks] == ["partial", "partial"]
    assert result.steps.steady.count > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("failed", [False, True])
def test_a_signal_during_the_report_stops_it_and_changes_nothing_else(
    number: signal.Signals,
    failed: bool,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launched(*_: object) -> None:
        signal.signal(number, _terminate_process_handler)  # as torch leaves it, and raises an ordinary exception
        if failed:
            raise RuntimeError("a rank failed")

    def report(path: Path) -> None:
        with suppress(Exception):  # as something inside a report may
            os.kill(os.getpid(), number)
            time.sleep(WITHIN_S)

    monkeypatch.setattr(cli, "launch", launched)
    monkeypatch.setattr(make, "make_report", report)
    before = signal.getsignal(number)
    begin = time.monotonic()
    try:
        with pytest.raises(RuntimeError, match="a rank failed") if failed else nullcontext():
            assert cli.main(["--run-dir", str(tmp_path / "run"), "train.py"]) == 0
    finally:
        signal.signal(number, before)
    assert time.monotonic() - begin < 10
    assert f"interrupted; `distprof report {tmp_path / 'run'}` makes the report" in capsys.readouterr().err
