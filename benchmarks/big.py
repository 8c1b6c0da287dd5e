"""Traces of some GB: time and memory by size.

    python benchmarks/big.py [--gb 0.25 1 4]

Each is one rank's, gzipped, made of steps whose answer is known; the report must give it. Of more than two million
events those of operators on the host are left out, and the report says so: from there on an event costs less.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import DISTPROF, SHARED, run

_GENERATOR = SHARED / "cases" / "gen_big" / "gen_big.py"
_BYTES_PER_EVENT = 142
_PER_STEP = 200
_COMPUTE_MS = 6.0
_COMM_MS = 1.5


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[0.25, 1, 4], help="Sizes, unpacked. Default: 0.25 1 4.")
    for size in parser.parse_args().gb:
        steps = int(size * 1e9 / _BYTES_PER_EVENT / _PER_STEP)
        with tempfile.TemporaryDirectory() as name:
            folder, report = Path(name) / "traces", Path(name) / "report.json"
            make = (sys.executable, _GENERATOR, folder, "1", str(steps * _PER_STEP), "gz")
            subprocess.run(make, check=True)
            taken = run([*DISTPROF, "report", folder, "--json", report])
            [totals] = json.loads(report.read_text())["totals"]
        assert math.isclose(totals["compute"], steps * _COMPUTE_MS), totals
        assert math.isclose(totals["exposed"], steps * _COMM_MS), totals
        events = steps * _PER_STEP
        rate = taken.cpu / events * 1e6
        print(
            f"{size:5.2f} GB, {events:9} events: {taken.wall:6.1f} s, processor {taken.cpu:6.1f} s "
            f"({rate:.2f} us per event), peak {taken.peak:5.0f} MB"
        )


if __name__ == "__main__":
    main()
