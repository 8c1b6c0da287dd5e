"""`distprof doctor`: each 'no' has its reason and, where there is one, its remedy."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from distprof.cli import checks, doctor
from distprof.cli.checks import Check, all_checks

Usage = namedtuple("Usage", "total used free")


def found(path: Path) -> dict[str, Check]:
    return {check.what: check for check in all_checks(path)}


def test_what_this_machine_can_do(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    seen = found(tmp_path)
    assert seen["torch"].answer == "yes" and torch.__version__ in seen["torch"].said
    assert "gloo" in seen["collectives"].said
    assert seen["cpu activity"].answer == "yes"
    assert (seen["cuda activity"].answer == "yes") == torch.cuda.is_available()
    assert {seen[what].answer for what in ("flight recorder", "arming", "clock probes")} == {"yes"}


def test_every_no_has_its_reason(tmp_path: Path) -> None:
    assert all(check.said for check in found(tmp_path).values())
    assert all(check.remedy for check in found(tmp_path).values() if check.answer == "bad")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - 10**8, 10**8))
    space = found(tmp_path / "not" / "made" / "yet")["disk space"]
    assert space.answer == "no"
    assert str(tmp_path) in space.said and "--no-window" in (space.remedy or "")


def test_a_python_that_ignores_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    isolated = tmp_path / "python"
    isolated.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    isolated.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(isolated))
    arming = found(tmp_path)["arming"]
    assert arming.answer == "bad" and "-I" in (arming.remedy or "")
    assert doctor.main(["--run-dir", str(tmp_path)]) == 1
    assert "bad" in capsys.readouterr().out


def test_no_stamps_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstamped(socket.socket):
        def recvmsg(self, *sizes: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:  # type: ignore[override]
            data, _, flags, address = super().recvmsg(*sizes)
            return data, [], flags, address

    monkeypatch.setattr(socket, "socket", Unstamped)
    assert found(tmp_path)["clock probes"].answer == "no"


def test_slurm_without_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in {
        "sbatch": "exit 0",
        "srun": "exit 0",
        "sacct": "echo 'slurm_persist_conn_open' >&2; exit 1",
    }.items():
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\n{body}\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm = found(tmp_path)["SLURM"]
    assert slurm.answer == "no"
    assert "slurm_persist_conn_open" in slurm.said and "accounting" in (slurm.remedy or "")


def test_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "srun", "sacct"):
        command = tmp_path / name
        command.write_text("#!/bin/sh\nexec sleep 60\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(checks, "_PATIENCE_S", 0.2)
    assert "no answer" in checks._slurm().said


def test_hostile_names_cannot_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "all_checks", lambda _: [Check("torch", "no", "a\x1b[31mb", "[red]c")])
    assert doctor.main(["--run-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[red]c" in out
