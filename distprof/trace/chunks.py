"""Splitting a trace's text into whole events, chunk after chunk, and saving what is whole in a broken one.

A chunk is decoded at once, as a JSON array of typed events. Only where that fails are its events taken one by one,
mended or left out. A trace is a JSON object with a list `traceEvents`, or that list alone.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from distprof.trace.borders import BROKEN, before_tail, boundaries, closings, end_of_list, pieces_of, pieces_of_event
from distprof.trace.inflate import BLOCK, Text, TooLargeError
from distprof.trace.repair import repaired
from distprof.trace.workers import Advance, no_advance

Event = TypeVar("Event", bound=msgspec.Struct)

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_EXECUTION_TRACE = re.compile(rb'"schema"\s*:\s*"[^"]*"[^{}]*"nodes"\s*:\s*\[')
_GOES_ON = re.compile(rb"\s*,\s*\{")  # after a bracket that closes nothing
_LEADING = re.compile(rb"\s*,?")
_PHASE = re.compile(rb'"ph"\s*:')
_MOST_HEADER = 64 << 20
_LONGEST_EVENT = 64 << 20
_TRIED = 16  # places at which the list may end
_TOGETHER = 256  # events of a broken chunk are decoded so many at a time until one fails


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
        is_list: the trace is a list, and not an object with one.
    """

    def __init__(self, path: Path, event: type[Event], *, raw: bool = False, advance: Advance = no_advance) -> None:
        """Nothing is read before iterating.

        Args:
            event: what of an event is decoded.
            raw: it has fields that stay bytes: that they are UTF-8 is then checked too.
            advance: is told of the file's bytes as they are read.
        """
        self._text = Text(path, advance)
        self._decoder = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._raw = raw
        self._place = 0
        self.is_list = False
        self._head = b""
        self._tail = b""
        self._closed = False
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
    def head(self) -> bytes:
        """What of a trace comes before the list of its events; known from the first chunk on, and empty for a list."""
        return self._head

    @property
    def header(self) -> bytes:
        """The trace without its events."""
        if self.is_list:
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
        ended = False
        while not ended or pending:
            block = next(blocks, b"")
            ended = not block
            pending += block
            if not ended and len(pending) < BLOCK:
                continue
            taken = yield from self._take(pending, last=ended)
            self._place += taken
            pending = pending[taken:]
            if self._closed:
                pending += next(blocks, b"")
                if not self._goes_on_after_all(pending):
                    self._end(pending, blocks)
                    return
                self._closed = False
                self.repaired += 1
                self._note_broken(0)
            if len(pending) > _LONGEST_EVENT:
                raise NoTraceError(f"an event at byte {self._place} is longer than {_LONGEST_EVENT >> 20} MiB")

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        """Read to the beginning of the list; returns what of it was read."""
        text = b""
        for block in blocks:
            text += block
            stripped = text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if not stripped:
                continue
            if stripped[:1] == b"[":
                self.is_list = True
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
        if _EXECUTION_TRACE.search(text):
            raise NoTraceError("it is an Execution Trace: it tells what ran, and not when")
        if not text.strip():
            raise NoTraceError("it is empty" if self.damage is None else self.damage)
        raise NoTraceError("it has no list of events: it is no Chrome trace")

    def _take(self, text: bytes, *, last: bool) -> Generator[Chunk[Event], None, int]:
        """Decode the whole events that `text` begins with, all of them if it is the `last` of the file.

        Returns:
            How many bytes they were, with the list's closing bracket if that is reached.
        """
        cuts = [len(text)] if last else boundaries(text)
        for cut in cuts:
            try:
                chunk = self._chunk(text[:cut])
            except BROKEN as error:
                end = end_of_list(text[:cut], error)
                if end is not None:
                    yield self._counted(self._chunk(text[:end]))
                    self._closed = True
                    return end + 1
                if "truncated" not in str(error):
                    break  # what is broken is no cut at a wrong place
            else:
                yield self._counted(chunk)
                if last:
                    self.cut = self._place + cut
                return cut
        return (yield from self._salvage(text[: cuts[0]], last=last)) if cuts else 0

    def _chunk(self, events: bytes) -> Chunk[Event]:
        """Decode comma-separated events; a comma may stand before them, as after the chunk before."""
        begin = _LEADING.match(events).end()  # type: ignore[union-attr]
        end = len(events.rstrip())
        end -= events.endswith(b",", begin, end)
        data = b"".join((b"[", memoryview(events)[begin:end], b"]"))
        if self._raw:
            events.decode()
        return Chunk(self._decoder.decode(data), data)

    def _counted(self, chunk: Chunk[Event]) -> Chunk[Event]:
        self.kept += len(chunk.events)
        return chunk

    def _salvage(self, text: bytes, *, last: bool) -> Generator[Chunk[Event], None, int]:
        """Like `_take`, with events one by one. If `last`, a list that does not end is cut."""
        starts, ends = pieces_of(text)
        index = 0
        while index < len(starts):
            stop = min(index + _TOGETHER, len(starts))
            try:
                yield self._counted(self._chunk(text[starts[index] : ends[stop - 1]]))
                index = stop
                continue
            except BROKEN:
                pass
            while index < stop:
                begin = starts[index]
                pieces = pieces_of_event(text, starts, ends, index)
                if pieces is None and not last:
                    return begin  # it goes on in the next chunk
                unfinished = pieces is None
                pieces = pieces or 1
                found, closed = self._event(text[begin : ends[index + pieces - 1]])
                if found is None and pieces > 1:
                    pieces = 1
                    found, closed = self._event(text[begin : ends[index]])
                if found is not None:
                    chunk, mended = found
                    if mended:
                        self.repaired += len(chunk.events)
                        self._note_broken(begin)
                    yield self._counted(chunk)
                elif last and (
                    index + pieces == len(starts) or (unfinished and not self._goes_on(text, starts, ends, index))
                ):
                    closed = None if unfinished else before_tail(text[begin:])
                    if closed is None:
                        self.cut = self._place + begin
                        return len(text)
                if found is None:
                    self._note_broken(begin)
                    self.dropped += 1
                if closed is not None:
                    self._closed = True
                    return begin + closed + 1
                index += pieces
        if last:
            self.cut = self._place + len(text)
        return len(text)

    def _one(self, event: bytes) -> tuple[Chunk[Event], bool] | None:
        """An event as it is, or mended, and whether it had to be."""
        try:
            return self._chunk(event), False
        except BROKEN:
            mended = repaired(event)
        if mended is None or mended == event:
            return None
        try:
            return self._chunk(mended), True
        except BROKEN:
            return None

    def _event(self, text: bytes) -> tuple[tuple[Chunk[Event], bool] | None, int | None]:
        """The event that a piece of text is, and where the list ends in it, if it does, after the event."""
        found = self._one(text)
        if found is not None:
            return found, None
        for match in closings(text, _TRIED):
            found = self._one(text[: match.start()])
            if found is not None:
                return found, match.start()
        return None, None

    def _goes_on(self, text: bytes, starts: list[int], ends: list[int], index: int) -> bool:
        """Whether whole events come after an unfinished piece: then it is broken, and not where the writing ended."""
        for later in range(index + 1, len(starts)):
            pieces = pieces_of_event(text, starts, ends, later) or 1
            event = text[starts[later] : ends[later + pieces - 1]]
            if _PHASE.search(event) and self._event(event)[0] is not None:
                return True
        return False

    def _goes_on_after_all(self, rest: bytes) -> bool:
        """Whether events follow what seemed to be the list's end: a bracket too many, and not the rest of a trace."""
        if _GOES_ON.match(rest):
            return True
        if _LIST.search(rest) or rest.lstrip()[:1] in (b"", b"["):
            return False  # the end of the file, or another trace
        try:
            msgspec.json.decode(b'{"traceEvents":[]' + rest)
        except BROKEN as error:
            return "truncated" not in str(error) and self._goes_on(rest, *pieces_of(rest), 0)
        return False

    def _note_broken(self, offset: int) -> None:
        if self.first_broken is None:
            self.first_broken = self._place + offset

    def _end(self, rest: bytes, blocks: Iterator[bytes]) -> None:
        """Keep what follows the list."""
        for block in blocks:
            rest += block
            if len(rest) > _MOST_HEADER:
                raise NoTraceError(f"more than {_MOST_HEADER >> 20} MiB follow its events: it is no Chrome trace")
        if _LIST.search(rest) or (self.is_list and rest.strip()):
            raise NoTraceError("two traces stand in it: it looks like several ranks wrote this file")
        self._tail = rest
