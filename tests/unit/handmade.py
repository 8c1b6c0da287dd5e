"""Traces made by hand: events and files as torch writes them. Times are microseconds since `BASE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE = 1_790_857_026_000_000_000
Event = dict[str, Any]


def mark(number: int, ts: float, dur: float, *, pid: int = 1000) -> Event:
    return span(f"ProfilerStep#{number}", ts, dur, pid=pid)


def span(name: str, ts: float, dur: float, *, pid: int = 1000, cat: str = "user_annotation", **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, *, stream: int = 7, **args: Any) -> Event:
    args = {"device": 0, "stream": stream, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def copy(name: str, ts: float, dur: float, *, stream: int = 7, **args: Any) -> Event:
    return {**kernel(name, ts, dur, stream=stream, **args), "cat": "gpu_memcpy"}


def operator(name: str, ts: float, dur: float, *, pid: int = 1000) -> Event:
    return span(name, ts, dur, pid=pid, cat="cpu_op")


def call(name: str, ts: float, dur: float, *, pid: int = 1000, cat: str = "cuda_runtime", **args: Any) -> Event:
    return span(name, ts, dur, pid=pid, cat=cat, **args)


def launch(ts: float, correlation: int, *, pid: int = 1000) -> Event:
    return call("cudaLaunchKernel", ts, 3, pid=pid, correlation=correlation)


def nccl(ts: float, dur: float, *, stream: int = 20, **args: Any) -> Event:
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts, dur, stream=stream, **args)


def write_trace(
    path: Path, events: list[Event], *, rank: int | None = 0, world_size: int | None = 2, **header: Any
) -> Path:
    """Write a trace; without a rank there is no `distributedInfo`."""
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}} if rank is not None else {}
    header = {"schemaVersion": 1, **info, "baseTimeNanoseconds": BASE, **header}
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path
