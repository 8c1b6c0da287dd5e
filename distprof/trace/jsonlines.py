"""Reading a rank's streams of JSON lines, as far as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from distprof.trace.notes import Note, RecordingError

Block = TypeVar("Block", bound=msgspec.Struct)


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
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    _check_header(path, lines[0], schema, rank)
    blocks: list[tuple[int, Block]] = []
    notes: list[Note] = []
    decoder = msgspec.json.Decoder(block)
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            blocks.append((number, decoder.decode(line)))
        except msgspec.DecodeError as error:
            if number == len(lines):
                text = "it ends in the middle of a line, as when its process was killed; the line was left out"
            else:
                text = f"the line is broken and was left out ({error})"
            notes.append(Note(rank, path, f"line {number}", text))
    return blocks, notes


def _check_header(path: Path, line: bytes, schema: str, rank: int) -> None:
    if not line:
        raise RecordingError(rank, path, "line 1", "it is empty: the rank ended before it recorded anything")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except msgspec.DecodeError as error:
        text = f"the header is broken ({error}); restore the file from the machine that recorded it"
        raise RecordingError(rank, path, "line 1", text) from error
    if header.schema != schema:
        text = f"its schema is {header.schema!r}, not {schema!r}; use the distprof version that recorded it"
        raise RecordingError(rank, path, "line 1", text)
    if header.rank != rank:
        text = f"it was recorded by rank {header.rank}; give it the name of that rank again"
        raise RecordingError(rank, path, "line 1", text)
