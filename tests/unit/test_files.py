"""Atomic writing: the old file or the new one, and nothing beside it."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from distprof.run.files import create_json, open_atomic, read_json, write_atomic


def test_the_new_file_replaces_the_old_one_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with open_atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), open_atomic(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "x"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(path, b"")
    assert caught.value.filename == str(path)


def make(job: tuple[Path, int]) -> bool:
    path, number = job
    return create_json(path, {"maker": number, "filling": "x" * 10_000})


def test_of_several_who_make_a_file_at_once_one_does(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with multiprocessing.get_context("fork").Pool(8) as pool:
        made = pool.map(make, [(path, number) for number in range(32)], chunksize=1)
    assert made.count(True) == 1
    assert read_json(path)["maker"] == made.index(True)
    assert list(tmp_path.iterdir()) == [path]


def test_without_hard_links_one_makes_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "run.json"
    assert [create_json(path, number) for number in range(3)] == [True, False, False]
    assert read_json(path) == 0


def test_a_renaming_whose_answer_was_lost_has_taken_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.replace

    def answer_lost(source: Path, target: Path) -> None:
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))

    monkeypatch.setattr(os, "replace", answer_lost)
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"

    def gone(source: Path, _: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))

    monkeypatch.setattr(os, "replace", gone)
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "a", b"newer")
    assert (tmp_path / "a").read_bytes() == b"new"
