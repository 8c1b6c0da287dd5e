"""How fast traces are merged into one timeline, and in how much memory, beside loading and dumping them with `json`.

    python benchmarks/merge.py [--ranks 1,4,8] [--mb 30] [--traces FILE ...]

The traces are made: operators that nest, launches, kernels, flows, and collectives that match across the ranks; or they
are given. Figures are megabytes of uncompressed JSON per CPU second, and the peak of the resident memory of a process
that does nothing else. `write` is the timeline alone, as it is made after a report, `all` is `distprof merge`: reading,
aligning, analysing and writing. The peer reads the same files with `json.load`, joins their events as they are, and
dumps them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENDINGS = (".json.gz", ".pftrace")
LIMIT_MB_S = 50.0
BASE = 1_790_000_000_000_000_000
STEP_US = 50_000.0
PER_STEP = 600  # operators, each with its launch and its kernel


def write_trace(path: Path, rank: int, ranks: int, megabytes: float) -> None:
    """A trace of steps until it is as large."""
    info = {
        "rank": rank,
        "world_size": ranks,
        "backend": "nccl",
        "pg_config": [{"pg_name": "0", "ranks": [*range(ranks)]}],
    }
    head = {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": BASE, "displayTimeUnit": "ms"}
    with gzip.open(path, "wt", compresslevel=1) as file:
        written = file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        step = 0
        while written < megabytes * 1e6:
            text = ",\n".join(json.dumps(event, indent=2) for event in step_events(rank, ranks, step))
            written += file.write((",\n" if step else "") + text)
            step += 1
        file.write("\n]}")


def step_events(rank: int, ranks: int, step: int) -> list[dict[str, object]]:
    """What a rank records in one step."""
    host, start = 1000 + rank, step * STEP_US
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": host, "tid": host, "ts": start,
         "dur": STEP_US - 1, "args": {"External id": 1, "Record function id": 0, "Ev Idx": step}},
    ]  # fmt: skip
    for index in range(PER_STEP):
        number = step * PER_STEP + index + 1
        at = round(start + 80.0 * index + 0.125, 3)
        inside = {"External id": number, "Record function id": 0, "Ev Idx": number}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": host, "tid": host, "ts": at, "dur": 60.25,
             "args": {**inside, "Fwd thread id": 0, "Sequence number": number}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": host, "tid": host, "ts": at + 5, "dur": 50.0,
             "args": inside},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": host, "tid": host, "ts": at + 20,
             "dur": 8.5, "args": {"External id": number, "cbid": 211, "correlation": number}},
            {"ph": "s", "id": number, "pid": host, "tid": host, "ts": at + 20, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn(float const*, float*, int)", "pid": rank,
             "tid": 7, "ts": at + 30, "dur": 40.5, "args": {
                 "External id": number, "queued": 0, "device": rank, "context": 1, "stream": 7, "correlation": number,
                 "registers per thread": 122, "shared memory": 12288, "blocks per SM": 1.5, "warps per SM": 6.0,
                 "grid": [80, 8, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9}},
            {"ph": "f", "id": number, "pid": rank, "tid": 7, "ts": at + 30, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        ]  # fmt: skip
        if index % 100 == 99:
            late = 5.0 * ((rank + step) % ranks)
            args = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
                    "Group size": ranks, "dtype": "Float", "Process Group Name": "0", "Seq": number // 100,
                    "Process Group Ranks": str([*range(ranks)]), "device": rank, "stream": 20,
                    "correlation": number}  # fmt: skip
            events.append(
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
                 "pid": rank, "tid": 20, "ts": at + late, "dur": 60.0 - late, "args": args}
            )  # fmt: skip
    return events


def merge(output: Path, traces: list[Path]) -> None:
    """In a process of its own: merge, and print what it took."""
    from distprof.pipeline import build
    from distprof.report.timeline import write_timeline
    from distprof.trace.load import load

    run = load(*traces)
    result = build(run)
    begin = time.process_time()
    write_timeline(run, result, output)
    tell(write_s=time.process_time() - begin)


def merge_plainly(output: Path, traces: list[Path]) -> None:
    """In a process of its own: what a script of ten lines does."""
    events = []
    for path in traces:
        with gzip.open(path) as file:
            events += json.load(file)["traceEvents"]
    with gzip.open(output, "wt", compresslevel=1) as target:
        json.dump({"traceEvents": events}, target)
    tell()


def tell(**figures: float) -> None:
    """Print what this process took so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**figures, "all_s": time.process_time(), "peak_mib": peak}))


def measure(mode: str, output: Path, traces: list[Path]) -> dict[str, float]:
    """Run one merge in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    command = [sys.executable, __file__, "--child", mode, "--output", str(output), "--traces", *map(str, traces)]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(traces: list[Path], folder: Path) -> None:
    """Measure both sides on the same traces, and print."""
    megabytes = sum(len(gzip.decompress(path.read_bytes())) for path in traces) / 1e6
    peer = measure("peer", folder / "peer.json.gz", traces)
    print(f"{len(traces)} ranks, {megabytes:.0f} MB")
    print(f"  {'json':10} all {megabytes / peer['all_s']:5.1f} MB/s  peak {peer['peak_mib']:6.0f} MiB")
    for ending in ENDINGS:
        ours = measure("ours", folder / f"ours{ending}", traces)
        speed = f"write {megabytes / ours['write_s']:5.1f} MB/s  all {megabytes / ours['all_s']:5.1f} MB/s"
        ratios = f"{peer['all_s'] / ours['all_s']:.1f} times as fast, {ours['peak_mib'] / peer['peak_mib']:.2f} of it"
        print(f"  {ending:10} {speed}  peak {ours['peak_mib']:6.0f} MiB  ({ratios}; limit {LIMIT_MB_S:.0f} MB/s)")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,4,8", help="Numbers of ranks. Default: %(default)s.")
    parser.add_argument("--mb", type=float, default=30.0, help="Megabytes of a rank's trace. Default: %(default)g.")
    parser.add_argument("--traces", nargs="+", type=Path, default=[], help="Merge these instead.")
    parser.add_argument("--child", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        (merge if arguments.child == "ours" else merge_plainly)(arguments.output, arguments.traces)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.traces:
            compare(arguments.traces, folder)
            return
        for ranks in map(int, arguments.ranks.split(",")):
            traces = [folder / f"rank{rank}-of-{ranks}.json.gz" for rank in range(ranks)]
            for rank, path in enumerate(traces):
                write_trace(path, rank, ranks, arguments.mb)
            compare(traces, folder)


if __name__ == "__main__":
    main()
