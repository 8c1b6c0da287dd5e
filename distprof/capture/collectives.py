"""Draining torch's flight recorder: every collective of the whole run, with nothing added to the training.

The recorder is a ring. A dump returns all of it and costs about 15 us per entry with the interpreter's lock held, so
it is made rarely, in the training thread, right after a step, where its cost is known and marked as ours.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import time
from typing import Any

import torch

from distprof.run.config import ring_size
from distprof.run.files import Stream

SCHEMA = "distprof.collectives.v1"
_UNKNOWN_RATE_TICKS = 8  # until collectives were seen their rate is not known, and reading an empty ring costs nothing
_AT_LEAST_NS = 2_000_000_000
_PAUSE_S = 0.001
_COST_FACTOR = 100  # at most a hundredth of the time goes into dumps, unless entries would be lost

_ELEMENT_BYTES = {
    name: getattr(torch, attribute).itemsize
    for name, attribute in {
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Half": "float16",
        "Float": "float32",
        "Double": "float64",
        "ComplexHalf": "complex32",
        "ComplexFloat": "complex64",
        "ComplexDouble": "complex128",
        "Bool": "bool",
        "BFloat16": "bfloat16",
        "Float8_e4m3fn": "float8_e4m3fn",
        "Float8_e5m2": "float8_e5m2",
    }.items()
}


class FlightRecorder:
    """Appends new entries of torch's flight recorder to the rank's stream, each once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ring = ring_size(os.environ)
        self._next_record = 0
        self._last_drain = 0
        self._last_cost = 0
        self._per_tick = 0.0
        self._ticks = 0
        self.lost = 0
        self.drains = 0
        self.spent_ns = 0

    def due(self, now: int) -> bool:
        """Whether a drain should be made at this step boundary (monotonic ns)."""
        self._ticks += 1
        if self._per_tick == 0 and self._ticks >= _UNKNOWN_RATE_TICKS:
            return True
        waited = now - self._last_drain
        if waited >= max(_AT_LEAST_NS, _COST_FACTOR * self._last_cost):
            return True
        return self._per_tick * self._ticks >= self._ring / 2

    def drain(self, now: int) -> None:
        """Append what is new.

        Raises:
            OSError: the stream cannot be written.
        """
        entries = _dump()
        if entries:
            self.lost += max(0, entries[0]["record_id"] - self._next_record)
        new = [entry for entry in entries if entry["record_id"] >= self._next_record]
        if new:
            self._next_record = new[-1]["record_id"] + 1
            self._stream.append(_columns(new))
        self._per_tick = max(self._per_tick, len(new) / max(1, self._ticks))
        self._ticks = 0
        self.drains += 1
        self._last_drain = now

    def charge(self, cost_ns: int) -> None:
        """Tell what the last drain cost, in ns."""
        self._last_cost = cost_ns
        self.spent_ns += cost_ns


def settled(patience_s: float) -> bool:
    """Whether gloo's threads have left every collective of this process, after waiting at most so long for it.

    A wait for a collective returns before the thread that ran it has written the end of its event. If the profiler is
    stopped in between, that thread writes into memory that was freed, and the process dies of it later. Other backends
    write no such end. Send and receive are not in the recorder and not waited for.
    """
    c10d = getattr(torch._C, "_distributed_c10d", None)
    if not hasattr(c10d, "_dump_fr_trace"):
        return True
    deadline = time.monotonic() + patience_s
    while not all(entry.get("retired", True) for entry in _dump() if entry["profiling_name"].startswith("gloo:")):
        if time.monotonic() >= deadline:
            return False
        select.select([], [], [], _PAUSE_S)
    return True


def _dump() -> list[dict[str, Any]]:
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        raise RuntimeError("this torch has no flight recorder for its backend")
    # Made in this process a moment ago by torch itself; the JSON form takes twice as long.
    return list(pickle.loads(dump(True, False, False)).get("entries", ()))


def _columns(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        "record": [entry["record_id"] for entry in entries],
        "group": [entry["process_group"][0] for entry in entries],
        "seq": [entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"] for entry in entries],
        "op": [entry["profiling_name"] for entry in entries],
        "bytes": [_bytes(entry) for entry in entries],
        "dtype": [(entry["input_dtypes"] or [""])[0] for entry in entries],
        "created": [entry["time_created_ns"] for entry in entries],
        # What the recorder tells is when a poll on the host noticed that a device had begun and was done: up to a
        # watchdog's pause too late, or the moment of this dump. It tells nothing of gloo's.
        "started": [None] * len(entries),
        "ended": [None] * len(entries),
        "p2p": [entry["is_p2p"] for entry in entries],
    }


def _bytes(entry: dict[str, Any]) -> int | None:
    """Bytes handed in by this rank; None where a dtype's size is not known."""
    total = 0
    for shape, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=False):
        if dtype not in _ELEMENT_BYTES:
            return None
        total += math.prod(shape) * _ELEMENT_BYTES[dtype]
    return total


def process_groups() -> list[dict[str, Any]]:
    """Process groups that exist now: name, description, global ranks and backend."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return []
    return [
        {
            "name": group["pg_name"],
            "desc": group["pg_desc"],
            "ranks": list(group["ranks"]),
            "backend": group["backend_config"],
        }
        for group in dist.distributed_c10d._get_all_pg_configs()
    ]
