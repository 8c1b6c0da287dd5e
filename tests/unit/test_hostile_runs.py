"""Run directories and traces that somebody made to break a report: notes or one line, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.cli.report import main as report
from distprof.pipeline import build
from distprof.report.timeline import write_timeline
from distprof.result import to_json
from distprof.run.attempts import read_key
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.run.nodes import read_nodes
from distprof.scrub.copy import scrub
from tests.unit.handmade import mark, write_trace
from tests.worlds import World, write

OPENED: list[str] = []
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write(World(ranks=2, steps=6, windows=[(2, 4)]), tmp_path / "run")
    return RunDirectory(tmp_path / "run")


@pytest.fixture(scope="module")
def audit() -> None:
    """From now on what this process opens is noted in OPENED: a hook cannot be taken away again."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            OPENED.append(os.fspath(arguments[0]))  # type: ignore[arg-type]

    sys.addaudithook(note)


@pytest.fixture
def opened(audit: None) -> list[str]:
    return OPENED


def places(run: RunDirectory) -> list[tuple[str, str | None]]:
    """Where notes are, after everything was analysed and written."""
    loaded = distprof.load(run.path)
    to_json(build(loaded))
    return [(note.file.name, note.place) for note in loaded.notes]


def test_facts_with_schema_and_rank_only(run: RunDirectory) -> None:
    run.rank(0, 1).facts.write_text('{"schema": "distprof.rank.v1", "rank": 1}')
    assert places(run) == []
    assert distprof.load(run.path).tables.ranks == [0, 1]


@pytest.mark.parametrize(
    "facts",
    [
        {"requested": ["cpu"]},
        {"requested": ["cpu"], "schedule": None, "boundaries": None},
        {"windows": [{"index": 0}], "exit": {}, "own_cost": {}},
        {"ddp": [{"name": "DistributedDataParallel#0"}], "models": [{}], "batches": [{}], "loaders": [{"name": "x"}]},
        {"host": None, "device": None, "problems": None, "groups": None},
        {"host": 7, "status": [], "windows": "none", "exit": 3, "models": 1, "batches": {}, "problems": [1]},
        {"argv": [3], "cpus": "many", "peak_resident_bytes": -1, "loaders": [{"name": "x", "persistent_workers": 7}]},
    ],
)
def test_facts_that_lack_or_mistake_what_analyses_need(run: RunDirectory, facts: dict[str, Any]) -> None:
    run.rank(0, 1).facts.write_text(json.dumps({"schema": "distprof.rank.v1", "rank": 1, **facts}))
    assert all(name == "rank00001.json" and place for name, place in places(run))
    loaded = distprof.load(run.path)
    assert set(loaded.tables.steps["rank"]) == {0, 1}, "its streams are analysed"


def test_deep_nesting(run: RunDirectory) -> None:
    run.rank(0, 1).facts.write_text(f'{{"schema": {DEEP}}}')
    run.rank(0, 1).collectives.write_text(f'{{"schema": {DEEP}}}\n')
    assert places(run) == [("rank00001.json", None), ("rank00001.collectives.jsonl", "line 1")]
    run.manifest.write_text(DEEP)
    with pytest.raises(RunDirectoryError, match="nested too deep"):
        distprof.load(run.path)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ended": "bad"}, 'ended is "bad"'),
        ({"world_size": "4"}, 'world_size is "4"'),
        ({"world_size": True}, "world_size is true"),
        ({"run_id": None}, "run_id is null"),
        ({"command": ["a", 1]}, r"command is \["),
        ({"ended": {"failures": []}}, r"ended.failures is \[\]"),
        ({"ended": {"failures": {"x": {}}}}, r'ended.failures\["x"\]'),
        ({"ended": {"failures": {"0": 1}}}, r'ended.failures\["0"\] is 1'),
        ({"ended": {"absent": {"0": 1}}}, r'ended.absent\["0"\] is 1'),
    ],
)
def test_a_manifest_with_wrong_types_is_one_line(run: RunDirectory, values: dict[str, Any], says: str) -> None:
    run.manifest.write_text(json.dumps({**json.loads(run.manifest.read_text()), **values}))
    with pytest.raises(RunDirectoryError, match=says) as caught:
        distprof.load(run.path)
    assert "\n" not in str(caught.value)
    assert str(run.manifest) in str(caught.value)


def test_a_failure_that_says_nothing(run: RunDirectory) -> None:
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "ended": {"failures": {"1": {}}}}))
    assert places(run) == []


def test_more_ranks_than_there_can_be(run: RunDirectory) -> None:
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "world_size": 3_000_000}))
    facts = json.loads(run.rank(0, 0).facts.read_text())
    run.rank(0, 0).facts.write_text(json.dumps({**facts, "world_size": 3_000_000}))
    (run.attempt(0) / "rank5000000000.json").write_text("{}")
    (run.attempt(0) / "rank00001.window99999999999.pt.trace.json").write_text("{}")
    assert set(places(run)) == {
        ("rank5000000000.json", None),
        ("run.json", "$.world_size"),
        ("rank00000.json", "$.world_size"),
        ("rank00001.window99999999999.pt.trace.json", None),
    }
    assert distprof.load(run.path).tables.world_size == 2


