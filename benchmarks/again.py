"""A report on a run directory of eight ranks, for the first time and again, when it has a digest.

    python benchmarks/again.py [--repeats 5]

Whole processes in turn, `distprof report RUN --json FILE`; for the first of them the digest is removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import DISTPROF, in_turn
from tests.worlds import World, write

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
        write(World(ranks=8, steps=400, windows=[(100, 300)]), run_dir)
        report = "report", run_dir, "--json", Path(name) / "report.json"
        print("Eight ranks, 400 steps, windows of 200")
        in_turn(
            {
                "distprof report, first": (sys.executable, "-c", _WITHOUT_DIGEST, run_dir / "digest", *report),
                "distprof report, again": (*DISTPROF, *report),
            },
            repeats,
        )


if __name__ == "__main__":
    main()
