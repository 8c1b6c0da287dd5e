"""What `distprof launch` adds to the start of a launch: the same one-rank script under torchrun and under distprof.

    python benchmarks/startup.py [--runs 7]      prints both medians, their ratio and their difference

The script only imports torch.distributed and ends, so that nearly all of the time is start-up. The two take turns,
after one run of each that is not counted; no report is made, since that is not start-up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = "import torch.distributed\n"
TORCHRUN = ("torch.distributed.run",)
OURS = ("distprof", "launch", "--no-report")


def seconds(command: tuple[str, ...], folder: Path) -> float:
    """Wall-clock seconds of one launch.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *command, "--standalone", "--nproc-per-node", "1", "script.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="Counted runs of each. Default: 7.")
    runs = parser.parse_args().runs
    measured: dict[tuple[str, ...], list[float]] = {TORCHRUN: [], OURS: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        for run in range(runs + 1):
            for command, taken in measured.items():
                took = seconds(command, folder)
                if run:
                    taken.append(took)
    medians = [statistics.median(taken) for taken in measured.values()]
    for command, median, taken in zip(("torchrun", "distprof launch"), medians, measured.values(), strict=True):
        print(f"{command:16} median {median:.2f} s of {runs} ({min(taken):.2f} to {max(taken):.2f})")
    print(f"ratio {medians[1] / medians[0]:.2f}, difference {medians[1] - medians[0]:.2f} s")


if __name__ == "__main__":
    main()
