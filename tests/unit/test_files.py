"""Atomic writing: the old file or the new one, and nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.run.files import open_atomic, write_atomic


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
