"""Mending one event's text where a producer did not write JSON; what stays broken is the caller's to leave out."""

from __future__ import annotations

import re

# A string ends at a quote that JSON's grammar can go on from; other quotes in between were not escaped.
_STRING = re.compile(r'"((?:\\.|[^"\\]|"(?!\s*[,:}\]]))*)"(?=\s*[,:}\]])', re.DOTALL)
_NO_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\)')  # the group: one that JSON does not have
_BACKSLASH = re.compile(r'\\(?!")')
_BARE_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Looking for the end of a string that has none takes its length squared.
_LONGEST = 1 << 20


def repaired(event: bytes) -> bytes | None:
    """An event's text as JSON, as far as that can be told; None where it is too long to try.

    Bytes that are not UTF-8 become U+FFFD. NaN and infinities become null. In strings, quotes and control characters
    are escaped; a string with an escape that JSON does not have was written without escaping, so all its backslashes
    stand for themselves.
    """
    if len(event) > _LONGEST:
        return None
    text = event.decode("utf-8", "replace")
    parts: list[str] = []
    done = 0
    for string in _STRING.finditer(text):
        parts += [_between(text[done : string.start()]), '"', _inside(string[1]), '"']
        done = string.end()
    parts.append(_between(text[done:]))
    return "".join(parts).encode()


def open_brackets(text: bytes) -> int:
    """How many brackets and braces are opened more often than closed, outside of strings."""
    bare = _STRING.sub("", text[:_LONGEST].decode("utf-8", "replace"))
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def _between(text: str) -> str:
    return _NO_NUMBER.sub("null", text)


def _inside(text: str) -> str:
    if any(escape[1] for escape in _ESCAPE.finditer(text)):
        text = _BACKSLASH.sub(r"\\\\", text)
    text = _BARE_QUOTE.sub(lambda match: match[1] or '\\"', text)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