def test_links_out_of_the_run_directory_and_pipes(run: RunDirectory, tmp_path: Path) -> None:
    files = run.rank(0, 1)
    for path in (files.facts, files.zones, files.window(0)):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    files.collectives.unlink()
    os.mkfifo(files.collectives)
    notes = {note.file.name: note.text for note in distprof.load(run.path).notes}
    assert {name: "link out of" in text for name, text in notes.items()} == {
        "rank00001.json": True,
        "rank00001.zones.jsonl": True,
        "rank00001.window0.pt.trace.json.gz": True,
        "rank00001.collectives.jsonl": False,
    }
    assert "no regular file" in notes["rank00001.collectives.jsonl"]
    run.manifest.rename(tmp_path / "run.json")
    run.manifest.symlink_to(tmp_path / "run.json")
    with pytest.raises(RunDirectoryError, match="link out of the run directory"):
        distprof.load(run.path)


def test_links_in_the_places_of_all_else_that_is_read(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run.nodes.mkdir()
    clock = run.rank(0, 1).clock
    node = {"schema": "distprof.node.v1", "host": "h", "pid": 1, "started_unix_ns": 1, "scheduler": {}, "told": []}
    rendezvous = [{"attempt": 0, "node_rank": 0, "nodes": 1, "unix_ns": 1}]
    for place, text in (
        (run.nodes / "h-1.json", json.dumps({**node, "attempts": rendezvous, "ended": {"error": "stands outside"}})),
        (run.rendezvous(0), '{"schema": "distprof.rendezvous.v1", "key": "stands outside"}'),
        (clock, '{"schema": "distprof.clock.v1", "rank": 1}\n'),
    ):
        (outside / place.name).write_text(text)
        place.symlink_to(outside / place.name)
    assert places(run) == [(clock.name, None)]
    assert read_nodes(run) == []
    assert read_key(run, 0) is None


def test_a_link_in_the_place_of_an_attempt(run: RunDirectory, tmp_path: Path) -> None:
    run.attempt(0).rename(tmp_path / "outside")
    run.attempt(0).symlink_to(tmp_path / "outside")
    loaded = distprof.load(run.path)
    assert loaded.tables.ranks == []
    assert loaded.notes and all("link out of the run directory" in note.text for note in loaded.notes)


def test_no_path_that_stands_in_a_file_is_opened(
    run: RunDirectory, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    bait = write_trace(outside / "rank1.json", [mark(3, 0, 10)])
    files = run.rank(0, 1)
    facts = json.loads(files.facts.read_text())
    lures = {"argv": [str(bait)], "host": str(bait), "cwd": str(outside), "trace": str(bait), "problems": [str(bait)]}
    files.facts.write_text(json.dumps({**facts, **lures}))
    manifest = json.loads(run.manifest.read_text())
    config = {"run_dir": str(outside), "trace": str(bait)}
    run.manifest.write_text(
        json.dumps({**manifest, "command": [str(bait)], "config": config, "beside": [str(outside)]})
    )
    trace = gzip.decompress(files.window(0).read_bytes()).decode()
    name = json.dumps(str(bait))
    event = f'{{"ph": "X", "cat": "cpu_op", "name": {name}, "pid": 1, "tid": 1, "ts": 1, "dur": 1}}'
    trace = f'{{"traceName": {name}, {trace[1:]}'.replace('"traceEvents": [', f'"traceEvents": [{event},', 1)
    files.window(0).write_bytes(gzip.compress(trace.encode()))
    link = run.rank(0, 0).window(0)
    (outside / link.name).write_bytes(link.read_bytes())
    link.unlink()
    link.symlink_to(outside / link.name)
    monkeypatch.chdir(run.path)
    opened.clear()
    loaded = distprof.load(run.path)
    write_timeline(loaded, build(loaded), tmp_path / "timeline.json.gz")
    scrub([run.path], tmp_path / "copy")
    assert any(path.endswith(files.window(0).name) for path in opened), "it is seen what is opened"
    assert not [
        path for path in opened if path.startswith(str(outside)) or Path(path).resolve().is_relative_to(outside)
    ]


def test_a_report_is_not_written_through_links(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    made = (run.report_json, run.report_html, run.timeline)
    for path in made:
        path.symlink_to(outside)
    assert report([str(run.path), "--quiet"]) == 0
    assert outside.read_text() == "mine"
    assert any(not path.is_symlink() for path in made), "it was written"


def test_a_run_directory_behind_a_link_is_read(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run.path)
    assert distprof.load(tmp_path / "latest").notes == []


def test_a_trace_that_claims_an_impossible_rank(tmp_path: Path) -> None:
    good = write_trace(tmp_path / "a.json", [mark(3, 0, 10)], rank=0, world_size=3_000_000)
    bad = write_trace(tmp_path / "b.json", [mark(3, 0, 10)], rank=5_000_000_000, world_size=None)
    run = distprof.load(tmp_path)
    assert (run.tables.ranks, run.tables.world_size) == ([0], 1)
    noted = {(note.file, note.place) for note in run.notes}
    assert {(good, "$.distributedInfo.world_size"), (bad, "$.distributedInfo.rank"), (bad, None)} <= noted
    assert any(note.text.startswith("rank unknown") for note in run.notes)
    for rank in (-1, 2**20, 3_000_000):
        with pytest.raises(RunDirectoryError, match="ranks go from 0 to 1048575"):
            distprof.load(bad, ranks={bad: rank})


def test_a_trace_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(RunDirectoryError, match="it is no regular file"):
        distprof.load(tmp_path / "rank0.json")
