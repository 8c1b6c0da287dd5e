"""Splitting a trace's text into whole events, chunk after chunk, and saving what is whole in a broken one.

A chunk is decoded at once, as a JSON array of typed events. Only where that fails are its events taken one by one,
mended or left out. A trace is a JSON object with a list `traceEvents`, or that list alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from distprof.trace.inflate import BLOCK, Text, TooLargeError
from distprof.trace.repair import repaired

Event = TypeVar("Event", bound=msgspec.Struct)

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
# An event follows another one; the key tells it from an object inside an event.
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|dur|pid|tid|args|id|s|bp)"\s*:)')
_CLOSING = re.compile(rb'\](?=\s*(?:,\s*"[^"]{1,200}"\s*:|\}))')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_SEARCHED = 1 << 16  # at a chunk's end, for its last event
_MOST_HEADER = 64 << 20
_LONGEST_EVENT = 64 << 20
_TOGETHER = 256  # events of a broken chunk are decoded so many at a time until one fails
_BROKEN = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class NoTraceError(Exception):
    """The text is no trace, or none that can be used; the message says why."""


@dataclass(slots=True)
class Chunk(Generic[Event]):
    """Whole events, and the JSON array that they were decoded from."""

    events: list[Event]
    data: bytes


class EventChunks(Generic[Event]):
    """The events of one file. After iterating, the other attributes say what is known of the whole file.

    Attributes:
        header: the trace without its events, a JSON object; `{}` for a list, and of a broken trace what came before.
        kept, repaired, dropped: events that were decoded, mended among them, or left out.
        first_broken: byte of the first event that was mended or left out.
        cut: byte after the last whole event, where the trace ends before its end.
        damage: how the gzip file is broken.
    """

    def __init__(self, path: Path, event: type[Event], *, raw: bool = False) -> None:
        """Nothing is read before iterating.

        Args:
            event: what of an event is decoded.
            raw: it has fields that stay bytes: that they are UTF-8 is then checked too.
        """
        self._text = Text(path)
        self._decoder = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._raw = raw
        self._place = 0
        self._is_list = False
        self._head = b""
        self._tail = b""
        self.kept = 0
        self.repaired = 0
        self.dropped = 0
        self.first_broken: int | None = None
        self.cut: int | None = None

    @property
    def damage(self) -> str | None:
        """How the gzip file is broken; None for a whole one."""
        return self._text.damage

    @property
    def header(self) -> bytes:
        """The trace without its events."""
        if self._is_list:
            return b"{}"
        return self._head + b"[]" + (self._tail if self.cut is None else b"}")

    def __iter__(self) -> Iterator[Chunk[Event]]:
        """The events in the order of the file.

        Raises:
            OSError: it cannot be read, or vanished.
            NoTraceError: it is no trace, or was written by several processes.
        """
        try:
            yield from self._chunks()
        except TooLargeError as error:
            raise NoTraceError(str(error)) from error

    def _chunks(self) -> Iterator[Chunk[Event]]:
        blocks = self._text.blocks()
        pending = self._begin(blocks)
        for block in blocks:
            pending += block
            if len(pending) < BLOCK:
                continue
            cut = _last_boundary(pending)
            if cut is None:
                if len(pending) > _LONGEST_EVENT:
                    raise NoTraceError(f"an event at byte {self._place} is longer than {_LONGEST_EVENT >> 20} MiB")
                continue
            whole, comma = pending[:cut], pending.index(b",", cut)
            rest = yield from self._take(whole)
            if rest is not None:
                self._end(rest + pending[cut:], blocks)
                return
            self._place += comma + 1
            pending = pending[comma + 1 :]
        rest = yield from self._take_last(pending)
        if rest is not None:
            self._end(rest, blocks)

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        """Read to the beginning of the list; returns what of it was read."""
        text = b""
        for block in blocks:
            text += block
            stripped = text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if not stripped:
                continue
            if stripped[:1] == b"[":
                self._is_list = True
                self._place = len(text) - len(stripped) + 1
                return stripped[1:]
            if stripped[:1] != b"{":
                pointer = stripped.startswith(b"version https://git-lfs")
                raise NoTraceError("it is a Git LFS pointer: run `git lfs pull`" if pointer else "it is not JSON")
            found = _LIST.search(text)
            if found:
                self._place = found.end()
                self._head = text[: found.end() - 1].lstrip(b"\xef\xbb\xbf")
                return text[found.end() :]
            if len(text) > _MOST_HEADER:
                break
        if not text.strip():
            raise NoTraceError("it is empty" if self.damage is None else self.damage)
        raise NoTraceError("it has no list of events: it is no Chrome trace")

    def _decode(self, events: bytes) -> list[Event]:
        """Decode comma-separated events."""
        if self._raw:
            events.decode()
        return self._decoder.decode(b"[" + events + b"]")

    def _take(self, events: bytes) -> Iterator[Chunk[Event]]:
        """Decode whole events; returns what follows the list if it ends among them, else None."""
        try:
            chunk = Chunk(self._decode(events), b"[" + events + b"]")
        except _BROKEN as error:
            end = _end_of_list(b"[" + events, error)
            if end is None:
                return (yield from self._salvage(events, last=False))
            yield from self._take(events[: end - 2])
            return events[end - 1 :]
        self.kept += len(chunk.events)
        yield chunk
        return None

    def _take_last(self, text: bytes) -> Iterator[Chunk[Event]]:
        """The same for all that is left of the file, in which the list should end."""
        end = None
        try:
            if self._raw:
                text.decode()
            self._decoder.decode(b"[" + text)
            end = text.rindex(b"]") + 2
        except _BROKEN as error:
            end = _end_of_list(b"[" + text, error)
        if end is None:
            return (yield from self._salvage(text, last=True))
        yield from self._take(text[: end - 2])
        return text[end - 1 :]

    def _salvage(self, text: bytes, *, last: bool) -> Iterator[Chunk[Event]]:
        """Take events one by one. Like `_take`; if `last`, a list that does not end is cut."""
        starts = [0, *(match.end() for match in _NEXT.finditer(text))]
        ends = [*(match.start() + 1 for match in _NEXT.finditer(text)), len(text)]
        pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        for first in range(0, len(pieces), _TOGETHER):
            group = pieces[first : first + _TOGETHER]
            try:
                events = b",".join(group)
                chunk = Chunk(self._decode(events), b"[" + events + b"]")
                self.kept += len(chunk.events)
                yield chunk
                continue
            except _BROKEN:
                pass
            for number, piece in enumerate(group, first):
                closed = None
                found = self._one(piece)
                if found is None:
                    closed, found = self._closed(piece)
                if found is not None:
                    chunk, mended = found
                    self.kept += len(chunk.events)
                    if mended:
                        self.repaired += len(chunk.events)
                        self._note_broken(starts[number])
                    yield chunk
                elif last and number == len(pieces) - 1:
                    self.cut = self._place + starts[number]
                    return None
                else:
                    self._note_broken(starts[number])
                    self.dropped += 1
                if closed is not None:
                    return text[starts[number] + closed + 1 :]
        if last:
            self.cut = self._place + len(text)
        return None

    def _one(self, piece: bytes) -> tuple[Chunk[Event], bool] | None:
        """An event as it is, or mended, and whether it had to be."""
        piece = piece.strip().removesuffix(b",")
        try:
            return Chunk(self._decode(piece), b"[" + piece + b"]"), False
        except _BROKEN:
            mended = repaired(piece)
        if mended is None or mended == piece:
            return None
        try:
            return Chunk(self._decode(mended), b"[" + mended + b"]"), True
        except _BROKEN:
            return None

    def _closed(self, piece: bytes) -> tuple[int | None, tuple[Chunk[Event], bool] | None]:
        """Where the list ends inside a piece of text, and the event before that, if it does."""
        for match in _CLOSING.finditer(piece):
            found = self._one(piece[: match.start()])
            if found is not None:
                return match.start(), found
        return None, None

    def _note_broken(self, offset: int) -> None:
        if self.first_broken is None:
            self.first_broken = self._place + offset

    def _end(self, rest: bytes, blocks: Iterator[bytes]) -> None:
        """Keep what follows the list."""
        for block in blocks:
            rest += block
            if len(rest) > _MOST_HEADER:
                raise NoTraceError(f"more than {_MOST_HEADER >> 20} MiB follow its events: it is no Chrome trace")
        if _LIST.search(rest) or (self._is_list and rest.strip()):
            raise NoTraceError("two traces stand in it: it looks like several ranks wrote this file")
        self._tail = rest


def _last_boundary(text: bytes) -> int | None:
    """End of the last event that another one follows."""
    begin = max(0, len(text) - _SEARCHED)
    while True:
        found = None
        for found in _NEXT.finditer(text, begin):
            pass
        if found is not None:
            return found.start() + 1
        if begin == 0:
            return None
        begin = max(0, begin - (len(text) - begin))


def _end_of_list(text: bytes, error: Exception) -> int | None:
    """Byte after the list that `text` begins with, if all that is wrong is that something follows it."""
    trailing = _TRAILING.search(str(error))
    return text.rindex(b"]", 0, int(trailing[1])) + 1 if trailing else None
