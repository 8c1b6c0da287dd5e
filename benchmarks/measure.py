"""What the benchmarks share: whole processes, timed in turn, since a shared machine is now fast and now slow."""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(os.environ.get("DISTPROF_PEERS") or ROOT / ".venv-peers") / "bin" / "python"
SHARED = Path(os.environ.get("DISTPROF_SHARED") or ROOT.parent / "shared")
DISTPROF = (sys.executable, "-m", "distprof")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process took: wall-clock and processor seconds, and the most memory of it and its children, in MB."""

    wall: float
    cpu: float
    peak: float


def run(command: Sequence[str | Path]) -> Taken:
    """Run a process to its end.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Taken(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


@cache
def _environment() -> dict[str, str]:
    """What a process is started with: it keeps the byte code of what it imports, in a folder of our own.

    Where PYTHONDONTWRITEBYTECODE is set, as in many containers, and packages were installed without byte code, each
    process compiles all that it imports: most of a second that no user pays twice. The folder spares the repository.
    """
    folder = tempfile.mkdtemp(prefix="distprof-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": folder}


def in_turn(commands: Mapping[str, Sequence[str | Path]], repeats: int) -> dict[str, Taken]:
    """Run commands in turn, after one run of each that does not count, print and return their medians."""
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, command in commands.items():
            took = run(command)
            if repeat:
                taken[name].append(took)
    medians = {}
    for name, runs in taken.items():
        wall, cpu, peak = (statistics.median(getattr(one, field) for one in runs) for field in ("wall", "cpu", "peak"))
        medians[name] = Taken(wall, cpu, peak)
        span = f"{min(one.wall for one in runs):.2f} to {max(one.wall for one in runs):.2f}"
        print(f"  {name:32} median {wall:6.2f} s of {repeats} ({span}), processor {cpu:6.2f} s, peak {peak:5.0f} MB")
    return medians


def compare(ours: Taken, peer: Taken) -> None:
    """Print by how much we are faster and smaller."""
    print(
        f"  {peer.wall / ours.wall:.1f} times faster, {peer.cpu / ours.cpu:.1f} times less processor time, "
        f"{ours.peak / peer.peak:.0%} of its peak memory"
    )
