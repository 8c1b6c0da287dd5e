"""A run of several directories, several attempts, and ends of all kinds: what is read, and what is said of the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.launcher.staging import move, stage
from distprof.pipeline import build
from distprof.run.attempts import claim_attempt
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError, read_manifest
from distprof.run.nodes import NodeFile
from distprof.trace.load import load_attempt
from tests.worlds import World, write

WORLD = World(ranks=4, steps=8, windows=[(2, 5)])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run on a disk that its hosts share."""
    write(WORLD, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def apart(run: RunDirectory, tmp_path: Path) -> list[RunDirectory]:
    """The same on two disks, whose numbers of the attempt differ."""
    found = []
    for host, (number, ranks) in enumerate(((0, (0, 1)), (1, (2, 3)))):
        directory = RunDirectory(tmp_path / f"host{host}")
        directory.path.mkdir()
        shutil.copy(run.manifest, directory.manifest)
        for earlier in range(number):
            claim_attempt(directory, f"earlier {earlier}")
        assert claim_attempt(directory, "one") == number
        for rank in ranks:
            for path in run.attempt(0).glob(f"rank{rank:05d}*"):
                shutil.copy(path, directory.attempt(number))
        found.append(directory)
    return found


def said(result: Any) -> str:
    return "\n".join(f"{row.what}: {row.reason}" for row in result.not_observed)


def node(directory: RunDirectory, *attempts: int, host: str = "a", **known: Any) -> None:
    file = NodeFile.create(directory, {})
    file.node.host = host
    file.node.attempts = [{"attempt": each, "node_rank": 0, "nodes": 1, "unix_ns": 1} for each in attempts]
    for name, value in known.items():
        setattr(file.node, name, value)
    file.write()


END: dict[str, Any] = {"error": None, "failures": {}, "absent": {}}


def test_directories_of_hosts_that_share_no_disk_are_one_run(run: RunDirectory, apart: list[RunDirectory]) -> None:
    whole, joined = distprof.load(run.path), distprof.load(*(directory.path for directory in apart))
    assert (joined.attempt, joined.attempts, joined.beside) == (1, [0, 1], [apart[1].path])
    for name in ("zones", "steps", "collectives", "events", "windows"):
        assert_frame_equal(getattr(joined.tables, name), getattr(whole.tables, name))
    result = build(joined)
    assert [row.status for row in result.ranks] == ["complete"] * 4
    assert result.ranks[0].trace == "attempt0/rank00000.window0.pt.trace.json.gz"
    assert result.ranks[3].trace == str(apart[1].rank(1, 3).window(0))


def test_one_of_them_alone_says_who_is_missing(apart: list[RunDirectory]) -> None:
    result = build(distprof.load(apart[0].path))
    assert [row.status for row in result.ranks] == ["complete", "complete", "missing", "missing"]


def test_the_same_directory_twice_is_one(run: RunDirectory) -> None:
    loaded = distprof.load(run.path, run.path)
    assert (loaded.beside, loaded.notes) == ([], [])


def test_a_rank_that_is_in_both_is_taken_from_the_first(run: RunDirectory, apart: list[RunDirectory]) -> None:
    claim_attempt(run, "one")  # the shared run's own attempt has no key: it is told by its number
    for path in run.attempt(0).glob("rank00000*"):
        shutil.copy(path, apart[1].attempt(1))
    loaded = distprof.load(*(directory.path for directory in apart))
    (note,) = loaded.notes
    assert (note.rank, note.file) == (0, apart[1].rank(1, 0).facts)
    assert str(apart[0].attempt(0)) in note.text


def test_directories_of_different_runs_are_refused(run: RunDirectory, apart: list[RunDirectory]) -> None:
    manifest = json.loads(apart[1].manifest.read_text())
    apart[1].manifest.write_text(json.dumps({**manifest, "run_id": "other"}))
    with pytest.raises(RunDirectoryError, match=r"are of different runs \(0123456789abcdef and other\)"):
        distprof.load(*(directory.path for directory in apart))
    with pytest.raises(RunDirectoryError, match=r"is a run directory and .* is none"):
        distprof.load(run.path, run.path / "attempt0")


def test_an_earlier_attempt_is_kept_and_mentioned_with_how_it_ended(run: RunDirectory) -> None:
    shutil.copytree(run.attempt(0), run.attempt(1))
    (run.attempt(2)).mkdir()  # came to nothing
    node(run, 0, told=[{"signal": "SIGTERM", "unix_ns": 1}])
    node(run, 1, ended=END)
    loaded = distprof.load(run.path)
    assert (loaded.attempt, loaded.attempts) == (1, [0, 1, 2])
    text = said(build(loaded))
    assert "attempt0: an earlier attempt: the scheduler ended it (SIGTERM); what it recorded is kept" in text
    assert "attempt2: a later attempt: nobody says how it ended" in text
    other = load_attempt(loaded, 0)
    assert other is not None
    assert (other.attempt, load_attempt(loaded, 2)) == (0, None)


@pytest.mark.parametrize(
    ("attempts", "known", "says"),
    [
        ((0, 1), {}, "its ranks were started anew by the launcher"),
        ((0,), {"ended": {**END, "error": "a rank failed"}}, "a rank failed"),
        ((0,), {"ended": {**END, "error": "SignalException: got signal: 2"}}, "it was ended by a signal"),
        ((0,), {"ended": END}, "it came to its end"),
        ((0,), {}, "its launcher was killed"),
    ],
)
def test_how_an_attempt_ended(run: RunDirectory, attempts: tuple[int, ...], known: dict[str, Any], says: str) -> None:
    shutil.copytree(run.attempt(0), run.attempt(1))
    node(run, *attempts, **known)
    assert f"an earlier attempt: {says};" in said(build(distprof.load(run.path)))


def test_a_host_that_left_no_end_and_a_scheduler_that_spoke_are_named(run: RunDirectory) -> None:
    node(run, 0, host="good", ended=END, told=[{"signal": "SIGUSR2", "unix_ns": 1}])
    node(run, 0, host="gone")
    text = said(build(distprof.load(run.path)))
    assert "the launcher on gone has left no end" in text
    assert "the scheduler sent SIGUSR2 to the launcher" in text


def test_failures_of_all_hosts_are_told(run: RunDirectory, apart: list[RunDirectory]) -> None:
    def failed(rank: str, code: int, when: float) -> dict[str, Any]:
        failure = {"first": True, "exit_code": code, "signal": "SIGKILL" if code < 0 else None, "unix_s": when}
        return {**END, "error": "a rank failed", "failures": {rank: failure}}

    node(apart[0], 0, host="a", ended=failed("1", 1, 20.0))
    node(apart[1], 1, host="b", ended=failed("2", -9, 10.0))
    result = build(distprof.load(*(directory.path for directory in apart)))
    assert result.ranks[1].reason == "it exited with 1, after rank 2 had failed"
    assert result.ranks[2].reason == "it was killed by SIGKILL"


def test_a_rank_that_was_cut_off_says_where_and_that_the_scheduler_had_told(run: RunDirectory) -> None:
    path = run.rank(0, 2).facts
    told = {"signal": "SIGUSR2", "unix_ns": 1, "boundary": 3}
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "running", "told": told}))
    row = build(distprof.load(run.path)).ranks[2]
    assert row.status == "partial"
    assert row.reason is not None
    assert row.reason.startswith("it was cut off at step 8")
    assert row.reason.endswith("at step 3 the scheduler's SIGUSR2 had told that the job would end")


