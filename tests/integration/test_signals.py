"""A launch that is told to end: its ranks end with it, nothing stays behind, and what was recorded can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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
from tests.running import WITHIN_S, Job, job

FOREVER = str(ROOT / "tests" / "scripts" / "forever.py")


@contextmanager
def training(*words: str) -> Iterator[Job]:
    """A job whose two ranks train."""
    with job(*words, "--standalone", "--nproc-per-node", "2", FOREVER) as running:
        running.wait_until("is under way", 2)
        assert len(running.alive()) >= 5  # the launcher, two ranks and their loaders' workers
        yield running


@pytest.fixture(scope="module")
def torchruns_status() -> int:
    """torchrun's exit status after a signal; it is the same for all that it handles."""
    with training("torch.distributed.run") as plain:
        plain.launcher.send_signal(signal.SIGINT)
        return plain.end()


@pytest.mark.launch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_ranks_and_leaves_a_report(
    number: signal.Signals, tmp_path: Path, torchruns_status: int
) -> None:
    with training("distprof", "launch", "--run-dir", str(tmp_path / "run")) as ours:
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
    with training("distprof", "launch", "--run-dir", str(tmp_path / "run")) as ours:
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


REPORT = """
import os, signal, sys
from pathlib import Path
from distprof.cli.launch import report
from distprof.report import make
from distprof.run.directory import RunDirectory
def interrupted(path):
    exec("os.kill(os.getpid(), signal.SIGTERM); signal.pause()")  # as while a module makes its dataclasses
make.make_report = interrupted
report(RunDirectory(Path("run")))
sys.exit(7)
"""


def test_a_signal_while_the_report_is_imported_does_not_change_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "launched.py").write_text(REPORT)
    command = [sys.executable, "-m", "launched"]  # as `python -m distprof`: Python looks back only there
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 7, done.stderr
    assert "interrupted; `distprof report run` makes the report" in done.stderr
