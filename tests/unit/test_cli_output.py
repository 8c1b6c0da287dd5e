"""Where commands print and write: what is full, closed, no file, or named by a stranger."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distprof.run.files import write_atomic, write_where_told

COMMAND = [sys.executable, "-m", "distprof"]


def told(*words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"], ["doctor"]], ids=" ".join)
def test_a_full_standard_output_is_one_line(words: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = told(*words, stdout=full)
    finally:
        os.close(full)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.endswith("error: standard output cannot be written (No space left on device)")


@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(words: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = told(*words, stdout=writes)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_where_told(pipe, b"report")
    reader.join(10)
    assert read == [b"report"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_in_a_run_directory_nothing_is_written_through_a_strangers_link(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "report.json"
    os.mkfifo(pipe)  # opened for writing it would wait for a reader for ever
    link.symlink_to(pipe)
    write_atomic(link, b"report")
    assert not link.is_symlink()
    assert link.read_bytes() == b"report"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_that_is_full_is_named_and_stays() -> None:
    device = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        write_where_told(device, b"report")
    assert raised.value.filename == "/dev/full"
    assert stat.S_ISCHR(device.stat().st_mode)


@pytest.mark.parametrize("command", ["report", "merge", "scrub", "compare", "view"])
def test_names_in_errors_hold_no_control_codes(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "job\x1b[31m\u202e"
    folder.mkdir()
    (folder / "rank0\x1b[31m.json").write_text('{"traceEvents":[{"ph":"X","name":"x"}]}')
    more = {
        "merge": ["-o", str(tmp_path / "all.json")],
        "scrub": ["-o", str(tmp_path / "out")],
        "compare": [str(folder)],
    }
    path = folder / "missing.json" if command == "scrub" else folder  # it copies what cannot be analysed, too
    done = told(command, str(path), *more.get(command, []))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.isprintable()
    assert "\\x1b[31m" in line


@pytest.mark.parametrize("options", [["--nproc", "x"], ["--nnodes", "a:b"], ["--nnodes", "1:2:3"]], ids=" ".join)
def test_ranks_that_are_no_number_are_one_line(options: list[str]) -> None:
    done = told("launch", *options, "train.py")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("distprof launch: error: ")
    assert options[1] in line
