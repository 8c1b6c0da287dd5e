"""Reading run directories: broken, incomplete, and none at all."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from tests.worlds import World, simulate, write

WORLD = World(ranks=3, steps=8, windows=[(2, 5)])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write(WORLD, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def test_whole(run: RunDirectory) -> None:
    loaded = distprof.load(run.path)
    assert loaded.notes == []
    assert (loaded.attempt, loaded.attempts) == (0, [0])
    assert loaded.directory == run
    assert loaded.manifest.world_size == 3
    assert loaded.trace_files == {rank: {0: run.rank(0, rank).window(0)} for rank in range(3)}
    assert loaded.tables.ranks == [0, 1, 2]


def test_by_its_name_as_text(run: RunDirectory) -> None:
    assert distprof.load(str(run.path)).tables.step_source == "optimizer"


def test_a_truncated_trace_keeps_what_is_whole(run: RunDirectory) -> None:
    trace = run.rank(0, 1).window(0)
    data = gzip.decompress(trace.read_bytes())
    trace.write_bytes(gzip.compress(data[: len(data) // 2]))
    loaded = distprof.load(run.path)
    [note] = loaded.notes
    assert (note.rank, note.file) == (1, trace)
    assert note.text.startswith("it is truncated, as when its process was killed")
    events, whole = (tables.events.filter(pl.col("rank") == 1) for tables in (loaded.tables, simulate(WORLD)))
    assert 0 < len(events) < len(whole)


def test_a_truncated_trace_that_lost_its_base_is_put_where_its_window_was(run: RunDirectory) -> None:
    """torch writes the base after the events."""
    trace = run.rank(0, 1).window(0)
    text = gzip.decompress(trace.read_bytes()).decode()
    without = re.sub(r'"baseTimeNanoseconds": \d+, ', "", text)
    trace.write_bytes(gzip.compress(without[:-200].encode()))
    loaded = distprof.load(run.path)
    assert [note.place for note in loaded.notes][-1] == "$.baseTimeNanoseconds"
    events, whole = (tables.events.filter(rank=1) for tables in (loaded.tables, simulate(WORLD)))
    assert len(events) > 0.9 * len(whole)
    assert events.join(whole, on=list(events.columns), how="anti").is_empty()


def test_a_broken_trace_costs_its_own_window_only(run: RunDirectory) -> None:
    trace = run.rank(0, 1).window(0)
    trace.write_bytes(b"no trace")
    loaded = distprof.load(run.path)
    [note] = loaded.notes
    assert (note.rank, note.file, note.place) == (1, trace, None)
    tables, whole = loaded.tables, simulate(WORLD)
    assert tables.events["rank"].unique().sort().to_list() == [0, 2]
    assert tables.zones.equals(whole.zones)
    assert tables.steps.equals(whole.steps)
    of_rank_1 = tables.collectives.filter(pl.col("rank") == 1)
    assert of_rank_1["started"].null_count() == len(of_rank_1)
    assert of_rank_1["bucket"].to_list() == whole.collectives.filter(pl.col("rank") == 1)["bucket"].to_list()


def test_a_rank_with_a_broken_stream_is_kept(run: RunDirectory) -> None:
    files = run.rank(0, 1)
    files.zones.write_text("")
    with files.collectives.open("a") as file:
        file.write('{"record": [1')
    loaded = distprof.load(run.path)
    assert [(note.rank, note.file) for note in loaded.notes] == [(1, files.zones), (1, files.collectives)]
    tables = loaded.tables
    assert tables.ranks == [0, 1, 2]
    assert tables.step_source == "optimizer"
    assert tables.steps["rank"].unique().sort().to_list() == [0, 2]
    of_rank_1 = tables.collectives.filter(pl.col("rank") == 1)
    assert len(of_rank_1) == len(simulate(WORLD).collectives.filter(pl.col("rank") == 1))
    assert of_rank_1["zone"].null_count() == len(of_rank_1)


def test_broken_facts(run: RunDirectory) -> None:
    facts = run.rank(0, 2).facts
    facts.write_text('{"schema": ')
    loaded = distprof.load(run.path)
    [note] = loaded.notes
    assert (note.rank, note.file) == (2, facts)
    tables, whole = loaded.tables, simulate(WORLD)
    assert tables.ranks == [0, 1, 2]
    assert sorted(tables.facts) == sorted(tables.training_thread) == [0, 1]
    assert tables.groups == whole.groups, "the other members tell who is in the group"
    # Its window is taken from the first event to the last: less than it was, in the same steps.
    assert tables.steps.equals(whole.steps)
    assert tables.windows["rank"].to_list() == [0, 1, 2]


def test_a_rank_of_which_nothing_can_be_read_is_absent(run: RunDirectory) -> None:
    files = run.rank(0, 2)
    for path in (files.facts, files.zones, files.collectives, files.window(0)):
        path.write_text("")
    loaded = distprof.load(run.path)
    assert loaded.tables.ranks == [0, 1]
    assert loaded.tables.world_size == 3
    assert {note.rank for note in loaded.notes} == {2}
    assert len(loaded.notes) == 4


def test_a_rank_that_left_nothing_is_absent(tmp_path: Path) -> None:
    world = World(ranks=3, steps=4, missing=[1])
    write(world, tmp_path / "run")
    tables = distprof.load(tmp_path / "run").tables
    assert tables.ranks == [0, 2]
    assert tables.world_size == 3
    assert tables.groups[0].members == [0, 1, 2]


def test_the_last_attempt_that_left_recordings_is_read(run: RunDirectory) -> None:
    run.attempt(0).rename(run.attempt(1))
    run.attempt(0).mkdir()
    run.attempt(2).mkdir()
    loaded = distprof.load(run.path)
    assert (loaded.attempt, loaded.attempts) == (1, [0, 1, 2])


def test_a_window_that_was_never_opened(run: RunDirectory) -> None:
    for rank in range(3):
        files = run.rank(0, rank)
        facts = json.loads(files.facts.read_text())
        facts["windows"] = [{"index": 0, "start_unix_ns": None, "end_unix_ns": None, "reason": "the disk is full"}]
        files.facts.write_text(json.dumps(facts))
        files.window(0).unlink()
    tables = distprof.load(run.path).tables
    assert (len(tables.windows), len(tables.events)) == (0, 0)
    assert tables.events.schema == simulate(WORLD).events.schema


def test_an_uncompressed_trace_is_read_as_well(run: RunDirectory) -> None:
    files = run.rank(0, 0)
    files.window(0, compressed=False).write_bytes(gzip.decompress(files.window(0).read_bytes()))
    files.window(0).unlink()
    loaded = distprof.load(run.path)
    assert loaded.trace_files[0] == {0: files.window(0, compressed=False)}
    assert_frame_equal(loaded.tables.events, simulate(WORLD).events, check_row_order=False)


def test_what_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="Give the folder that `distprof launch` printed"):
        distprof.load(tmp_path)
    with pytest.raises(RunDirectoryError, match="does not exist"):
        distprof.load(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match="no path was given"):
        distprof.load()


def test_a_run_in_which_no_rank_came_far_enough(run: RunDirectory) -> None:
    for path in run.attempt(0).iterdir():
        path.unlink()
    with pytest.raises(RunDirectoryError, match="holds no recordings"):
        distprof.load(run.path)
