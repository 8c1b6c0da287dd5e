"""Rewriting JSON text string by string: numbers, order and layout stay as they are, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from distprof.scrub.fields import KEEP, is_kept_whole, is_secret, kind_of_key
from distprof.scrub.known import Known
from distprof.scrub.names import Names
from distprof.scrub.shapes import replace_shapes

# A string; what makes it a key; a number that follows the key.
_STRING = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:\s*)?((?<=[:\s])-?[0-9][0-9.eE+-]*)?', re.DOTALL)
_MOST_KEPT = 100_000  # results that are kept, since most strings of a trace recur
_LONG = 1 << 10  # bytes: of longer strings no results are kept
_LONGEST = 1 << 16  # characters: in longer ones nothing is searched, and they are replaced as a whole
_NUMBERS = re.compile(r"[\s\[\](),.0-9-]*")


class _Written(NamedTuple):
    """A string as it is written, and the names in it, which are to be counted."""

    text: bytes
    used: tuple[str, ...]


class _Key(NamedTuple):
    """A key likewise, and what it says of the values under it: nothing if it is a number."""

    text: bytes
    used: tuple[str, ...]
    context: str | None
    is_secret: bool


class Rewriter:
    """Replaces what is private in JSON text that is known to be valid."""

    def __init__(self, known: Known, names: Names) -> None:
        self._known = known
        self._replace_known = known.replacer()
        self._names = names
        self._used: list[str] = []
        self._context = ""
        self._keys: dict[bytes, _Key] = {}
        self._values: dict[tuple[str, bytes], _Written] = {}

    def rewrite(self, data: bytes) -> bytes:
        """The text of one or more JSON values, or of the members of one.

        Raises:
            TooManyValuesError: it holds more private values than can be told apart.
        """
        self._context = ""
        return _STRING.sub(self._string, data)

    def text(self, text: str) -> str:
        """A text with all that is known to be private, or looks so, replaced."""
        if len(text) > _LONGEST:
            return text if _NUMBERS.fullmatch(text) else self._name("text", text)
        return replace_shapes(self._replace_known(text, self._name), self._name)

    def _string(self, match: re.Match[bytes]) -> bytes:
        literal, colon, number = match.groups()
        if colon is None:
            kept = self._values.get((self._context, literal))
            if kept is None:
                return self._value(literal)
            if kept.used:
                self._names.again(kept.used)
            return kept.text
        key = self._keys.get(literal)
        if key is None:
            key = self._key(literal)
        elif key.used:
            self._names.again(key.used)
        if key.context is not None:
            self._context = key.context
        if number is not None:
            if not key.is_secret:
                return key.text + colon + number
            self._names.of("secret", number.decode())
            return key.text + colon + b"null"
        return key.text + colon

    def _key(self, literal: bytes) -> _Key:
        key = _decoded(literal)
        written = _Written(literal, ()) if kind_of_key(key) == KEEP else self._written(literal, key, self.text)
        _trim(self._keys)
        found = _Key(*written, None if key.isdigit() else key, is_secret(key))
        self._keys[literal] = found
        return found

    def _value(self, literal: bytes) -> bytes:
        written = self._written(literal, _decoded(literal), self._under_key)
        if len(literal) <= _LONG:
            _trim(self._values)
            self._values[self._context, literal] = written
        return written.text

    def _under_key(self, text: str) -> str:
        kind = kind_of_key(self._context)
        if kind == KEEP:
            return self._name("zone", text) if self._known.is_zone(text) else self.text(text)
        return text if is_kept_whole(kind, text) else self._name(kind, text)

    def _written(self, literal: bytes, text: str, replace: Callable[[str], str]) -> _Written:
        self._used.clear()
        replaced = replace(text)
        return _Written(literal if replaced == text else json.dumps(replaced).encode(), tuple(self._used))

    def _name(self, kind: str, value: str) -> str:
        name = self._names.of(kind, value)
        if name != value:
            self._used.append(name)
        return name


def _decoded(literal: bytes) -> str:
    """The text of a string. Halves of surrogate pairs, which JSON allows, stay."""
    try:
        return msgspec.json.decode(literal, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text: str = json.loads(literal.decode("utf-8", "replace"), strict=False)
        return text


def _trim(kept: dict[Any, Any]) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
