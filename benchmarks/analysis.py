"""How long the analysis takes once a run is read: seconds by ranks and by events of each rank's Kineto window.

    python benchmarks/analysis.py [--ranks 2 4 8] [--events 25000 100000] [--repeats 3]      prints a table

The runs are synthetic: one window of a data-parallel training whose second rank is late, with as many events as asked
for, and zones and collectives of a run that is twice as long. Reading the files is not in it. The best of several
repeats counts, since everything else is noise of the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1]))

import distprof
from distprof.pipeline import build
from distprof.trace.load import Run
from tests.worlds import Delay, World, write

WINDOW = 40


def run_of(ranks: int, events: int, folder: Path) -> Run:
    """A run whose ranks have `events` events each."""
    delay = Delay(rank=1, kind="forward", ms=10)
    world = World(ranks=ranks, steps=2 * WINDOW, windows=[(10, 10 + WINDOW)], delays=[delay])
    write(world, folder)
    run = distprof.load(folder)
    # The world's operators stand for many small ones each.
    table = run.tables.events
    times = -(-events * ranks // table.height)
    length = (pl.col("end") - pl.col("start")) // times
    start = pl.col("start") + length * pl.col("part")
    parts = table.join(pl.DataFrame({"part": range(times)}), how="cross").with_columns(start=start, end=start + length)
    cut = parts.select(table.columns).sort("rank", "window", "start").group_by("rank", maintain_order=True).head(events)
    return replace(run, tables=replace(run.tables, events=cut.select(table.columns)))


def seconds(run: Run, repeats: int) -> float:
    """The best time of `build`."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        build(run)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--events", type=int, nargs="+", default=[25_000, 100_000], help="Of each rank.")
    parser.add_argument("--repeats", type=int, default=3, help="Of which the best counts. Default: 3.")
    options = parser.parse_args()
    print("ranks" + "".join(f"{events:>12,} events" for events in options.events))
    for ranks in options.ranks:
        row = f"{ranks:5}"
        for events in options.events:
            with tempfile.TemporaryDirectory() as name:
                row += f"{seconds(run_of(ranks, events, Path(name) / 'run'), options.repeats):>17.2f} s"
        print(row)


if __name__ == "__main__":
    main()
