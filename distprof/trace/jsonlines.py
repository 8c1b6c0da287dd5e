"""Reading a rank's streams of JSON lines, as far as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from distprof.run.files import open_regular
from distprof.trace.notes import Note, RecordingError

Block = TypeVar("Block", bound=msgspec.Struct)


# A line holds what was recorded in a second or so.
_LONGEST_LINE = 64 << 20
_SKIPPED = 1 << 20  # bytes of a line that is too long, at a time
_BROKEN = (msgspec.DecodeError, RecursionError)


class _Header(msgspec.Struct):
    schema: str
    rank: int


def read_stream(
    path: Path, *, schema: str, rank: int, block: type[Block]
) -> tuple[list[tuple[int, Block]], list[Note]]:
    """Read a stream: a header line, then one block per line.

    A killed process or a full disk leaves a cut line, mostly the last one: such a line is left out and noted.

    Args:
        schema, rank: what the header must say.
        block: type of the lines after it.

    Returns:
        The blocks with their line numbers, and notes on lines that were left out.

    Raises:
        RecordingError: the file cannot be opened, or its header is broken or another stream's.
    """
    blocks: list[tuple[int, Block]] = []
    notes: list[Note] = []
    decoder = msgspec.json.Decoder(block)
    try:
        with open_regular(path) as file:
            lines = _lines(file)
            _check_header(path, next(lines, b""), schema, rank)
            for number, line in enumerate(lines, start=2):
                if line is None:
                    text = f"the line is longer than {_LONGEST_LINE >> 20} MiB and was left out"
                    notes.append(Note(rank, path, f"line {number}", text))
                elif line.strip():
                    try:
                        blocks.append((number, decoder.decode(line)))
                    except _BROKEN as error:
                        notes.append(Note(rank, path, f"line {number}", _what_is_broken(line, error)))
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    return blocks, notes


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """A file's lines with their ends, None in the place of one that is too long to be ours."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and line[-1:] != b"\n":
            while (rest := file.readline(_SKIPPED)) and rest[-1:] != b"\n":
                pass
            yield None
        else:
            yield line


def _what_is_broken(line: bytes, error: Exception) -> str:
    if line[-1:] != b"\n":
        return "it ends in the middle of a line, as when its process was killed; the line was left out"
    why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    return f"the line is broken and was left out ({why})"


def _check_header(path: Path, line: bytes | None, schema: str, rank: int) -> None:
    if line is None:
        raise RecordingError(rank, path, "line 1", f"the header is longer than {_LONGEST_LINE >> 20} MiB")
    if not line.strip():
        raise RecordingError(rank, path, "line 1", "it is empty: the rank ended before it recorded anything")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except _BROKEN as error:
        text = f"the header is broken ({error}); restore the file from the machine that recorded it"
        raise RecordingError(rank, path, "line 1", text) from error
    if header.schema != schema:
        text = f"its schema is {header.schema!r}, not {schema!r}; use the distprof version that recorded it"
        raise RecordingError(rank, path, "line 1", text)
    if header.rank != rank:
        text = f"it was recorded by rank {header.rank}; give it the name of that rank again"
        raise RecordingError(rank, path, "line 1", text)
