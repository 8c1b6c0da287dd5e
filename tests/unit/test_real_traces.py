"""Traces of other people's jobs, and what was computed of them independently: README.md of the shared traces."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.analyze.waits import ONE, match
from distprof.cli import main as cli
from distprof.clock.shift import corrections, shifted
from distprof.pipeline import build
from distprof.result import Result, from_json
from distprof.run.manifest import RunDirectoryError
from distprof.trace.kineto import read_trace
from distprof.trace.loaded import Run

JOBS = ("dlrm8", "torchrec4-straggler", "torchrec4-overlap")


@cache
def job(folder: Path) -> tuple[Run, Result]:
    run = distprof.load(folder)
    return run, build(run)


def table_of(readme: str, name: str) -> dict[int, tuple[float, float, float, list[float]]]:
    """rank -> compute, comm, exposed, steps, in us."""
    section = readme.partition(f"## {name}:")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d, ]+) \|$", section, re.MULTILINE)
    return {
        int(rank): (float(compute), float(comm), float(exposed), [float(step) for step in steps.split(",")])
        for rank, compute, comm, exposed, steps in rows
    }


@pytest.mark.parametrize("name", JOBS)
def test_totals_and_steps(shared: Path, name: str) -> None:
    run, result = job(shared / "traces" / name)
    expected = table_of((shared / "traces" / "README.md").read_text(), name)
    assert [row.rank for row in result.ranks] == sorted(expected)
    assert {row.status for row in result.ranks} == {"complete"}
    for row in result.totals:
        compute, comm, exposed, _ = expected[row.rank]
        assert (row.compute, row.comm, row.exposed) == pytest.approx(
            (compute / 1e3, comm / 1e3, exposed / 1e3), rel=1e-3
        )
    for rank, (_, _, _, steps) in expected.items():
        own = run.tables.steps.filter(pl.col("rank") == rank).sort("step")
        assert ((own["end"] - own["start"]) / 1e3).to_list() == pytest.approx(steps, rel=1e-3)
    assert result.steps.source == "annotation"
    assert result.windows[0].steps == ([10] if name == "dlrm8" else [4, 5, 6])


@pytest.mark.parametrize("name", JOBS)
def test_report_and_merge_from_the_command_line(shared: Path, tmp_path: Path, name: str) -> None:
    traces = sorted(map(str, (shared / "traces" / name).glob("*.gz")))
    data, page, merged = tmp_path / "x.json", tmp_path / "x.html", tmp_path / "all.json.gz"
    assert cli.main(["report", *traces, "--json", str(data), "--html", str(page)]) == 0
    assert from_json(data.read_bytes()).run.world_size == len(traces)
    assert "<h1>" in page.read_text()
    assert cli.main(["merge", *traces, "-o", str(merged)]) == 0
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    assert {event["pid"] for event in events} == set(range(len(traces)))
    of_kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(of_kernels) == job(shared / "traces" / name)[0].tables.kernels.filter(cat="kernel").height


@pytest.mark.parametrize(
    ("name", "counts", "matched", "apart_us"),
    [
        ("dlrm8", [8] * 8, 8, 7),
        ("torchrec4-straggler", [13, 13, 12, 13], 12, 113),
        ("torchrec4-overlap", [32, 31, 31, 32], 31, 1000),
    ],
)
def test_collectives_are_matched_so_that_their_ends_agree(
    shared: Path, name: str, counts: list[int], matched: int, apart_us: float
) -> None:
    run, result = job(shared / "traces" / name)
    calls = run.tables.collectives
    assert calls.group_by("rank").len().sort("rank")["len"].to_list() == counts
    communication = result.communication
    assert (communication.matched, communication.collectives) == (matched, max(counts))
    assert communication.unmatched == max(counts) - matched
    bound = match(run.tables).drop_nulls("binds_until")
    apart = bound.group_by(ONE).agg(pl.col("ended").max() - pl.col("ended").min())["ended"] / 1e3
    assert apart.max() <= apart_us


@pytest.mark.parametrize(
    ("name", "rank", "counts"),
    [("dlrm8", 7, (5, 4, 8)), ("torchrec4-straggler", 2, (12, 12, 12))],
)
def test_who_was_the_last_to_arrive(shared: Path, name: str, rank: int, counts: tuple[int, int, int]) -> None:
    """Counts are: last, last by more than the clocks' error, collectives."""
    last, clearly, of = counts
    run, result = job(shared / "traces" / name)
    for tables in (run.tables, shifted(run.tables, corrections(result.clock))):
        bound = match(tables).drop_nulls("binds_until").unique(ONE)
        assert bound.height == of
        assert bound.filter(pl.col("last_rank") == rank).height == last
    if name == "dlrm8":
        found = result.stragglers
        assert (found.verdict, found.ranks) == ("undecided", [])
        assert found.why.startswith("one step only")
        assert f"rank {rank} was the last to arrive at {clearly} of {of} collectives" in found.why


