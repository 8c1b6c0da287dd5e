"""What the benchmarks share: whole processes, timed in turn, since a shared machine is now fast and now slow."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Taken(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


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
