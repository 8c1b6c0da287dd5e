"""Scrubbing the files of a recording: a trace, a stream of JSON lines, a document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from isal import igzip

from distprof.run.files import open_atomic, open_regular
from distprof.scrub.rewrite import Rewriter
from distprof.trace.chunks import EventChunks
from distprof.trace.header import Header, read_header

_MOST_DOCUMENT = 16 << 20
_LONGEST_LINE = 64 << 20
_BROKEN = (msgspec.MsgspecError, RecursionError, ValueError)
# Stands for what is broken, and is as broken to a reader.
_NO_JSON = b"{"


class NamedEvent(msgspec.Struct, gc=False):
    """What of an event is decoded: all else is rewritten as it stands."""

    cat: str = ""
    name: str = ""


@contextmanager
def written(path: Path | None, *, packed: bool = False) -> Iterator[Callable[[bytes], object]]:
    """What writes to a new file, gzipped or plain, whole or not at all; None: to nowhere.

    A gzip file says neither a name nor a time.
    """
    if path is None:
        yield len
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(path) as file:
        if not packed:
            yield file.write
            return
        open_packed = cast(Callable[..., BinaryIO], igzip.IGzipFile)
        with open_packed(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as target:
            yield target.write


def scrub_trace(source: Path, target: Path | None, rewriter: Rewriter) -> None:
    """Scrub a trace. What is broken in it is left out; one that ends early ends early again.

    Raises:
        NoTraceError: it is none.
        OSError: it cannot be read, or the copy not be written.
        TooManyValuesError: see `Rewriter`.
    """
    chunks = EventChunks(source, NamedEvent, raw=True)
    with written(target, packed=source.name.lower().endswith(".gz")) as write:
        separator = None
        for chunk in chunks:
            if separator is None:
                separator = _begin(chunks, write, rewriter)
            events = chunk.data[1:-1].strip()
            if events:
                write(separator + rewriter.rewrite(events))
                separator = b",\n"
        if separator is None:
            _begin(chunks, write, rewriter)
        if chunks.cut is None:
            write(b"]" if chunks.is_list else _tail(chunks.header[len(chunks.head) + 2 :], rewriter))


def _begin(chunks: EventChunks[NamedEvent], write: Callable[[bytes], object], rewriter: Rewriter) -> bytes:
    """Write what comes before the events; returns what comes between that and the first of them."""
    if chunks.is_list:
        write(b"[")
        return b""
    text = chunks.head + b"[]}"
    if _whole(text) is not None:
        fields = chunks.head[: chunks.head.rindex(b'"traceEvents"')]
    else:
        fields = b"{" + _fields(read_header(text)[0]) + b","
    write(rewriter.rewrite(fields) + b'"traceEvents":[')
    return b""


def _tail(tail: bytes, rewriter: Rewriter) -> bytes:
    """What comes after the events."""
    text = b'{"traceEvents":[]' + tail
    if _whole(text) is not None:
        return b"]" + rewriter.rewrite(tail)
    fields = _fields(read_header(text)[0])
    return b"]" + (b"," + fields if fields else b"") + b"}"


def _whole(text: bytes) -> bytes | None:
    """A document as it is, or None if it is broken."""
    try:
        text.decode()
        msgspec.json.decode(text, type=msgspec.Raw)
    except _BROKEN:
        return None
    return text


def _fields(header: Header) -> bytes:
    """What was understood of a broken header, as members of an object."""
    info = {"rank": header.rank, "world_size": header.world_size}
    fields = {"distributedInfo": {name: value for name, value in info.items() if value is not None}}
    base = {} if header.base is None else {"baseTimeNanoseconds": header.base}
    return msgspec.json.encode({**fields, **base})[1:-1]


def scrub_stream(source: Path, target: Path | None, rewriter: Rewriter) -> None:
    """Scrub a stream of JSON lines. A line that is broken stays a broken line, without what stood in it.

    Raises:
        OSError, TooManyValuesError: as `scrub_trace`.
    """
    with open_regular(source) as file, written(target) as write:
        for line, end in lines_of(file):
            write((_NO_JSON if line is None else rewriter.rewrite(line)) + end)


def lines_of(file: BinaryIO) -> Iterator[tuple[bytes | None, bytes]]:
    """Lines and what ends them; None for one that is broken, or longer than any of ours."""
    while line := file.readline(_LONGEST_LINE):
        text, end = (line[:-1], b"\n") if line[-1:] == b"\n" else (line, b"")
        if not end and len(line) == _LONGEST_LINE:
            while (rest := file.readline(1 << 20)) and rest[-1:] != b"\n":
                pass
            yield None, rest[-1:]
        else:
            yield (text if not text.strip() else _whole(text)), end


def scrub_document(source: Path, target: Path | None, rewriter: Rewriter) -> None:
    """Scrub a JSON document of ours. A broken one stays a broken one, without what stood in it.

    Raises:
        OSError, TooManyValuesError: as `scrub_trace`.
    """
    data = read_document(source)
    with written(target) as write:
        write(_NO_JSON if data is None else rewriter.rewrite(data))


def read_document(source: Path) -> bytes | None:
    """A document's text; None for one that is broken, or longer than any of ours.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(source) as file:
        data = file.read(_MOST_DOCUMENT + 1)
    try:
        data.decode()
        json.loads(data)
    except _BROKEN:
        return None
    return data if len(data) <= _MOST_DOCUMENT and b"\0" not in data else None
