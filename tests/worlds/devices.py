"""Traces of a training on devices, as a job of other people's would leave them: as many kernels as one likes.

Each step has the shape of a recommendation model's: compute between five all-to-alls and three all-reduces, each of
which ends on all ranks together. One rank is late at each of them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BEGIN_US = 1_694_128_201_000_000
_COLLECTIVES = ("SendRecv", "SendRecv", "AllReduce", "SendRecv", "AllReduce", "SendRecv", "SendRecv", "AllReduce")
_KERNEL_US = 4
_LATE_US = 300
_TRANSFER_US = 200


def write_device_traces(folder: Path, *, ranks: int, steps: int, kernels: int, late: int) -> None:
    """Write one gzipped trace per rank, `worker<rank>.pt.trace.json.gz`.

    Args:
        kernels: of each step that compute.
        late: the rank that arrives last at each collective.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        header = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "traceEvents": list(_events(steps, kernels, _LATE_US if rank == late else 0)),
        }
        text = json.dumps(header, indent=1).encode()
        (folder / f"worker{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text, compresslevel=6, mtime=0))


def _events(steps: int, kernels: int, late: int) -> Iterator[dict[str, Any]]:
    ids = iter(range(1, 1 << 40))
    share = kernels // len(_COLLECTIVES)
    now = _BEGIN_US
    for step in range(steps):
        begin = now
        for which, collective in enumerate(_COLLECTIVES):
            for number in range(share):
                name = f"aten::addmm_{number % 40}"
                yield from _launched(name, f"void at::native::kernel_{number % 40}<4, float>(int)", now, 7, next(ids))
                now += _KERNEL_US + 1
            arrives = now + late
            name = f"ncclKernel_{collective}_RING_LL_Sum_float(ncclWorkElem)"
            ends = now + _LATE_US + _TRANSFER_US
            yield from _launched("record_param_comms", name, arrives, 20 + which % 2, next(ids), length=ends - arrives)
            now = ends + 10
        yield _complete(f"ProfilerStep#{step}", "user_annotation", 100, begin, now - begin, args={"External id": step})


def _launched(
    operator: str, kernel: str, at: int, stream: int, number: int, *, length: int = _KERNEL_US
) -> Iterator[dict[str, Any]]:
    """An operator, the call with which it launches a kernel, and the kernel."""
    shapes = {"External id": number, "Input Dims": [[128, 64], [64, 64]], "Input type": ["float", "float"]}
    yield _complete(operator, "cpu_op", 100, at - 3, 3, args=shapes)
    launch = {"cbid": 211, "correlation": number, "External id": number}
    yield _complete("cudaLaunchKernel", "cuda_runtime", 100, at - 2, 1, args=launch)
    args = {"device": 0, "context": 1, "stream": stream, "correlation": number, "registers per thread": 32}
    more = {"shared memory": 0, "grid": [128, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 40}
    yield _complete(kernel, "kernel", stream, at, length, args=args | more)


def _complete(name: str, cat: str, tid: int, ts: int, dur: int, *, args: dict[str, Any]) -> dict[str, Any]:
    pid = 0 if cat == "kernel" else 4242
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
