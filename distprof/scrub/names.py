"""Names in the place of private values: one for each value, the same wherever it occurs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256

# Kinds of what is private, in the order in which they are told; a replacement is its kind and a number.
KINDS = {
    "host": "names of hosts",
    "user": "names of users",
    "path": "paths and names of files",
    "argument": "words of command lines",
    "environment": "values of environment variables",
    "email": "e-mail addresses",
    "address": "addresses of networks and the web",
    "secret": "tokens, passwords and keys",
    "zone": "names of zones",
    "id": "ids of runs, boots and jobs",
    "text": "messages and other free text",
    "value": "metadata whose meaning distprof does not know",
}
REPLACEMENT = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]+")
# A file that makes up ever new values shall not fill the memory.
_MOST_VALUES = 1_000_000
_LONG = 512  # characters; of longer values a hash is kept
_SHOWN = 100


class TooManyValuesError(Exception):
    """More different private values than can be told apart."""


@dataclass(slots=True)
class Kind:
    """What was replaced of one kind: how often, and each value with the file that it was first seen in."""

    uses: int = 0
    values: dict[str, str] = field(default_factory=dict)


class Names:
    """Gives names, and counts. The same value gets the same name, by the kind that it was first met as.

    Attributes:
        place: the file that is being read, for who wants to know where a value stood.
        kinds: what was replaced.
    """

    def __init__(self) -> None:
        self.place = ""
        self.kinds: dict[str, Kind] = {}
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._last = dict.fromkeys(KINDS, 0)

    def take(self, name: str) -> None:
        """Never give this name: it stands in the recordings already."""
        self._taken.add(name)

    def of(self, kind: str, value: str) -> str:
        """The name of a private value; a value that is such a name already stays.

        Raises:
            TooManyValuesError: there are too many of them.
        """
        if REPLACEMENT.fullmatch(value):
            return value
        key = value if len(value) <= _LONG else sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= _MOST_VALUES:
                raise TooManyValuesError(f"it holds more than {_MOST_VALUES} different private values")
            name = self._names[key] = self._next(kind)
            self._count(name).values[value[:_SHOWN]] = self.place
        self._count(name).uses += 1
        return name

    def again(self, names: tuple[str, ...]) -> None:
        """Count names that were put into a text once more."""
        for name in names:
            self._count(name).uses += 1

    def _count(self, name: str) -> Kind:
        return self.kinds.setdefault(name.rpartition("-")[0], Kind())

    def _next(self, kind: str) -> str:
        while True:
            self._last[kind] += 1
            name = f"{kind}-{self._last[kind]}"
            if name not in self._taken:
                return name
