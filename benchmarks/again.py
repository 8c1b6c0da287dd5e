"""A report on a run directory of eight ranks, for the first time and again.

    python benchmarks/again.py [--repeats 5]

Whole processes in turn, `distprof report RUN`; for the first of them the digest is removed. Again, the report that lies
there is shown; on other steps (`--steps`) it is made anew from the digest, without its page and its timeline.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import DISTPROF, ROOT, in_turn

# In a process of its own: memory that this one once held would count as that of the processes that it starts.
_WRITE = """
import sys
from pathlib import Path
from tests.worlds import World, write
write(World(ranks=8, steps=400, windows=[(100, 300)]), Path(sys.argv[1]))
"""
_WITHOUT_DIGEST = """
import shutil, sys
from distprof.cli.main import main
shutil.rmtree(sys.argv[1], ignore_errors=True)
sys.exit(main(sys.argv[2:]))
"""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="Counted runs of each. Default: 5.")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name) / "run"
        subprocess.run([sys.executable, "-c", _WRITE, run_dir], cwd=ROOT, check=True)
        report = "report", run_dir
        print("Eight ranks, 400 steps, windows of 200")
        in_turn(
            {
                "distprof report, first": (sys.executable, "-c", _WITHOUT_DIGEST, run_dir / "digest", *report),
                "distprof report, again": (*DISTPROF, *report),
                "distprof report, other steps": (*DISTPROF, *report, "--steps", "50:350"),
            },
            repeats,
        )


if __name__ == "__main__":
    main()
