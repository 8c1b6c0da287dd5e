"""What can be observed on this machine: one small function per thing, each with the reason for its 'no'."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from distprof.run.activities import why_unavailable
from distprof.run.config import CONFIG_VARIABLE, inject_folder

_ROOMY = 2 * 2**30  # bytes; a window of a large model is some hundred MB per rank
_PATIENCE_S = 10.0
_SO_TIMESTAMPNS = 35  # Linux; Python's socket module has no name for it


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: its name.
        answer: `yes`; `no`: something cannot be observed; `bad`: distprof cannot work at all.
        said: what was found, or why not.
        remedy: what to do about a 'no'; None where nothing is to be done.
    """

    what: str
    answer: Literal["yes", "no", "bad"]
    said: str
    remedy: str | None = None


def all_checks(run_dirs: Path) -> list[Check]:
    """Look at everything; `run_dirs` is where runs would be kept."""
    try:
        import torch
    except ImportError as error:
        checks = [Check("torch", "bad", f"it cannot be imported: {error}", "install torch into this environment")]
    else:
        checks = [
            _torch(torch),
            _backends(torch),
            *(_activity(torch, name) for name in ("cpu", "cuda", "xpu")),
            _flight_recorder(torch),
        ]
    return [*checks, _arming(), _timestamps(), _slurm(), _space(run_dirs)]


def _torch(torch: ModuleType) -> Check:
    version = torch.version
    built = {"CUDA": version.cuda, "ROCm": version.hip, "XPU": getattr(version, "xpu", None)}
    devices = ", ".join(f"{name} {number}" for name, number in built.items() if number) or "CPU only"
    return Check("torch", "yes", f"{torch.__version__}, built for {devices}; Python {sys.version.split()[0]}")


def _backends(torch: ModuleType) -> Check:
    distributed = torch.distributed
    if not distributed.is_available():
        return Check("collectives", "bad", "torch.distributed is not in this build", "install a build that has it")
    known = {
        "gloo": distributed.is_gloo_available,
        "nccl": distributed.is_nccl_available,
        "mpi": distributed.is_mpi_available,
        "xccl": getattr(distributed, "is_xccl_available", bool),
    }
    return Check("collectives", "yes", "by " + ", ".join(name for name, there in known.items() if there()))


def _activity(torch: ModuleType, name: str) -> Check:
    what = f"{name} activity"
    reason = why_unavailable(name, torch)
    if reason is None:
        return Check(what, "yes", "operators of the host" if name == "cpu" else "kernels and copies of the device")
    said, _, remedy = reason.partition(": ")
    return Check(what, "no", said, remedy or None)


def _flight_recorder(torch: ModuleType) -> Check:
    if getattr(torch._C._distributed_c10d, "_dump_fr_trace", None) is None:
        said = "this build keeps no record of collectives: groups, sizes and arrivals are known inside windows only"
        return Check("flight recorder", "no", said, "install torch 2.8 or later")
    return Check("flight recorder", "yes", "collectives of the whole run are recorded")


def _arming() -> Check:
    what = "arming"
    # With a configuration in its environment our sitecustomize waits for torch, in front of all that finds modules.
    program = "import sys; print(type(sys.meta_path[0]).__name__)"
    environment = {**os.environ, "PYTHONPATH": str(inject_folder()), CONFIG_VARIABLE: "{}"}
    said, failed = _answer([sys.executable, "-c", program], environment)
    if failed is None and said == "_WhenTorchIsImported":
        return Check(what, "yes", f"{sys.executable} loads what records a rank")
    reason = failed or "it started without our sitecustomize"
    return Check(
        what, "bad", f"{sys.executable}: {reason}", "start Python without -I, -E and -S, and unset PYTHONSAFEPATH"
    )


def _timestamps() -> Check:
    what = "clock probes"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            probe.bind(("127.0.0.1", 0))
            probe.settimeout(1)
            probe.sendto(b"?", probe.getsockname())
            _, ancillary, _, _ = probe.recvmsg(16, 64)
        except OSError as error:
            return Check(what, "no", f"no datagram comes through on loopback: {error}", "look at the firewall")
    if not ancillary:
        return Check(what, "no", "the kernel does not stamp datagrams: bounds of clocks are some ten times wider")
    return Check(what, "yes", "datagrams are stamped by the kernel")


def _slurm() -> Check:
    what = "SLURM"
    missing = [name for name in ("sbatch", "srun", "sacct") if shutil.which(name) is None]
    if missing:
        remedy = "none needed but for `distprof submit`: run it on a login node of the cluster"
        return Check(what, "no", f"{', '.join(missing)}: not on the PATH", remedy)
    _, failed = _answer(["sacct", "--noheader", "--allocations", "--starttime=now"], dict(os.environ))
    if failed is not None:
        remedy = "`distprof submit --wait` cannot see cancelled jobs without accounting: ask for slurmdbd"
        return Check(what, "no", f"sacct: {failed}", remedy)
    return Check(what, "yes", "sbatch, srun and accounting work")


def _space(run_dirs: Path) -> Check:
    there = next(folder for folder in (run_dirs.absolute(), *run_dirs.absolute().parents) if folder.exists())
    what = "disk space"
    if not os.access(there, os.W_OK):
        return Check(what, "bad", f"{there} cannot be written", "give `--run-dir` a folder that can")
    free = shutil.disk_usage(there).free
    said = f"{free / 2**30:.1f} GiB free in {there}"
    if free < _ROOMY:
        return Check(what, "no", said, "make room, give `--run-dir` another disk, or record with `--no-window`")
    return Check(what, "yes", said)


def _answer(command: list[str], environment: dict[str, str]) -> tuple[str, str | None]:
    """What a command printed, and in one line why it failed; None if it did not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer in {_PATIENCE_S:.0f} s"
    except OSError as error:
        return "", error.strerror or str(error)
    lines = done.stderr.strip().splitlines()
    return done.stdout.strip(), None if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")