def test_staged_files_are_moved_and_what_is_there_already_stays(run: RunDirectory, tmp_path: Path) -> None:
    manifest = read_manifest(run)
    target = RunDirectory(tmp_path / "shared")
    target.path.mkdir()
    shutil.copy(run.manifest, target.manifest)
    staged = stage(tmp_path / "disk" / "of a host", target, manifest)
    claim_attempt(target, "one")
    claim_attempt(staged, "one", preferred=0)
    for path in run.attempt(0).glob("rank0000[01]*"):
        shutil.copy(path, staged.attempt(0))
    (staged.attempt(0) / ".rank00000.json.x.tmp").touch()
    joined = distprof.load(target.path, staged.path)  # as where the launcher was killed
    assert joined.tables.ranks == [0, 1]
    (target.attempt(0) / "rank00001.json").write_text("somebody else's")
    assert move(staged, target) == [staged.attempt(0) / "rank00001.json"]
    (target.attempt(0) / "rank00001.json").unlink()
    assert move(staged, target) == []
    assert not staged.path.exists()
    names = {path.name for path in run.attempt(0).glob("rank0000[01]*")}
    assert {path.name for path in target.attempt(0).iterdir()} == {*names, "rendezvous.json"}
    assert all((target.attempt(0) / name).read_bytes() == (run.attempt(0) / name).read_bytes() for name in names)
