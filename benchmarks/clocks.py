"""What aligning the clocks costs: seconds and peak memory for 64, 128 and 256 ranks, each on a host of its own.

    python benchmarks/clocks.py                 prints a row for each, and fails where a limit is passed

Every rank takes part in 2,000 collectives; its clock is off by up to a minute and drifts by up to 50 parts per million.
Each size runs in a process of its own on two cores; the tables are made before the clock is started. The limit is on
the seconds of a core, which others on the machine lengthen less. There is no peer: no other tool bounds the clocks of a
training.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
import polars as pl

from distprof.clock.align import align
from distprof.clock.shift import corrections, shifted
from distprof.result import Group
from distprof.trace.tables import COLLECTIVES, EVENTS, STEPS, WINDOWS, ZONES, Tables, empty

SIZES = (64, 128, 256)
COLLECTIVES_EACH = 2_000
MOST_SECONDS = 10.0
MOST_BYTES = 2 << 30
BEGIN = 1_790_857_000_000_000_000


def made(ranks: int) -> Tables:
    """Collectives of `ranks` ranks, 50 ms apart: each comes up to 5 ms late, all end within 30 us."""
    draw = np.random.default_rng(7)
    shape = (COLLECTIVES_EACH, ranks)
    begin = np.arange(COLLECTIVES_EACH)[:, None] * 50_000_000
    start = begin + draw.integers(0, 5_000_000, shape)
    end = start.max(axis=1, keepdims=True) + 100_000 + draw.integers(0, 30_000, shape)
    offset, drift = draw.integers(-60_000_000_000, 60_000_000_000, ranks), draw.uniform(-50e-6, 50e-6, ranks)

    def local(times: np.ndarray) -> pl.Series:
        return pl.Series((BEGIN + times + offset + np.rint(times * drift).astype(np.int64)).ravel())

    count = COLLECTIVES_EACH * ranks
    collectives = pl.DataFrame(
        {
            "rank": np.tile(np.arange(ranks), COLLECTIVES_EACH),
            "group": np.zeros(count, dtype=np.int64),
            "seq": np.repeat(np.arange(COLLECTIVES_EACH), ranks),
            "kind": ["all_reduce"] * count,
            "bytes": np.full(count, 4096),
            "dtype": ["Float"] * count,
            "created": local(start),
            "started": local(start),
            "ended": local(end),
        }
    ).with_columns(pl.lit(None).alias(name) for name in ("step", "zone", "model", "bucket"))
    return Tables(
        ranks=list(range(ranks)),
        world_size=ranks,
        step_source="none",
        groups=[Group(id=0, name="0", desc=None, members=list(range(ranks)))],
        zones=empty(ZONES),
        steps=empty(STEPS),
        collectives=collectives.select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items()),
        events=empty(EVENTS),
        windows=empty(WINDOWS),
        training_thread={},
        facts={rank: {"host": f"host{rank}", "boot_id": str(rank)} for rank in range(ranks)},
    )


def measure(ranks: int) -> None:
    """In a process of its own: print the figures as JSON."""
    tables = made(ranks)
    begin, worked = time.perf_counter(), time.process_time()
    clock, _ = align(tables)
    aligned, done = time.perf_counter(), time.process_time()
    shifted(tables, corrections(clock))
    over = time.perf_counter()
    bounds = [row.bound_us for row in clock.ranks if row.bound_us is not None]
    assert len(bounds) == ranks, "a clock without a bound"
    figures = {
        "align_s": aligned - begin,
        "align_cpu_s": done - worked,
        "shift_s": over - aligned,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bound_us": max(bounds),
    }
    print(json.dumps(figures))


def main() -> int:
    """Measure all sizes.

    Returns:
        1 where a limit is passed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks:
        measure(options.ranks)
        return 0
    fine = True
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    print(f"{COLLECTIVES_EACH} collectives each, on {len(cores)} cores")
    for ranks in SIZES:
        command = [sys.executable, __file__, "--ranks", str(ranks)]
        environment = {**os.environ, "POLARS_MAX_THREADS": str(len(cores)), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        found = json.loads(done.stdout)
        fine &= found["align_cpu_s"] < MOST_SECONDS and found["peak_bytes"] < MOST_BYTES
        print(
            f"{ranks:4} ranks: aligned in {found['align_s']:.2f} s ({found['align_cpu_s']:.2f} of a core), "
            f"shifted in {found['shift_s']:.2f} s, peak {found['peak_bytes'] / (1 << 20):.0f} MiB, "
            f"largest bound {found['bound_us']:.0f} us"
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
