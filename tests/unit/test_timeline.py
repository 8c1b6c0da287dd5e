"""The timeline: strict JSON, one clock, lanes whose slices nest."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.report.lanes import DisjointLanes, NestingLanes
from distprof.report.timeline import write_timeline
from distprof.result import ClockRow, Group
from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest
from distprof.trace import tables as t
from distprof.trace.load import Run
from tests.unit import results

BASE = 1_700_000_000_123_456_789  # the earliest record, in Unix ns
US = 1000
LAST_OF_BUCKETS = 250  # us: when rank 2, the last one, creates its buckets
Event = dict[str, Any]


def zones_of(rank: int) -> list[tuple[Any, ...]]:
    rows = [
        ("data_loading", "DataLoader#0", 0, 0, 80),
        ("forward", "Net", 0, 80, 200),
        ("zone", results.HOSTILE.removesuffix("\ud800"), 0, 90, 150),
        ("gc", "gen2", 0, 100, 110),
        ("backward", None, 0, 200, 400),
        ("wait", None, 0, 300, 400),
        ("step", None, 0, 450, 450),
        ("zone", "writer", 1, 50, 120),
        ("zone", "crossing", 1, 100, 300),  # cannot be from one thread, and must not break the lane
    ]
    return [(rank, kind, name, thread, BASE + s * US, BASE + e * US) for kind, name, thread, s, e in rows]


def collectives_of(rank: int) -> list[tuple[Any, ...]]:
    created = 200 if rank != 2 else LAST_OF_BUCKETS
    rows: list[tuple[Any, ...]] = [
        (rank, 0, seq, "all_reduce", 4096, "Float", created + 5 * seq, None, ended, 0, "backward", "DDP#0", seq - 1)
        for seq, ended in ((1, 330), (2, 340 + rank))
    ]
    later = (rank, 0, 3, "all_reduce", 8, "Float", 420 + rank, None, None, 1, None, None, None)
    rows.append(later)
    if rank != 1:  # one that rank 1 was not seen to join
        rows.append((rank, 0, 4, "all_gather", 8, None, 430, None, 440, 1, None, None, None))
    return [(*row[:6], BASE + row[6] * US, None, row[8] and BASE + row[8] * US, *row[9:]) for row in rows]


def kineto(events: list[Event], base: int = BASE - 5000) -> bytes:
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}).encode()


OPERATORS: list[Event] = [
    {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 1.0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 77, "tid": 770, "ts": 1.0, "args": {"name": "thread 770 (python)"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 770, "ts": 105.001, "dur": 10.5, "args": {}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 77, "tid": 771, "ts": "205.0010001", "dur": "1"},
    {"ph": "X", "cat": "cpu_op", "name": "lost", "pid": 77, "tid": 771, "ts": 300},
    {"ph": "X", "cat": "cpu_op", "name": "negative", "pid": 77, "tid": 771, "ts": 300, "dur": -1},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "Profiler", "ts": 5, "dur": 9},
    {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 77, "tid": 770, "ts": 106},
    {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 77, "tid": 771, "ts": 205.5, "bp": "e"},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 77, "tid": 770, "ts": 107},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300},
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    ranks = [0, 1, 2]
    paths = [tmp_path / name for name in ("a.json", "b.json.gz", "c.json")]
    paths[0].write_bytes(kineto(OPERATORS))
    paths[1].write_bytes(gzip.compress(kineto(OPERATORS)))
    paths[2].write_bytes(kineto(OPERATORS)[:-70])
    zones = [row for rank in ranks for row in zones_of(rank)]
    collectives = [row for rank in ranks for row in collectives_of(rank)]
    steps = [
        (rank, step, BASE + 450 * step * US, BASE + 450 * (step + 1) * US, 1, None if step else "first")
        for rank in ranks
        for step in (0, 1)
    ]
    tables = t.Tables(
        ranks=ranks,
        world_size=3,
        step_source="optimizer",
        groups=[Group(id=0, name="0", desc="default_pg", members=ranks)],
        zones=pl.DataFrame(zones, schema=t.ZONES, orient="row"),
        steps=pl.DataFrame(steps, schema=t.STEPS, orient="row"),
        collectives=pl.DataFrame(collectives, schema=t.COLLECTIVES, orient="row"),
        events=t.empty(t.EVENTS),
        windows=t.empty(t.WINDOWS),
        training_thread={0: 770, 1: 770, 2: 770},
        facts={},
    )
    return Run(
        directory=RunDirectory(tmp_path),
        manifest=Manifest(run_id="abc", command=["train.py"]),
        attempt=0,
        attempts=[0],
        tables=tables,
        notes=[],
        trace_files={rank: {0: path} for rank, path in enumerate(paths)},
    )


def strict(data: bytes) -> dict[str, Any]:
    def refuse(text: str) -> NoReturn:
        raise AssertionError(f"{text} is no JSON")

    value: dict[str, Any] = json.loads(data, parse_float=Decimal, parse_constant=refuse)
    return value


def written(run: Run, result: Any = None, name: str = "timeline.json.gz") -> dict[str, Any]:
    path = run.directory.path / name
    write_timeline(run, result or results.healthy(3), path)
    data = path.read_bytes()
    return strict(gzip.decompress(data) if name.endswith(".gz") else data)


def lanes(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}


def on(events: list[Event], rank: int, lane: str) -> list[Event]:
    """Slices and marks of a rank on lanes whose name begins so, in file order."""
    tids = {tid for (pid, tid), name in lanes(events).items() if pid == rank and name.startswith(lane)}
    return [e for e in events if e["ph"] in "Xi" and e["pid"] == rank and e["tid"] in tids]


def test_each_rank_is_a_process_and_each_lane_has_a_name(run: Run) -> None:
    events = written(run)["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1, 2}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        f"rank {r} · node-a" for r in range(3)
    }
    assert {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"} == {
        0: 0,
        1: 1,
        2: 2,
    }
    named = lanes(events)
    assert all((e["pid"], e["tid"]) in named for e in events if e["ph"] != "M")
    assert "operators: thread 770 (python)" in named.values()


def test_times_are_relative_to_the_earliest_record_and_keep_every_nanosecond(run: Run) -> None:
    timeline = written(run)
    assert timeline["baseTimeNanoseconds"] == BASE
    events = timeline["traceEvents"]
    assert min(e["ts"] for e in events if e["ph"] == "X" and e["cat"] != "Trace") == 0
    forward = next(e for e in events if e["name"] == "forward (Net)")
    assert (forward["ts"], forward["dur"]) == (80, 120)
    mm = next(e for e in events if e["name"] == "aten::mm")
    assert (str(mm["ts"]), str(mm["dur"]), mm["args"]) == ("100.001", "10.500", {})
    assert next(str(e["ts"]) for e in events if e["name"] == "aten::add") == "200.001"


def test_slices_on_every_lane_of_ours_nest_or_are_disjoint(run: Run) -> None:
    by_lane = defaultdict(list)
    for event in written(run)["traceEvents"]:
        if event["ph"] == "X":
            by_lane[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(by_lane) > 12
    for slices in by_lane.values():
        for a in slices:
            for b in slices:
                crossing = a[0] < b[0] < a[1] < b[1]
                assert not crossing, (a, b)


def test_zones_of_the_training_thread_share_a_lane(run: Run) -> None:
    names = [e["name"] for e in on(written(run)["traceEvents"], 1, "zones: training thread")]
    assert names[0] == "data_loading (DataLoader#0)"
    assert {"forward (Net)", "gc (gen2)", "backward", "wait", "distprof.step()"} < set(names)
    assert "\x1b" not in "".join(names)


def test_a_collective_is_a_wait_and_a_transfer(run: Run) -> None:
    events = written(run)["traceEvents"]
    for rank in range(3):
        own = {e["name"]: e for e in on(events, rank, "collectives") if e["args"]["seq"] == 2}
        wait, transfer = own["wait: all_reduce bucket 1"], own["transfer: all_reduce bucket 1"]
        assert wait["ts"] == (210 if rank != 2 else 260)
        assert wait["ts"] + wait["dur"] == LAST_OF_BUCKETS + 10 == transfer["ts"]
        assert transfer["ts"] + transfer["dur"] == 340 + rank
        assert wait["cname"] != transfer["cname"]
        assert transfer["args"] == {
            "kind": "all_reduce",
            "group": "default_pg",
            "seq": 2,
            "bytes": 4096,
            "model": "DDP#0",
            "bucket": 1,
            "step": 0,
            "last rank": 2,
        }


def test_what_is_not_known_about_a_collective_is_not_drawn(run: Run) -> None:
    events = written(run)["traceEvents"]
    endless = [e["name"] for e in on(events, 0, "collectives") if e["args"]["seq"] == 3]
    assert endless == ["wait: all_reduce"]
    unmatched = [(e["name"], e["dur"]) for e in on(events, 0, "collectives") if e["args"]["seq"] == 4]
    assert unmatched == [("all_gather", 10)]


def test_arrows_lead_from_the_last_arrival_to_those_that_waited(run: Run) -> None:
    events = written(run)["traceEvents"]
    begin = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == "last_arrival"}
    end = {e["id"]: e for e in events if e["ph"] == "f" and e["cat"] == "last_arrival"}
    assert begin.keys() == end.keys() and len(begin) == 4  # two buckets, two ranks that waited
    assert {e["pid"] for e in begin.values()} == {2} and {e["pid"] for e in end.values()} == {0, 1}
    slices = [e for e in events if e["ph"] == "X"]
    for flow, arrow in end.items():
        assert begin[flow]["ts"] < arrow["ts"]
        for side in (begin[flow], arrow):
            around = [e for e in slices if (e["pid"], e["tid"]) == (side["pid"], side["tid"])]
            assert any(e["ts"] <= side["ts"] < e["ts"] + e["dur"] and "transfer" in e["name"] for e in around)


def test_flow_ids_of_ranks_and_categories_differ(run: Run) -> None:
    events = written(run)["traceEvents"]
    flows = [(e["id"], e["cat"], e["pid"]) for e in events if e["ph"] == "s"]
    assert len({flow for flow, _, _ in flows}) == len(flows)
    pairs = [e["id"] for e in events if e["ph"] in "sf" and e["cat"] == "fwdbwd" and e["pid"] == 0]
    assert pairs[0] == pairs[1]


def test_unusable_events_and_broken_traces_are_left_out_and_told(run: Run) -> None:
    timeline = written(run)
    names = {e["name"] for e in timeline["traceEvents"]}
    assert not names & {"lost", "negative"}
    assert [e for e in timeline["traceEvents"] if e["pid"] == 2 and e["name"] == "aten::mm"], "whole events are kept"
    assert timeline["otherData"]["unreadable"] == []
    run.trace_files[2][0].write_text("no trace")
    [unreadable] = written(run)["otherData"]["unreadable"]
    assert "c.json" in unreadable


def test_what_is_not_utf8_is_replaced(run: Run) -> None:
    path = run.trace_files[0][0]
    path.write_bytes(path.read_bytes().replace(b"aten::mm", b"aten::\xff"))
    names = {e["name"] for e in written(run)["traceEvents"]}
    assert "aten::\ufffd" in names


def test_a_full_disk_is_no_unreadable_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distprof.report.timeline._Output.emit", full)
    with pytest.raises(OSError, match="No space left"):
        written(run)
    assert not (run.directory.path / "timeline.json.gz").exists()


def test_offsets_of_the_clocks_are_subtracted_from_everything(run: Run) -> None:
    result = results.healthy(3)
    rows = [ClockRow(rank=0, offset_us=0.0), ClockRow(rank=1, offset_us=-30.5), ClockRow(rank=2, offset_us=None)]
    timeline = written(run, replace(result, clock=replace(result.clock, ranks=rows)))
    events = timeline["traceEvents"]
    assert timeline["baseTimeNanoseconds"] == BASE
    at = {name: {e["pid"]: str(e["ts"]) for e in events if e["name"] == name} for name in ("forward (Net)", "aten::mm")}
    assert at["forward (Net)"] == {0: "80.000", 1: "110.500", 2: "80.000"}
    assert at["aten::mm"] == {0: "100.001", 1: "130.501", 2: "100.001"}
    first = next(e for e in on(events, 0, "collectives") if e["name"] == "wait: all_reduce bucket 0")
    assert first["ts"] + first["dur"] == LAST_OF_BUCKETS + 5


def test_plain_json_is_the_same_and_nothing_else_is_left(run: Run) -> None:
    before = set(run.directory.path.iterdir())
    assert written(run, name="x.json") == written(run, name="y.json.gz")
    assert {path.name for path in set(run.directory.path.iterdir()) - before} == {"x.json", "y.json.gz"}


def test_an_empty_run_is_a_timeline(run: Run) -> None:
    empty = {name: getattr(run.tables, name).clear() for name in ("zones", "steps", "collectives")}
    nothing = replace(run, tables=replace(run.tables, ranks=[], groups=[], **empty), trace_files={})
    assert written(nothing)["traceEvents"] == []


SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=40)


@given(SLICES)
def test_lanes_hold_what_they_promise(slices: list[tuple[int, int]]) -> None:
    ordered = sorted(slices, key=lambda s: (s[0], -s[1]))
    for lanes, allowed in ((NestingLanes(), nest_or_disjoint), (DisjointLanes(), disjoint)):
        placed: dict[int, list[tuple[int, int]]] = {}
        for one in ordered:
            placed.setdefault(lanes.place(*one), []).append(one)
        for members in placed.values():
            assert all(allowed(a, b) for i, a in enumerate(members) for b in members[i + 1 :])


def disjoint(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[1] <= b[0]


def nest_or_disjoint(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return disjoint(a, b) or (a[0] <= b[0] and b[1] <= a[1])
