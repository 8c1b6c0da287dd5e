"""A run's digest gives what its recordings give, and only to who made it, for the files that it was made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import distprof
from distprof.pipeline import build
from distprof.result import to_json
from distprof.run.directory import RunDirectory
from distprof.run.signing import signature, users_key
from distprof.trace import load as loading
from distprof.trace.loaded import Run
from tests.worlds import World, write

WORLD = World(ranks=3, steps=8, windows=[(2, 5)])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of which some cannot be read."""
    write(WORLD, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    with directory.rank(0, 1).collectives.open("a") as file:
        file.write('{"record": [1')
    directory.rank(0, 2).zones.write_text("")
    return directory


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[RunDirectory]:
    """The directories whose recordings were read, one entry per reading."""
    found: list[RunDirectory] = []
    read = loading._load_run

    def reading(directory: RunDirectory, *how: Any) -> Run:
        found.append(directory)
        return read(directory, *how)

    monkeypatch.setattr(loading, "_load_run", reading)
    return found


def same(a: Run, b: Run) -> bool:
    for field in fields(a.tables):
        mine, theirs = getattr(a.tables, field.name), getattr(b.tables, field.name)
        if isinstance(mine, pl.DataFrame):
            assert_frame_equal(mine, theirs)
        else:
            assert mine == theirs, field.name
    return all(getattr(a, field.name) == getattr(b, field.name) for field in fields(a) if field.name != "tables")


def test_the_digest_gives_what_the_recordings_give(run: RunDirectory, readings: list[RunDirectory]) -> None:
    first, second = distprof.load(run.path), distprof.load(run.path)
    assert len(readings) == 1
    assert len(first.notes) == 2
    assert same(first, second)
    assert to_json(build(first)) == to_json(build(second))


def test_every_table_is_in_it(run: RunDirectory) -> None:
    tables = distprof.load(run.path).tables
    frames = {field.name for field in fields(tables) if isinstance(getattr(tables, field.name), pl.DataFrame)}
    assert {path.stem for path in run.digest.glob("*.arrow")} == frames


CHANGES: dict[str, Callable[[RunDirectory], object]] = {
    "a stream grows": lambda run: run.rank(0, 0).zones.open("a").write("\n"),
    "a file of the same size is newer": lambda run: run.rank(0, 0).window(0).touch(),
    "a file's mode": lambda run: run.rank(0, 0).zones.chmod(0o600),
    "a file is gone": lambda run: run.rank(0, 0).window(0).unlink(),
    "another attempt": lambda run: shutil.copytree(run.attempt(0), run.attempt(1)),
    "the manifest": lambda run: run.manifest.write_text(run.manifest.read_text().replace("train.py", "other.py")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_read_again(change: str, run: RunDirectory, readings: list[RunDirectory]) -> None:
    distprof.load(run.path)
    CHANGES[change](run)
    changed = distprof.load(run.path)
    assert len(readings) == 2
    assert same(changed, distprof.load(run.path))
    assert len(readings) == 2, "and then it has a digest again"


def test_another_reader_reads_again(
    run: RunDirectory, readings: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    distprof.load(run.path)
    monkeypatch.setattr("distprof.trace.digest.__version__", "999")
    distprof.load(run.path)
    assert len(readings) == 2


DAMAGES: dict[str, Callable[[RunDirectory], object]] = {
    "a table is cut": lambda run: (run.digest / "zones.arrow").write_bytes(b"ARROW1"),
    "a table is another": lambda run: shutil.copy(run.digest / "zones.arrow", run.digest / "events.arrow"),
    "a table is gone": lambda run: (run.digest / "zones.arrow").unlink(),
    "no signature": lambda run: (run.digest / "digest.json").write_text("{}"),
    "empty": lambda run: (run.digest / "digest.json").write_text(""),
    "nothing in it": lambda run: [path.unlink() for path in run.digest.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_digest_is_made_anew(damage: str, run: RunDirectory, readings: list[RunDirectory]) -> None:
    first = distprof.load(run.path)
    DAMAGES[damage](run)
    assert same(first, distprof.load(run.path))
    assert len(readings) == 2
    assert same(first, distprof.load(run.path))
    assert len(readings) == 2


def forged(run: RunDirectory, key: bytes) -> None:
    """Change what the digest says of the run, and sign it."""
    path = run.digest / "digest.json"
    told = json.loads(path.read_bytes().partition(b"\n")[2])
    told["values"]["world_size"] = 1000
    text = json.dumps(told).encode()
    path.write_bytes(signature(text, key) + b"\n" + text)


def test_a_digest_that_somebody_else_signed_is_not_believed(run: RunDirectory, readings: list[RunDirectory]) -> None:
    distprof.load(run.path)
    forged(run, key=bytes(32))
    assert distprof.load(run.path).tables.world_size == 3
    assert len(readings) == 2
    key = users_key()
    assert key is not None
    forged(run, key)
    assert distprof.load(run.path).tables.world_size == 1000, "the forgery is sound but for its signature"


def test_a_digest_of_another_user_is_not_believed(
    run: RunDirectory, readings: list[RunDirectory], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distprof.load(run.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.with_name("other")))
    distprof.load(run.path)
    assert len(readings) == 2


def test_a_digest_in_a_copied_directory_is_not_believed(
    run: RunDirectory, readings: list[RunDirectory], tmp_path: Path
) -> None:
    distprof.load(run.path)
    shutil.copytree(run.path, tmp_path / "copy")  # with times
    run.path.rename(tmp_path / "moved")
    (tmp_path / "copy").rename(run.path)
    distprof.load(run.path)
    assert len(readings) == 2


def test_a_link_in_the_place_of_the_digest_is_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.digest.symlink_to(elsewhere)
    distprof.load(run.path)
    assert list(elsewhere.iterdir()) == []


def test_without_a_private_key_there_is_no_digest(run: RunDirectory, cache: Path) -> None:
    distprof.load(run.path)
    key = cache / "distprof" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    shutil.rmtree(run.digest)
    key.chmod(0o644)
    distprof.load(run.path)
    assert not run.digest.exists()


def test_a_directory_that_cannot_be_written_goes_without(
    run: RunDirectory, readings: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("distprof.trace.digest.write_atomic", refuse)
    first, second = distprof.load(run.path), distprof.load(run.path)
    assert len(readings) == 2
    assert same(first, second)
