"""What `distprof --help` and `import distprof` take, beside an empty Python.

python benchmarks/imports.py [--repeats 15]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import in_turn


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="Counted runs of each. Default: 15.")
    in_turn(
        {
            "python -c pass": (sys.executable, "-c", "pass"),
            "python -c 'import distprof'": (sys.executable, "-c", "import distprof"),
            "distprof --help": (Path(sys.executable).with_name("distprof"), "--help"),
        },
        parser.parse_args().repeats,
    )


if __name__ == "__main__":
    main()
