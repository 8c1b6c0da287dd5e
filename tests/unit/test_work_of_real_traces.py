"""Operators, kernels and copies of other people's jobs, against what their files say when they are read naively."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import distprof
from distprof.analyze.inputs import Inputs, prepare
from distprof.analyze.memory import memory
from distprof.analyze.operators import kernels, operators
from distprof.clock.align import align


@cache
def prepared(path: Path) -> Inputs:
    tables = distprof.load(path).tables
    return prepare(tables, align(tables, recorded=False)[0])


def events_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def naive(events: list[dict[str, Any]], begin: float, end: float) -> tuple[dict[str, float], dict[str, int]]:
    """Own time (us) and calls by name of the operators that begin in [begin, end), by a stack for each thread."""
    own: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    stacks: dict[Any, list[tuple[float, str]]] = defaultdict(list)
    chosen = [
        event for event in events if event.get("cat") == "cpu_op" and event["ph"] == "X" and begin <= event["ts"] < end
    ]
    for event in sorted(chosen, key=lambda event: (event["ts"], -event["dur"])):
        stack = stacks[event["tid"]]
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1][1]] -= event["dur"]
        own[event["name"]] += event["dur"]
        calls[event["name"]] += 1
        if event["dur"]:
            stack.append((event["ts"] + event["dur"], event["name"]))
    return own, calls


@pytest.mark.parametrize("name", ["nccl-metadata.json.gz", "v100-rank1-of-2.json.gz"])
def test_operators_of_one_rank(shared: Path, name: str) -> None:
    path = shared / "traces" / "single" / name
    inputs = prepared(path)
    steps = inputs.tables.steps.filter(pl.col("excluded").is_null())
    events = events_of(path)
    first = min(event["ts"] for event in events if event["ph"] == "X" and event.get("cat") != "Trace")
    base = inputs.tables.events["start"][0] / 1e3 - first
    # Steady steps are not next to each other everywhere.
    own: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for begin, end in steps.select("start", "end").iter_rows():
        for total, part in zip((own, calls), naive(events, begin / 1e3 - base, end / 1e3 - base), strict=True):
            for key, value in part.items():
                total[key] += value  # type: ignore[operator]
    rows, _ = operators(inputs)
    assert rows is not None
    assert len(rows) >= 50
    for row in rows[:50]:
        assert row.calls == pytest.approx(calls[row.name] / len(steps), abs=2 / len(steps))
        assert row.self == pytest.approx(own[row.name] / 1e3 / len(steps), rel=0.02, abs=0.01)
        assert row.inclusive is not None
        assert row.inclusive >= (row.self or 0.0) - 1e-9


def test_operators_and_kernels_of_a_job(shared: Path) -> None:
    inputs = prepared(shared / "traces" / "torchrec4-straggler")
    rows, missing = operators(inputs)
    assert rows is not None
    assert missing == []
    assert {row.per for row in rows} == {"step"}
    found, _ = kernels(inputs)
    assert found is not None
    first = found[0]
    assert (first.kind, first.name.partition("(")[0]) == ("kernel", "ncclDevKernel_SendRecv")
    assert first.spread == pytest.approx(1012, rel=0.01), "the straggler's are short, the others' wait for it"
    assert first.slowest_rank != 2
    compute = sum(row.total for row in found if row.kind == "kernel" and row.collective is None)
    assert compute == pytest.approx(36, rel=0.5)


def test_copies_know_their_bytes(shared: Path) -> None:
    for folder, pageable in (("dlrm8", 64), ("torchrec4-overlap", 96)):
        copies = prepared(shared / "traces" / folder).tables.kernels.filter(cat="gpu_memcpy")
        assert copies["bytes"].null_count() == 0
        assert (copies["bytes"] > 0).all()
        assert copies["name"].str.contains("HtoD (Pageable", literal=True).sum() == pageable


def test_shapes_are_those_of_the_file(shared: Path) -> None:
    path = shared / "traces" / "single" / "gloo-rank34-of-300.pt.trace.json.gz"
    told = [
        (event["name"], json.dumps(event["args"]["Input Dims"]))
        for event in events_of(path)
        if event["name"] == "aten::addmm" and "Input Dims" in event["args"]
    ]
    shapes = prepared(path).tables.shapes.filter(name="aten::addmm")
    assert shapes["calls"].sum() == len(told)
    assert {(name, json.dumps(json.loads(text))) for name, text in shapes.select("name", "shapes").iter_rows()} == set(
        told
    )


def test_memory_of_a_device(shared: Path) -> None:
    rows, _ = memory(prepared(shared / "traces" / "single" / "v100-216k-events.json.gz"))
    held = {row.device: row for row in rows or []}
    assert held["device 1"].peak_bytes == 6_629_508_096
    assert held["device 1"].reserved_bytes == 12_782_141_440
