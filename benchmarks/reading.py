"""Reading and reporting traces, beside HolisticTraceAnalysis, which only loads them: whole processes, in turn.

    python benchmarks/reading.py [--repeats 5]

First one trace of 54 MB, of a V100 (216,092 events), then eight ranks of 4 MB each. At last, in this process, how many
MB of JSON become tables in a second of one processor. `make test` sets up what the peer needs.

Where other programs use the machine, processor time tells more than the time on the wall. It is that of a process and
its children; the peak is that of the largest of them.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import DISTPROF, PEERS, SHARED, compare, in_turn
from tests.worlds.devices import write_device_traces

_HTA = "import sys; from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_dir=sys.argv[1])"
_V100 = SHARED / "traces" / "single" / "v100-216k-events.json.gz"


def beside_the_peer(title: str, folder: Path, repeats: int) -> None:
    """Compare the report on a folder of traces with the peer's loading."""
    print(title)
    medians = in_turn(
        {
            "HolisticTraceAnalysis, load": (PEERS, "-c", _HTA, folder),
            "distprof report": (*DISTPROF, "report", folder),
        },
        repeats,
    )
    peer, ours = medians.values()
    compare(ours, peer)


def throughput(repeats: int) -> None:
    """MB of JSON per second of one processor, from the gzipped file to tables."""
    from distprof.trace.kineto import read_trace

    size = len(gzip.decompress(_V100.read_bytes()))
    taken = []
    for repeat in range(repeats + 1):
        begin = time.process_time()
        read_trace(_V100)
        if repeat:
            taken.append(time.process_time() - begin)
    median, best = (size / seconds / 1e6 for seconds in (statistics.median(taken), min(taken)))
    print(f"From gzip to tables\n  {median:.0f} MB of JSON per second of a processor (best {best:.0f})")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="Counted runs of each. Default: 5.")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        one, eight = Path(name) / "one", Path(name) / "eight"
        one.mkdir()
        shutil.copy(_V100, one)
        write_device_traces(eight, ranks=8, steps=4, kernels=1000, late=5)
        beside_the_peer("One trace of 54 MB", one, repeats)
        beside_the_peer("Eight ranks of 4 MB each", eight, repeats)
    throughput(repeats)


if __name__ == "__main__":
    main()
