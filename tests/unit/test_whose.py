"""Whose a trace is, and which traces are one run's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.pipeline import build
from distprof.run.manifest import RunDirectoryError
from distprof.trace.loaded import Run
from distprof.trace.whose import rank_by_name
from tests.unit.handmade import BASE, Event, mark, nccl, write_trace

HOUR_US = 3_600e6


def expected(case: Path) -> Any:
    return json.loads((case / "expected.json").read_text())


def said(run: Run, name: str) -> list[str]:
    return [note.text for note in run.notes if note.file.name == name]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank_12.pt.trace.json.gz", 12),
        ("trace_8_rank_1.json", 1),
        ("gloo-rank34-of-300.json", 34),
        ("global_rank7.json", 7),
        ("worker1_step_12.1694128201556.pt.trace.json", 1),
        ("prof_r2.json", 2),
        ("run-TP-3.trace.json.gz", 3),
        ("local_rank_1_rank_5.json", 5),
        ("rank00003.window0.pt.trace.json.gz", 3),
        ("node7_4242.1700000000000000000.pt.trace.json", None),
        ("local_rank3.json", None),
        ("gpu3.json", None),
        ("trace.json", None),
        ("rank1_vs_rank2.json", None),
        ("run-TP-1-PP-0.json", None),
        ("frank3.json", None),
        ("rank99999999.json", None),
    ],
)
def test_a_rank_by_its_name(name: str, rank: int | None, tmp_path: Path) -> None:
    assert rank_by_name(tmp_path.parent / "traces" / name) == rank


def test_a_rank_by_its_folder() -> None:
    assert rank_by_name(Path("/job/rank_5/trace.json")) == 5
    assert rank_by_name(Path("/job/rank_5/rank_1.json")) == 1


def test_ranks_by_names_where_headers_tell_none(shared: Path) -> None:
    case = shared / "cases" / "no-rank-in-header"
    run = distprof.load(case)
    ranks = {trace.name: rank for rank, own in run.trace_files.items() for trace in own.values()}
    assert ranks == expected(case)["from_name"]
    for name in ranks:
        assert any("by its name alone" in text for text in said(run, name))
    for name in expected(case)["unknown"]:
        [text] = said(run, name)
        assert "rank unknown" in text and "--rank FILE=N" in text
    given = distprof.load(case, ranks={case / expected(case)["unknown"][0]: 4})
    assert given.tables.ranks == [0, 1, 2, 3, 4]


def test_a_missing_rank_is_told(shared: Path) -> None:
    case = shared / "cases" / "missing-rank"
    result = build(distprof.load(case))
    assert [row.rank for row in result.ranks if row.status == "missing"] == expected(case)["missing"]
    assert [row.rank for row in result.totals] == expected(case)["ranks"]
    assert result.run.world_size == expected(case)["world"]
    assert result.stragglers.verdict == "undecided"
    assert "rank 2 left no recording of steps and may be who the others waited for" in result.stragglers.why


def test_what_is_no_trace_is_listed_once_with_a_reason(shared: Path) -> None:
    case = shared / "cases" / "sidecar-files"
    run = distprof.load(case)
    assert run.tables.ranks == expected(case)["ranks"]
    for name in expected(case)["ignored"]:
        assert len(said(run, name)) == 1, name
    assert said(run, "old") == ["a sub-folder: it was not read; give it by itself"]
    assert {trace.parent for own in run.trace_files.values() for trace in own.values()} == {case}


def test_two_writers_of_one_file_are_no_rank(shared: Path) -> None:
    case = shared / "cases" / "two-writers-one-file"
    for name in ("trace.json", "concat.json"):
        with pytest.raises(RunDirectoryError, match="it looks like several ranks wrote this file"):
            distprof.load(case / name)


def events_of(rank: int = 0, *, at: float = 0.0, pid: int | None = None) -> list[Event]:
    return [mark(3, at, 1000, pid=pid or 1000 + rank), nccl(at + 100, 50)]


def test_the_header_wins_over_the_name_and_both_are_told(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank1.json", events_of(), rank=0)
    run = distprof.load(tmp_path)
    assert run.tables.ranks == [0]
    assert said(run, "rank1.json") == ["its header says rank 0, its name says 1: it is rank 0"]
    given = distprof.load(tmp_path, ranks={tmp_path / "rank1.json": 1})
    assert given.tables.ranks == [0]
    assert "--rank says 1 and its name says 1" in said(given, "rank1.json")[0]


def test_a_rank_that_does_not_fit_its_world_is_not_believed(tmp_path: Path) -> None:
    write_trace(tmp_path / "x.json", events_of(), rank=5, world_size=2)
    with pytest.raises(RunDirectoryError, match="rank unknown"):
        distprof.load(tmp_path)


def test_the_info_of_a_job_may_be_a_text(tmp_path: Path) -> None:
    text = "{'rank': 1, 'world_size': 2, 'pg_config': [{'pg_name': '0', 'pg_desc': 'default_pg', 'ranks': [0, 1]}]}"
    write_trace(tmp_path / "x.json", events_of(), rank=None, distributedInfo=text)
    tables = distprof.load(tmp_path).tables
    assert (tables.ranks, tables.world_size) == ([1], 2)
    assert tables.groups[0].members == [0, 1]


def test_windows_of_one_run(tmp_path: Path) -> None:
    """Rank 1 recorded the second window only: it is the second one for both."""
    for name, rank, at in (("a", 0, 0), ("b", 0, 5000), ("c", 1, 5001)):
        write_trace(tmp_path / f"{name}.json", events_of(rank, at=at), rank=rank)
    run = distprof.load(tmp_path)
    windows = {rank: {index: path.stem for index, path in own.items()} for rank, own in run.trace_files.items()}
    assert windows == {0: {0: "a", 1: "b"}, 1: {1: "c"}}
    assert run.notes == []


def test_attempts_of_one_job(tmp_path: Path) -> None:
    """The last complete attempt is reported; one that did not come far is mentioned."""
    for attempt, ranks in enumerate(([0, 1], [0, 1], [0])):
        for rank in ranks:
            events = events_of(rank, at=attempt * 1e7, pid=100 * attempt + 1000 + rank)
            write_trace(tmp_path / f"attempt{attempt}-{rank}.json", events, rank=rank)
    run = distprof.load(tmp_path)
    assert {path.name for own in run.trace_files.values() for path in own.values()} == {
        "attempt1-0.json",
        "attempt1-1.json",
    }
    assert said(run, "attempt0-0.json")[0].startswith("an earlier attempt or run of the job")
    assert said(run, "attempt2-0.json")[0].startswith("a later attempt, of fewer ranks")


def test_an_elastic_restart_with_fewer_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        write_trace(tmp_path / f"before{rank}.json", events_of(rank, pid=10 + rank), rank=rank, world_size=3)
    for rank in range(2):
        write_trace(tmp_path / f"after{rank}.json", events_of(rank, at=1e7, pid=20 + rank), rank=rank, world_size=2)
    run = distprof.load(tmp_path)
    assert (run.tables.ranks, run.tables.world_size) == ([0, 1], 2)
    assert len(run.notes) == 3


def test_copies_of_a_trace_are_one(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", events_of())
    shutil.copy(path, tmp_path / "rank0 (copy).json")
    run = distprof.load(tmp_path)
    assert run.tables.kernels.height == 1
    assert [note.text for note in run.notes] == [
        "the same window of the same process stands in rank0 (copy).json: it was left out"
    ]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"rank": 1, "world_size": 4}, "world sizes"),
        ({"rank": 1, "at": 2 * HOUR_US}, "more than an hour apart"),
        ({"rank": 0, "pid": 77}, "at one time by two processes that both were rank 0"),
    ],
)
def test_traces_of_different_jobs_are_refused(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    write_trace(tmp_path / "a.json", events_of())
    events = events_of(other["rank"], at=other.get("at", 0), pid=other.get("pid"))
    write_trace(tmp_path / "b.json", events, rank=other["rank"], world_size=other.get("world_size", 2))
    with pytest.raises(RunDirectoryError, match=why):
        distprof.load(tmp_path)


def test_files_folders_and_globs(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json", events_of(rank), rank=rank)
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    for paths in ([tmp_path], files, [tmp_path / "rank*.json"], [tmp_path, *files]):
        assert distprof.load(*paths).tables.ranks == [0, 1]
    with pytest.raises(RunDirectoryError, match="does not exist"):
        distprof.load(tmp_path / "worker*.json")


def test_one_host_is_one_clock_and_a_name_of_every_machine_is_no_host(tmp_path: Path) -> None:
    for host, verdict in (("nodea", "same_host"), ("localhost", "unaligned")):
        for rank in range(2):
            write_trace(tmp_path / f"{rank}.json", events_of(rank)[:1], rank=rank, host_name=host)
        result = build(distprof.load(tmp_path))
        assert result.clock.verdict == verdict
        assert result.run.nnodes == (1 if host == "nodea" else None)


def test_times_count_from_the_base_of_each_trace(shared: Path) -> None:
    run = distprof.load(shared / "cases" / "time-mixed-bases")
    assert run.tables.steps.filter(step=3)["start"].unique().to_list() == [BASE + 5_000_000_000]
    offsets = [row.offset_us for row in build(run).clock.ranks]
    assert offsets == [0.0, 0.0]


def test_a_truncated_trace_that_lost_its_base_takes_that_of_the_others(tmp_path: Path) -> None:
    for rank in range(2):
        path = write_trace(tmp_path / f"rank{rank}.json", events_of(rank), rank=rank)
    header = {"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": events_of(1)}
    path.write_text(json.dumps(header)[:-2])
    run = distprof.load(tmp_path)
    assert run.tables.events["start"].min() == BASE
    assert any("that of the other traces was taken" in text for text in said(run, "rank1.json"))
    assert run.bases == {0: {0: BASE}, 1: {0: BASE}}