def test_the_straggler_is_named_with_the_annotation_that_it_stalls_in(shared: Path) -> None:
    """Judged on the start of kernels: no step time shows it."""
    _, result = job(shared / "traces" / "torchrec4-straggler")
    (row,) = result.stragglers.ranks
    assert (row.rank, row.cause, row.zone, row.pattern) == (2, "zone", "# running sparse arch", "persistent")
    assert row.delay == pytest.approx(1005, rel=0.02)
    assert row.imposed_wait == pytest.approx(1005, rel=0.02)
    assert row.saved_if_fixed == pytest.approx(1005, rel=0.15)
    assert (row.last_arrivals, row.of_collectives) == (3, 3)
    assert row.confidence in ("bound", "ends_agree")


def test_a_rank_is_named_whose_window_opened_late(shared: Path) -> None:
    """Rank 2 computes 16, 15 and 20 ms longer than the others between the same ends of collectives, and is the last at
    17 of 30. Its window opened 29 ms after the others', so that it seems to do less in the first step."""
    found = job(shared / "traces" / "torchrec4-overlap")[1].stragglers
    (row,) = found.ranks
    assert (row.rank, row.cause, row.zone, row.pattern) == (2, "zone", "# running sparse arch", "persistent")
    assert row.delay == pytest.approx(16, rel=0.05)
    assert row.imposed_wait is not None and row.imposed_wait > row.delay
    assert found.noise is not None and found.noise < 0.6 * row.delay


def test_kinds_of_collectives_are_timed_in_the_steps_that_are_judged(shared: Path) -> None:
    run, whole = job(shared / "traces" / "torchrec4-overlap")
    part = build(run, (5, 7))
    for kind in ("all_reduce", "all_to_all"):
        calls = match(shifted(run.tables, corrections(part.clock)))
        counted = calls.filter(pl.col("kind") == kind, pl.col("step").is_in([5, 6]))
        (of_part,) = (row for row in part.communication.by_kind if row.kind == kind)
        (of_whole,) = (row for row in whole.communication.by_kind if row.kind == kind)
        assert of_part.count == of_whole.count  # of the whole window
        assert of_part.wait != of_whole.wait
        waits = (counted["binds_until"] - counted["arrived"]) / 1e6
        assert of_part.wait == pytest.approx(waits.mean(), rel=1e-6)


def test_the_straggler_waits_for_nobody_and_the_others_a_second_per_step(shared: Path) -> None:
    _, result = job(shared / "traces" / "torchrec4-straggler")
    waits = {row.rank: row.wait for row in result.communication.per_rank}
    assert waits.pop(2) == pytest.approx(0, abs=0.1)
    assert list(waits.values()) == pytest.approx([1005] * 3, rel=0.01)


def test_what_a_window_does_not_tell_is_null_with_a_reason(shared: Path) -> None:
    _, result = job(shared / "traces" / "torchrec4-overlap")
    reasons = {row.what for row in result.not_observed}
    assert result.conditions.loader is None
    assert {"breakdown.data_wait", "conditions", "communication.buckets"} <= reasons
    assert result.clock.verdict == "aligned"
    assert all(row.error_us is not None for row in result.clock.devices)


