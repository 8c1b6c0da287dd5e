"""The timeline in both formats: one clock, lanes whose slices nest, nothing of two ranks taken for one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from distprof.pipeline import build
from distprof.report.selection import NothingSelectedError, Selection
from distprof.report.timeline import write_timeline
from distprof.result import ClockRow, Group, Result
from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest
from distprof.trace import tables as t
from distprof.trace.load import Run, load
from tests.unit import results
from tests.unit.timelines import Slice, Timeline, chrome, read_timeline

BASE = 1_700_000_000_123_456_789  # the earliest record, in Unix ns
US = 1000
OURS = ("steps", "findings", "zones", "collectives")  # lanes of what is drawn beside recorded events
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
        (
            rank,
            0,
            seq,
            "all_reduce",
            4096,
            "Float",
            created + 5 * seq,
            None,
            ended,
            0,
            "backward",
            "DDP#0",
            seq - 1,
            None,
        )
        for seq, ended in ((1, 330), (2, 340 + rank))
    ]
    later = (rank, 0, 3, "all_reduce", 8, "Float", 420 + rank, None, None, 1, None, None, None, None)
    rows.append(later)
    if rank != 1:  # one that rank 1 was not seen to join
        rows.append((rank, 0, 4, "all_gather", 8, None, 430, None, 440, 1, None, None, None, None))
    return [(*row[:6], BASE + row[6] * US, None, row[8] and BASE + row[8] * US, *row[9:]) for row in rows]


def kineto(events: list[Event], base: int = BASE - 5000) -> bytes:
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}).encode()


OPERATORS: list[Event] = [
    {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 1.0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 77, "tid": 770, "ts": 1.0, "args": {"name": "thread 770 (python)"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 770, "ts": 105.001, "dur": 10.5, "args": {}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 77, "tid": 771, "ts": "205.0010001", "dur": "1"},
    {"ph": "C", "name": "queue", "pid": 77, "tid": 770, "ts": 120, "args": {"batches": 3}},
    {"ph": "X", "cat": "cpu_op", "name": "lost", "pid": 77, "tid": 771, "ts": 300},
    {"ph": "X", "cat": "cpu_op", "name": "negative", "pid": 77, "tid": 771, "ts": 300, "dur": -1},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "Profiler", "ts": 5, "dur": 9},
    {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 77, "tid": 770, "ts": 106},
    {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 77, "tid": 771, "ts": 205.5, "bp": "e"},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 770, "ts": 107, "dur": 2,
     "args": {"correlation": 1, "External id": 2**64 + 1, "cbid": 211}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 110, "dur": 10,
     "args": {"External id": 2**64 + 1, "correlation": 1, "name": '"correlation": 5', "grid": [1, 2]}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 77, "tid": 770, "ts": 107},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 110, "bp": "e"},
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


@pytest.fixture(params=["timeline.json.gz", "timeline.pftrace"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Timeline]:
    """Writes a timeline in one of the formats and reads it back."""

    def write(run: Run, result: Result | None = None, **chosen: Any) -> Timeline:
        path = tmp_path / request.param
        write_timeline(run, result or results.healthy(3), path, Selection(**chosen))
        return read_timeline(path)

    return write


def us(*times: int) -> list[float]:
    return [(time - BASE) / US for time in times]


def extent(one: Slice) -> tuple[float, float]:
    return (one.start - BASE) / US, (one.end - BASE) / US


def test_each_rank_is_a_process_and_its_lanes_stand_in_order(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    assert list(timeline.processes.items()) == [(rank, f"rank {rank} · node-a") for rank in range(3)]
    for rank in (0, 1):  # the last event of rank 2's trace is cut off
        assert timeline.lanes[rank] == [
            "steps",
            "zones: training thread",
            "zones: thread 1",
            "zones: thread 1 (2)",
            "collectives",
            "collectives (2)",
            "operators: thread 770 (python)",
            "events",
            "0 7",
            "77 771",
            "Spans Profiler",
        ]


def test_a_rank_is_named_by_its_attempt_and_its_device_too(run: Run, write: Callable[..., Timeline]) -> None:
    kernels = pl.DataFrame([{"rank": 1, "device": 5}, {"rank": 2, "device": 0}, {"rank": 2, "device": 1}])
    kernels = pl.concat([t.empty(t.KERNELS), kernels.cast({"rank": pl.Int32})], how="diagonal")
    several = replace(run, attempt=1, attempts=[0, 1], tables=replace(run.tables, kernels=kernels))
    names = write(several).processes
    assert names == {
        0: "rank 0 · node-a · attempt 1",
        1: "rank 1 · node-a · attempt 1 · GPU 5",
        2: "rank 2 · node-a · attempt 1",
    }


def test_times_keep_every_nanosecond(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    assert [extent(one) for one in timeline.named("forward (Net)")] == [(80, 200)] * 3
    assert [extent(one) for one in timeline.named("aten::mm")] == [(100.001, 110.501)] * 3
    assert [us(one.start) for one in timeline.named("aten::add")] == [[200.001]] * 3


def test_zones_of_the_training_thread_share_a_lane(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    names = [one.name for one in timeline.on(1, "zones: training thread")]
    assert names[0] == "data_loading (DataLoader#0)"
    assert {"forward (Net)", "gc (gen2)", "backward", "wait"} < set(names)
    assert "\x1b" not in "".join(names)
    marks = [(mark.rank, mark.lane) for mark in timeline.marks if mark.name == "distprof.step()"]
    assert marks == [(rank, "zones: training thread") for rank in range(3)]


def test_a_collective_is_a_wait_and_a_transfer(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    for rank in range(3):
        own = {one.name: one for one in timeline.on(rank, "collectives") if one.args["seq"] == 2}
        wait, transfer = own["wait: all_reduce bucket 1"], own["transfer: all_reduce bucket 1"]
        bound = LAST_OF_BUCKETS + 10
        assert extent(wait) == (210 if rank != 2 else 260, bound)
        assert extent(transfer) == (pytest.approx(bound, abs=0.001), 340 + rank)
        assert {key: value for key, value in transfer.args.items() if value is not None} == {
            "kind": "all_reduce",
            "group": "default_pg",
            "seq": 2,
            "bytes": 4096,
            "model": "DDP#0",
            "bucket": 1,
            "step": 0,
            "last rank": 2,
        }


def test_waiting_and_transferring_have_two_colours(run: Run, tmp_path: Path) -> None:
    write_timeline(run, results.healthy(3), tmp_path / "x.json")
    events = [event for event in chrome(tmp_path / "x.json")["traceEvents"] if "cname" in event]
    colours = {event["name"].partition(":")[0]: event["cname"] for event in events}
    assert colours.keys() == {"wait", "transfer"} and len(set(colours.values())) == 2


def test_what_is_not_known_about_a_collective_is_not_drawn(run: Run, write: Callable[..., Timeline]) -> None:
    calls = write(run).on(0, "collectives")
    assert [one.name for one in calls if one.args["seq"] == 3] == ["wait: all_reduce"]
    assert [(one.name, extent(one)) for one in calls if one.args["seq"] == 4] == [("all_gather", (430, 440))]


def test_arrows_lead_from_the_last_arrival_to_those_that_waited(run: Run, write: Callable[..., Timeline]) -> None:
    arrows = [arrow for arrow in write(run).arrows if arrow.category == "last_arrival"]
    assert len(arrows) == 4  # two buckets, two ranks that waited
    for arrow in arrows:
        assert arrow.leaves.rank == 2 and arrow.arrives.rank in (0, 1)
        assert arrow.leaves.name == arrow.arrives.name and arrow.leaves.name.startswith("transfer: ")
        assert arrow.leaves.args["seq"] == arrow.arrives.args["seq"]


def test_arrows_inside_a_trace_stay_with_their_rank(run: Run, write: Callable[..., Timeline]) -> None:
    arrows = [arrow for arrow in write(run).arrows if arrow.category == "ac2g"]
    assert [(arrow.leaves.rank, arrow.arrives.rank) for arrow in arrows] == [(rank, rank) for rank in range(3)]
    assert {(arrow.leaves.name, arrow.arrives.name) for arrow in arrows} == {("cudaLaunchKernel", "gemm")}


def test_ids_of_ranks_differ_and_go_together_within_one(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    launches, kernels = timeline.named("cudaLaunchKernel"), timeline.named("gemm")
    assert len(launches) == len(kernels) == 3
    for key in ("correlation", "External id"):
        of_launches = [one.args[key] for one in launches]
        assert of_launches == [one.args[key] for one in kernels]
        assert len(set(of_launches)) == 3
    assert {str(one.args["External id"])[-20:] for one in kernels} == {str(2**64 + 1)}, "no digit is lost"
    assert {one.args["cbid"] for one in launches} == {211}
    assert [(one.args["name"], one.args["grid"]) for one in kernels] == [('"correlation": 5', [1, 2])] * 3


def test_ids_of_flows_are_those_of_their_launches(run: Run, tmp_path: Path) -> None:
    write_timeline(run, results.healthy(3), tmp_path / "x.json")
    events = chrome(tmp_path / "x.json")["traceEvents"]
    correlations = [event["args"]["correlation"] for event in events if event["name"] == "gemm"]
    assert [event["id"] for event in events if event["ph"] == "s" and event["cat"] == "ac2g"] == correlations
    ids = [(event["cat"], event["id"]) for event in events if event["ph"] == "s"]
    assert len(set(ids)) == len(ids)
    assert {event["tid"] for event in events if event["pid"] == 0 and "tid" in event} & {
        event["tid"] for event in events if event["pid"] == 1 and "tid" in event
    } == {0}, "only what is said of whole processes"


def test_unusable_events_and_broken_traces_are_left_out_and_told(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    assert not {one.name for one in timeline.slices} & {"lost", "negative"}
    assert [one.rank for one in timeline.named("aten::mm")] == [0, 1, 2], "whole events are kept"
    assert timeline.about["unreadable"] == []
    run.trace_files[2][0].write_text("no trace")
    run.trace_files[1][0].unlink()
    gone, unreadable = write(run).about["unreadable"]
    assert "b.json.gz" in gone and "c.json" in unreadable


def test_what_is_not_unicode_is_replaced(run: Run, write: Callable[..., Timeline]) -> None:
    path = run.trace_files[0][0]
    path.write_bytes(path.read_bytes().replace(b"aten::add", b"aten::\xff"))
    names = {one.name for one in write(run).slices if one.rank == 0}
    assert "aten::\ufffd" in names


def test_a_full_disk_is_no_unreadable_trace(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distprof.report.chrome.ChromeWriter.recorded", full)
    with pytest.raises(OSError, match="No space left"):
        write_timeline(run, results.healthy(3), tmp_path / "timeline.json")
    assert not list(tmp_path.glob("*timeline*"))


def test_offsets_of_the_clocks_are_subtracted_from_everything(run: Run, write: Callable[..., Timeline]) -> None:
    result = results.healthy(3)
    rows = [ClockRow(rank=0, offset_us=0.0), ClockRow(rank=1, offset_us=-30.5), ClockRow(rank=2, offset_us=None)]
    timeline = write(run, replace(result, clock=replace(result.clock, ranks=rows)))
    assert [us(one.start) for one in timeline.named("forward (Net)")] == [[80], [110.5], [80]]
    assert [us(one.start) for one in timeline.named("aten::mm")] == [[100.001], [130.501], [100.001]]
    first = next(one for one in timeline.on(0, "collectives") if one.name == "wait: all_reduce bucket 0")
    assert us(first.end) == [LAST_OF_BUCKETS + 5]


def test_drift_is_taken_from_recorded_events_too(run: Run, write: Callable[..., Timeline]) -> None:
    result = results.healthy(3)
    rows = [ClockRow(rank=0, offset_us=0.0), ClockRow(rank=1, offset_us=0.0, drift_ppm=1e5)]
    clock = replace(result.clock, ranks=rows, origin_unix_ns=BASE)
    timeline = write(run, replace(result, clock=clock))
    assert [extent(one) for one in timeline.named("forward (Net)")] == [(80, 200), (72, 180), (80, 200)]
    assert [us(one.start) for one in timeline.named("aten::mm")] == [[100.001], [90.001], [100.001]]


CROSSING: list[Event] = [
    {"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": 770, "ts": start, "dur": dur}
    for name, start, dur in (("outer", 100, 100), ("inner", 110, 10), ("crosses", 150, 100), ("within", 160, 10))
]


def test_slices_that_cross_on_one_thread_are_put_where_they_nest(run: Run, write: Callable[..., Timeline]) -> None:
    run.trace_files[0][0].write_bytes(kineto([*OPERATORS[:2], *CROSSING]))
    rows = [
        (0, 0, "cpu_op", event["name"], 770, start, start + event["dur"] * US, True)
        for event in CROSSING
        for start in [BASE - 5000 + event["ts"] * US]
    ]
    events = pl.DataFrame(rows, schema=t.EVENTS, orient="row")
    timeline = write(replace(run, tables=replace(run.tables, events=events)))
    placed = {one.name: one.lane for one in timeline.on(0, "operators")}
    assert placed["outer"] == placed["inner"] == placed["within"] == "operators: thread 770 (python)"
    assert placed["crosses"] == "operators: thread 770 (python) (2)"
    assert timeline.lanes[0][-2:] == [placed["outer"], placed["crosses"]]


def test_slices_that_begin_at_one_moment_nest_however_they_come(run: Run, write: Callable[..., Timeline]) -> None:
    expected = {"short": (100, 0), "inner": (100, 10), "outer": (100, 100), "next": (110, 90), "later": (200, 0)}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": 770, "ts": start, "dur": dur}
        for name, (start, dur) in expected.items()
    ]
    run.trace_files[0][0].write_bytes(kineto(events))
    timeline = write(run)
    drawn = {one.name: (one.start - BASE + 5000, one.end - one.start) for one in timeline.slices if one.rank == 0}
    assert expected.items() <= {name: (start / US, length / US) for name, (start, length) in drawn.items()}.items()


def test_findings_are_drawn_at_their_steps(run: Run, write: Callable[..., Timeline]) -> None:
    result = results.straggler()
    finding = replace(result.findings[0], ranks=[1], steps=[1], observation="it \x1b[31mis slow")
    everywhere = replace(finding, id="everywhere", severity="info", ranks=[], steps=[])
    timeline = write(run, replace(results.healthy(3), findings=[finding, everywhere]))
    drawn = {(one.rank, one.name): extent(one) for rank in range(3) for one in timeline.on(rank, "findings")}
    whole = {(rank, "info: everywhere"): (0, 900) for rank in range(3)}
    assert drawn == {(1, f"{finding.severity}: {finding.id}"): (450, 900), **whole}
    args = next(one.args for one in timeline.on(1, "findings") if one.name != "info: everywhere")
    assert args["observation"] == r"it \x1b[31mis slow" and args["next check"] == finding.next_check


def test_exposed_communication_is_a_curve_where_it_is_known(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run)
    curve = timeline.counters[0, "exposed communication per step"]
    assert [us(at) for at, _ in curve] == [[450]], "a collective of step 0 has no known end"
    first, second = timeline.on(0, "steps")
    assert "exposed communication (ms)" not in first.args
    assert float(second.args["exposed communication (ms)"]) == pytest.approx(curve[0][1])


def test_memory_is_a_curve_per_device(run: Run, write: Callable[..., Timeline]) -> None:
    rows = [
        (0, 0, BASE + 10 * US, 1, 3, 1, 64, 2**40, 2**41),
        (0, 0, BASE + 20 * US, 1, 3, 1, -64, 2**40 - 64, None),
        (0, 0, BASE + 30 * US, 0, None, 1, 64, 4096, None),
    ]
    memory = pl.DataFrame(rows, schema=t.MEMORY, orient="row")
    counters = write(replace(run, tables=replace(run.tables, memory=memory))).counters
    found = {name: [(*us(at), value) for at, value in curve] for (rank, name), curve in counters.items() if rank == 0}
    assert found["GPU 3: allocated"] == [(10, 2**40), (20, 2**40 - 64)]
    assert found["GPU 3: reserved"] == [(10, 2**41)]
    assert found["CPU: allocated"] == [(30, 4096)]
    assert "CPU: reserved" not in found


def test_counters_of_a_trace_pass(run: Run, write: Callable[..., Timeline]) -> None:
    counters = write(run).counters
    assert [value for (rank, _), curve in sorted(counters.items()) for _, value in curve if value == 3] == [3.0] * 3


def test_chosen_ranks_are_drawn_and_no_others(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run, ranks=frozenset({0, 2}))
    assert list(timeline.processes) == [0, 2] == list(timeline.lanes)
    ends = {(arrow.leaves.rank, arrow.arrives.rank) for arrow in timeline.arrows if arrow.category == "last_arrival"}
    assert ends == {(2, 0)}
    with pytest.raises(NothingSelectedError, match="no recordings of rank 7; there are of 0–2"):
        write(run, ranks=frozenset({1, 7}))


@pytest.mark.parametrize(("steps", "expected"), [((0, 1), [0]), ((1, None), [1]), ((None, 2), [0, 1])])
def test_chosen_steps_are_drawn_with_all_that_touches_them(
    run: Run, write: Callable[..., Timeline], steps: tuple[int | None, int | None], expected: list[int]
) -> None:
    timeline = write(run, steps=steps)
    assert [one.name for one in timeline.on(1, "steps")] == [f"step {step}" for step in expected]
    begin, end = BASE + 450 * US * expected[0], BASE + 450 * US * (expected[-1] + 1)
    assert all(one.end > begin and one.start < end for one in timeline.slices)
    assert bool(timeline.named("aten::mm")) == (0 in expected)
    with pytest.raises(NothingSelectedError, match="no step in 7:; the run has 0, 1"):
        write(run, steps=(7, None))


def test_chosen_parts_are_drawn_and_no_others(run: Run, write: Callable[..., Timeline]) -> None:
    timeline = write(run, parts=frozenset({"zones", "collectives"}))
    assert {lane.partition(":")[0].partition(" (")[0] for lane in timeline.lanes[0]} == {"zones", "collectives"}
    assert not timeline.counters and timeline.about["unreadable"] == []


def test_plain_json_is_the_same_and_nothing_else_is_left(run: Run) -> None:
    folder = run.directory.path
    before = set(folder.iterdir())
    for name in ("x.json", "y.json.gz", "z.json.gz"):
        write_timeline(run, results.healthy(3), folder / name)
    assert chrome(folder / "x.json") == chrome(folder / "y.json.gz")
    assert (folder / "y.json.gz").read_bytes() == (folder / "z.json.gz").read_bytes(), "equal runs give equal bytes"
    assert {path.name for path in set(folder.iterdir()) - before} == {"x.json", "y.json.gz", "z.json.gz"}


def test_progress_is_told_up_to_the_end(run: Run, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_timeline(
        run, results.healthy(3), tmp_path / "x.json", progress=lambda done, total: told.append((done, total))
    )
    size = sum(path.stat().st_size for windows in run.trace_files.values() for path in windows.values())
    assert told[-1] == (size, size) and told == sorted(told)


def test_both_formats_show_the_same(run: Run, tmp_path: Path) -> None:
    shown = []
    for name in ("x.json", "x.pftrace"):
        write_timeline(run, results.straggler(), tmp_path / name)
        shown.append(read_timeline(tmp_path / name))
    one, other = shown
    assert (one.processes, one.lanes) == (other.processes, other.lanes)
    arrivals = {arrow.arrives for arrow in other.arrows if arrow.category == "last_arrival"}
    rest = {each for each in other.slices if each not in arrivals}
    moved = {replace(each, start=each.start - 1) for each in arrivals}  # an arrow takes a nanosecond
    assert rest | moved == set(one.slices) and len(one.slices) == len(other.slices)
    assert set(one.marks) == set(other.marks)
    assert {name: curve for (_, name), curve in one.counters.items() if name != "queue"}.items() <= {
        name: curve for (_, name), curve in other.counters.items()
    }.items()
    assert len(one.arrows) == len(other.arrows)


def test_an_empty_run_is_a_timeline(run: Run, write: Callable[..., Timeline]) -> None:
    empty = {name: getattr(run.tables, name).clear() for name in ("zones", "steps", "collectives")}
    nothing = replace(run, tables=replace(run.tables, ranks=[], groups=[], **empty), trace_files={})
    timeline = write(nothing)
    assert not timeline.processes and not timeline.slices


@pytest.mark.parametrize("name", ["dlrm8", "torchrec4-straggler", "torchrec4-overlap"])
def test_real_jobs_can_be_drawn(name: str, shared: Path, write: Callable[..., Timeline]) -> None:
    job = load(*sorted((shared / "traces" / name).glob("*.gz")))
    timeline = write(job, build(job))
    assert list(timeline.processes) == job.tables.ranks
    assert len({label.rpartition("GPU")[2] for label in timeline.processes.values()}) == len(job.tables.ranks)
    for rank in job.tables.ranks:
        of_rank = pl.col("rank") == rank
        recorded = job.tables.events.filter(of_rank).height
        drawn = [one for one in timeline.slices if one.rank == rank and not one.lane.startswith(OURS)]
        assert recorded <= len(drawn) <= recorded + 3, "and the profiler's own spans"
        assert (
            len([one for one in drawn if one.category == "kernel"])
            == job.tables.kernels.filter(of_rank, cat="kernel").height
        )
    late = [arrow for arrow in timeline.arrows if arrow.category == "last_arrival"]
    assert late and all(arrow.leaves.rank == arrow.arrives.args["last rank"] for arrow in late)
