"""Where events begin and end in a trace's text, and where their list does, by what the text looks like."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from distprof.trace.repair import open_brackets

# An event follows another one; the key tells it from an object inside an event.
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*(?:"(?:ph|name|cat|ts|dur|pid|tid|args|id|s|bp)"\s*:|"?\w*"?\s*\Z))')
_CLOSING = re.compile(rb'\](?=\s*(?:,\s*"[^"]{1,200}"\s*:|\}\s*(?:\Z|\{)|\Z))')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_SEARCHED = 1 << 16  # at a chunk's end, for its last event
_MOST_PIECES = 64  # of one event
_TRIED = 16  # places at which a chunk may end
# What decoding raises.
BROKEN = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def closings(text: bytes, most: int) -> Iterator[re.Match[bytes]]:
    """Brackets that the list may end with, the first ones."""
    return islice(_CLOSING.finditer(text), most)


def boundaries(text: bytes) -> list[int]:
    """Ends of events that another one seems to follow, the last one first. A list of objects inside an event can look
    the same."""
    begin = max(0, len(text) - _SEARCHED)
    while True:
        found = deque(_NEXT.finditer(text, begin), maxlen=_TRIED)
        if found or begin == 0:
            return [match.start() + 1 for match in reversed(found)]
        begin = max(0, begin - (len(text) - begin))


def pieces_of(text: bytes) -> tuple[list[int], list[int]]:
    """Where pieces that look like events begin, and where they end."""
    borders = list(_NEXT.finditer(text))
    return [0, *(border.end() for border in borders)], [*(border.start() + 1 for border in borders), len(text)]


def pieces_of_event(text: bytes, starts: list[int], ends: list[int], index: int) -> int | None:
    """How many pieces from `index` on are one event, since a list of objects inside it looks like events: until all
    brackets are closed. 1 if they never are; None if that cannot be told before the text ends."""
    depth, last = 0, index
    for last in range(index, min(index + _MOST_PIECES, len(starts))):
        depth += open_brackets(text[starts[last] : ends[last]])
        if depth <= 0:
            return last - index + 1
    return None if last == len(starts) - 1 else 1


def before_tail(text: bytes) -> int | None:
    """Place of the bracket that closes the list after a broken event: what follows it is the rest of a trace."""
    for match in closings(text, _MOST_PIECES):
        try:
            msgspec.json.decode(b'{"traceEvents":[' + text[match.start() :])
        except BROKEN:
            continue
        return match.start()
    return None


def end_of_list(events: bytes, error: Exception) -> int | None:
    """Place of the bracket that closes the list, if all that is wrong is that something follows it."""
    trailing = _TRAILING.search(str(error))
    if trailing is None:
        return None
    # The decoder counts from the bracket that was put before the events, without the comma that was taken away, and
    # names the byte after the one that it did not expect.
    bare = events.lstrip()
    before = len(events) - len(bare) + bare.startswith(b",")
    return events.rindex(b"]", 0, int(trailing[1]) - 2 + before)
