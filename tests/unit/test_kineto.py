"""Kineto traces made by hand: digits, leaves, and what producers get wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from distprof.trace.columns import KINETO_EVENTS
from distprof.trace.kineto import placed, read_kineto
from distprof.trace.notes import Note, RecordingError

BASE = 1_790_857_026_000_000_000


def op(name: str, ts: float, dur: float, *, tid: Any = 7, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": 7, **more}


def trace(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    header = {"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": 2}, **header}
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path


def read(path: Path, rank: int = 2, window: int = 0) -> tuple[pl.DataFrame, list[Note]]:
    found, notes = read_kineto(path, rank)
    return placed(found.events, rank, window, KINETO_EVENTS), notes


def leaves(path: Path, events: list[dict[str, Any]]) -> list[str]:
    table, _ = read(trace(path, events))
    return sorted(table.filter("leaf")["name"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank00002.window0.pt.trace.json"


def test_events(path: Path) -> None:
    events = [
        op("aten::mm", 5105818325140.195, 5587.409),
        op("gloo:all_reduce", 5105818325140.001, 0, tid=9, cat="user_annotation"),
        {"ph": "M", "name": "process_name", "ts": 5105818325140.195, "pid": 7, "tid": 0, "args": {"name": "python3"}},
        {"ph": "s", "id": 75, "cat": "fwdbwd", "name": "fwdbwd", "ts": 5105818325140.195, "pid": 7, "tid": 7},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 5105818325140.195},
        op("PyTorch Profiler (0)", 5105818325000, 900, tid="PyTorch Profiler", cat="Trace"),
    ]
    table, notes = read(trace(path, events), 2, 1)
    assert notes == []
    assert table.rows() == [
        (2, 1, "user_annotation", "gloo:all_reduce", 9, BASE + 5105818325140001, BASE + 5105818325140001, False, True),
        (2, 1, "cpu_op", "aten::mm", 7, BASE + 5105818325140195, BASE + 5105818325140195 + 5587409, True, True),
    ]


def test_every_nanosecond_below_three_months_is_kept(path: Path) -> None:
    # The largest offset that kineto's base leaves, and each of the last thousand decimals.
    texts = [f"{7_889_237_999_999 - n}.{n:03d}" for n in range(1000)]
    events = ",".join(f'{{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": {t}, "dur": 1.001}}' for t in texts)
    path.write_text(f'{{"baseTimeNanoseconds": {BASE}, "traceEvents": [{events}]}}')
    table, _ = read(path)
    expected = sorted(BASE + int(t.replace(".", "")) for t in texts)
    assert table["start"].to_list() == expected
    assert table["end"].to_list() == [start + 1001 for start in expected]


@pytest.mark.parametrize("quote", ["", '"'])
def test_more_digits_than_a_float_holds(path: Path, quote: str) -> None:
    times = f'"ts": {quote}1790857026123456.789{quote}, "dur": {quote}2.5{quote}'
    metadata = '{"ph": "M", "name": "process_name"}'
    path.write_text(f'{{"traceEvents": [{metadata}, {{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, {times}}}]}}')
    table, _ = read(path)
    assert table.select("start", "end").row(0) == (1_790_857_026_123_456_789, 1_790_857_026_123_459_289)


def test_whole_microseconds_since_1970(path: Path) -> None:
    """As torch wrote them before 2024: no base."""
    path.write_text(json.dumps({"traceEvents": [op("a", 1_690_857_026_123_457, 12)]}))
    table, _ = read(path)
    assert table.select("start", "end").row(0) == (1_690_857_026_123_457_000, 1_690_857_026_123_469_000)


def test_gzipped(path: Path) -> None:
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(trace(path, [op("aten::mm", 1, 2)]).read_bytes()))
    assert len(read(packed)[0]) == 1


def test_events_without_a_sensible_time_or_thread_are_left_out(path: Path) -> None:
    events = [op("good", 1, 2), op("negative", 1, -3), op("text", 1, 2, tid="main"), op("wide", 1, 2, tid=2**64)]
    del (missing := op("missing", 1, 2))["dur"]
    ages, late = op("ages", 1, 1e12), op("late", 1e12, 2)
    begins = {"ph": "B", "name": "begins", "ts": 1, "tid": 7}
    table, notes = read(trace(path, [*events, missing, ages, late, begins]))
    assert table["name"].to_list() == ["good"]
    assert [str(note) for note in notes] == [
        f"{path}, $.traceEvents: 5 events have no thread number, or no duration from 0 to a day and were left out",
        f"{path}, $.traceEvents: 1 events only begin and have no duration and were left out",
        f"{path}, $.traceEvents: 1 events lie more than a day from the others and were left out",
    ]


def test_streams_that_are_called_by_a_text(path: Path) -> None:
    kernels = [op("kernel", 1, 2, tid="stream 7", cat=cat) for cat in ("Kernel", "mtia_ccp_events")]
    table, notes = read(trace(path, [*kernels, op("op", 1, 2, cat="Operator")]))
    assert table.select("cat", "thread").rows() == [("kernel", 7), ("kernel", 7), ("cpu_op", 7)]
    assert notes == []


def test_an_event_that_was_not_over_when_the_window_closed(path: Path) -> None:
    cut = op("gloo:all_reduce", 1, 50, cat="user_annotation", args={"External id": 1, "finished": False})
    table, _ = read(trace(path, [cut, op("aten::mm", 2, 3, args={"External id": 2**70})]))
    assert table.select("name", "finished").rows() == [("gloo:all_reduce", False), ("aten::mm", True)]


def test_an_operator_counts_with_what_it_calls(path: Path) -> None:
    events = [op("aten::linear", 0, 50), op("aten::addmm", 10, 30), op("aten::expand", 12, 2), op("aten::relu", 50, 5)]
    assert leaves(path, events) == ["aten::linear", "aten::relu"]


def test_threads_have_nothing_to_do_with_each_other(path: Path) -> None:
    assert leaves(path, [op("aten::mm", 0, 50), op("aten::add", 10, 30, tid=8)]) == ["aten::add", "aten::mm"]


def test_what_wraps_operators_does_not_compute(path: Path) -> None:
    events = [
        op("ProfilerStep#7", 0, 100, cat="user_annotation"),
        op("DistributedDataParallel.forward", 0, 20, cat="user_annotation"),
        op("autograd::engine::evaluate_function: MmBackward0", 20, 30),
        op("MmBackward0", 22, 26),
        op("aten::mm", 24, 10),
        op("torch::autograd::AccumulateGrad", 60, 10),
        op("MyPythonFunction", 80, 10),
    ]
    assert leaves(path, events) == ["aten::mm"]


def test_an_operator_around_a_collective_does_not_compute(path: Path) -> None:
    events = [
        op("mine::reduce", 0, 50),
        op("aten::ones", 2, 3),
        op("c10d::allreduce_", 10, 30),
        op("record_param_comms", 12, 20),
        op("_c10d_functional::wait_tensor", 60, 10),
        op("aten::mul", 80, 5),
    ]
    assert leaves(path, events) == ["aten::mul", "aten::ones"]


def test_neighbours_that_touch_are_both_leaves(path: Path) -> None:
    assert leaves(path, [op("aten::a", 0, 10), op("aten::b", 10, 10), op("aten::c", 10, 0)]) == ["aten::a", "aten::b"]


def test_a_trace_without_events(path: Path) -> None:
    table, notes = read(trace(path, []))
    assert (len(table), notes) == (0, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schemaVersion": 1}', "it has no list of events"),
        ("", "it is empty"),
        ("[[1, 2], [[0, 1], [2, 3]]]", "none of its entries is an event"),
        ('[{"file": "x", "iteration": 0}]', "none of its entries is an event"),
        ('{"schema": "1.1.1-chakra.0.0.4", "pid": 5, "nodes": [{"id": 1}]}', "it is an Execution Trace"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("step,loss", "it is not JSON"),
        ('{"distributedInfo": {"rank": 1}, "traceEvents": []}', "recorded by rank 1"),
    ],
)
def test_what_is_no_trace_of_the_rank_is_an_error_that_names_the_file(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        read(path)