@pytest.mark.parametrize(
    ("name", "place", "kernels", "collectives"),
    [
        ("gloo-rank34-of-300.pt.trace.json.gz", (34, 300), 0, {"all_reduce": 10}),
        ("nccl-metadata.json.gz", (0, 2), 2700, {"all_reduce": 15, "broadcast": 6}),
        ("ns-resolution.pt.trace.json.gz", (0, 1), 4350, {}),
        ("a100-rank3-of-8.json.gz", (3, 8), 8568, {"all_to_all": 42, "all_reduce": 18}),
        ("v100-rank1-of-2.json.gz", (1, 2), 9876, {"all_to_all": 42, "all_reduce": 21, "send_recv": 1}),
        ("v100-216k-events.json.gz", (1, 2), 19370, {"all_reduce": 2020}),
    ],
)
def test_single_ranks(
    shared: Path, name: str, place: tuple[int, int], kernels: int, collectives: dict[str, int]
) -> None:
    """Each logical collective once, though it stands there as operator, record, annotation and kernel."""
    tables = distprof.load(shared / "traces" / "single" / name).tables
    assert (tables.ranks[0], tables.world_size) == place
    assert tables.kernels.filter(pl.col("cat") == "kernel").height == kernels
    assert dict(tables.collectives.group_by("kind").len().iter_rows()) == collectives
    assert tables.step_source == "annotation"


def test_sizes_and_groups_come_from_the_metadata(shared: Path) -> None:
    tables = distprof.load(shared / "traces" / "single" / "nccl-metadata.json.gz").tables
    assert [(group.name, group.desc, group.members) for group in tables.groups] == [("0", "default_pg", [0, 1])]
    assert tables.collectives["bytes"].null_count() == 0
    assert tables.collectives.filter(pl.col("kind") == "all_reduce")["bytes"].max() == 4 * 7_875_584
    launched = tables.kernels.filter(pl.col("cat") == "kernel")
    assert launched["launched"].null_count() == 0


def test_gloo_spans_know_their_operators(shared: Path) -> None:
    tables = distprof.load(shared / "traces" / "single" / "gloo-rank34-of-300.pt.trace.json.gz").tables
    calls = tables.collectives
    assert (calls["created"] < calls["started"]).all()
    assert set(calls["bytes"]) == {4 * 321_271, 4 * 2_082_411}
    assert tables.groups[-1].name == "not named", "its header names eleven groups, and the spans none of them"


def test_no_digit_of_a_time_is_lost(shared: Path) -> None:
    events = read_trace(shared / "traces" / "single" / "ns-resolution.pt.trace.json.gz").events
    first = events.filter(pl.col("name") == "autograd::engine::evaluate_function: DivBackward1").row(0, named=True)
    assert (first["start"], first["end"] - first["start"]) == (1_712_195_495_519_689_047, 63_813)


def test_a_trace_that_tells_no_rank_is_not_rank_0(shared: Path) -> None:
    path = shared / "traces" / "single" / "no-distributed-info.json.gz"
    with pytest.raises(RunDirectoryError, match=r"rank unknown.*--rank FILE=N"):
        distprof.load(path)
    run = distprof.load(path, ranks={path: 3})
    assert (run.tables.ranks, run.tables.world_size) == ([3], 4)
    assert run.tables.collectives["kind"].to_list() == ["all_to_all"] * 6, (
        "their annotations tell when they were created"
    )
    assert run.tables.collectives["ended"].null_count() == 6


def test_files_of_different_jobs_are_no_run(shared: Path) -> None:
    with pytest.raises(RunDirectoryError, match="different jobs"):
        distprof.load(shared / "traces" / "single")


@pytest.mark.parametrize("name", ["mi250-rocm", "mi300-bert-small", "h100-bert-small"])
def test_marks_on_the_device_are_no_steps(shared: Path, name: str) -> None:
    path = shared / "traces" / "single" / f"{name}.json.gz"
    tables = distprof.load(path, ranks={path: 0}).tables
    marks = tables.events.filter(pl.col("name").str.starts_with("ProfilerStep#"))
    assert tables.steps.height == marks.filter(pl.col("cat") == "user_annotation").height < marks.height
    assert tables.memory.height == (0 if name == "mi250-rocm" else 236)
