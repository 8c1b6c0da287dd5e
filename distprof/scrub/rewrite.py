"""Rewriting JSON text string by string: numbers, order and layout stay as they are, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from distprof.scrub.fields import KEEP, is_fixed, is_kept_whole, is_ours, is_secret, kind_of_key
from distprof.scrub.known import Known
from distprof.scrub.names import Names
from distprof.scrub.shapes import replace_shapes

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
# A string, and the string that it is the key of; then whatever is no string, in two parts if there are brackets in it.
_TOKEN = re.compile(
    rf'({_STRING})(?:(\s*:\s*)({_STRING})?)?([^"\[\]{{}}]*+)([\[\]{{}}][^"]*+)?'.encode(),
    re.DOTALL,
)
_PIECE = re.compile(rb"(-?[0-9][0-9.eE+-]*)|[\[\]{}]")
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_MOST_KEPT = 100_000  # results that are kept, since most strings of a trace recur
_LONG = 1 << 10  # bytes: of longer strings no results are kept
_LONGEST = 1 << 16  # characters: in longer ones nothing is searched, and they are replaced as a whole
_NUMBERS = re.compile(r"[\s\[\](),.0-9-]*")
_MOST_ROUNDS = 5
_SECRET = "secret"  # stands for each key that names a secret


class _Written(NamedTuple):
    """A string as it is written, the names in it, which are to be counted, and whether it is the same as before."""

    text: bytes
    used: tuple[str, ...] = ()
    same: bool = True


class _Key(NamedTuple):
    """A key likewise, and what it says of the values under it: nothing if it is a number."""

    text: bytes
    used: tuple[str, ...]
    same: bool
    context: str | None


class Rewriter:
    """Replaces what is private in JSON text that is known to be valid."""

    def __init__(self, known: Known, names: Names) -> None:
        self._known = known
        self._replace_known = known.replacer()
        self._names = names
        self._used: list[str] = []
        # For each array or object that is open the key that its strings and numbers stand under.
        self._open = [""]
        self._keys: dict[bytes, _Key] = {}
        self._values: dict[tuple[str, bytes], _Written] = {}
        self._as_they_are: set[bytes] = set()  # keys with their strings
        self._brackets: dict[bytes, tuple[int, int]] = {}

    def rewrite(self, data: bytes) -> bytes:
        """The text of one or more JSON values, or of the members of one.

        Raises:
            TooManyValuesError: it holds more private values than can be told apart.
        """
        self._open = [""]
        begin = data.find(b'"')
        self._step(data if begin < 0 else data[:begin], "")
        return _TOKEN.sub(self._token, data)

    def text(self, text: str) -> str:
        """A text with all that is known to be private, or looks so, replaced, so that nothing in the outcome does."""
        if len(text) > _LONGEST:
            return text if _NUMBERS.fullmatch(text) else self._name("text", text)
        for _ in range(_MOST_ROUNDS):
            replaced = replace_shapes(self._replace_known(text, self._name), self._name)
            if replaced == text:
                return text
            text = replaced
        return self._name("text", text)

    def _token(self, match: re.Match[bytes]) -> bytes:
        whole = match[0]
        context = self._open[-1]
        if whole in self._as_they_are and context != _SECRET:
            return whole
        literal, colon, value, plain, brackets = match.groups()
        if colon is None:
            first = self._value(context, literal)
            same, text = first.same, first.text
        else:
            key = self._keys.get(literal)
            if key is None:
                key = self._key(literal)
            elif key.used:
                self._names.again(key.used)
            if key.context is not None and context != _SECRET:
                context = key.context
            same, text = key.same, key.text + colon
            if value is not None:
                second = self._value(context, value)
                same, text = same and second.same, text + second.text
                if same and brackets is None and key.context is not None and len(whole) <= _LONG:
                    _trim(self._as_they_are)
                    self._as_they_are.add(whole)
        if context == _SECRET:
            return text + self._no_numbers(plain + (brackets or b""))
        if brackets is not None:
            self._step(brackets, context)
        return whole if same else text + plain + (brackets or b"")

    def _step(self, text: bytes, context: str) -> None:
        """Go past brackets; what the first one opens stands under a key, and whatever is opened in it, too."""
        brackets = text.translate(None, _NO_BRACKETS)
        step = self._brackets.get(brackets)
        if step is None:
            step = _closed_and_opened(brackets)
            if len(brackets) <= _LONG:
                _trim(self._brackets)
                self._brackets[brackets] = step
        closed, opened = step
        if closed:
            del self._open[-closed:]
            if not self._open:
                self._open.append("")
            context = self._open[-1]
        if opened:
            self._open += [context] * opened

    def _no_numbers(self, text: bytes) -> bytes:
        """What comes after a string that is secret, or the key of something secret, up to where that ends."""
        parts: list[bytes] = []
        context = _SECRET
        done = 0
        for match in _PIECE.finditer(text):
            if match[1] is None:
                self._step(match[0], context)
                context = self._open[-1]
            elif context == _SECRET:
                self._names.of("secret", match[0].decode())
                parts += [text[done : match.start()], b"null"]
                done = match.end()
        return b"".join([*parts, text[done:]])

    def _key(self, literal: bytes) -> _Key:
        key = _decoded(literal)
        written = _Written(literal) if is_ours(key) else self._written(literal, key, self.text)
        _trim(self._keys)
        # A key that was a secret names one now, and what stands under it must look alike in the copy and its own copy.
        secret = is_secret(key) or (not written.same and is_secret(_decoded(written.text)))
        context = None if key.isdigit() else _SECRET if secret else key
        found = self._keys[literal] = _Key(*written, context)
        return found

    def _value(self, context: str, literal: bytes) -> _Written:
        kept = self._values.get((context, literal))
        if kept is not None:
            if kept.used:
                self._names.again(kept.used)
            return kept
        written = self._written(literal, _decoded(literal), partial(self._under_key, context))
        if len(literal) <= _LONG:
            _trim(self._values)
            self._values[context, literal] = written
        return written

    def _under_key(self, key: str, text: str) -> str:
        kind = kind_of_key(key)
        if kind == KEEP:
            if is_fixed(key, text):
                return text
            return self._name("zone", text) if self._known.is_zone(text) else self.text(text)
        return text if is_kept_whole(kind, text) else self._name(kind, text)

    def _written(self, literal: bytes, text: str, replace: Callable[[str], str]) -> _Written:
        self._used.clear()
        replaced = replace(text)
        same = replaced == text
        return _Written(literal if same else json.dumps(replaced).encode(), tuple(self._used), same)

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


def _closed_and_opened(brackets: bytes) -> tuple[int, int]:
    """How many of the brackets that were open before are closed, and how many stay open then."""
    closed = opened = 0
    for sign in brackets:
        if sign in b"[{":
            opened += 1
        elif opened:
            opened -= 1
        else:
            closed += 1
    return closed, opened


def _trim(kept: dict[Any, Any] | set[bytes]) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
