"""What is compared: points, each a way to launch the same training."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace

from distprof.run.config import ConfigError
from distprof.run.secrets import MASK, mask_arguments
from distprof.run.settings import Value, parse_settings, written

_SCRIPT, _REVISION = "script", "git"


@dataclass(frozen=True, slots=True)
class Point:
    """One way to launch the training.

    Attributes:
        name: how it is called, such as `candidate`.
        settings: overrides (`--set`).
        script: another script, module or program; None: the one on the command line.
        revision: the script as it is in this git revision; None: as it lies there.
        options: more options of `distprof launch`.
        arguments: the script's own, instead of those on the command line; None: those.
        values: what these arguments were made from, by name.
    """

    name: str
    settings: dict[str, Value] = field(default_factory=dict)
    script: str | None = None
    revision: str | None = None
    options: list[str] = field(default_factory=list)
    arguments: list[str] | None = None
    values: dict[str, Value] = field(default_factory=dict)

    def masked(self) -> Point:
        """The same without secrets, for the record."""
        values = {
            name: mask_arguments([f"{name}={value}"])[0] == f"{name}={value}" for name, value in self.values.items()
        }
        return replace(
            self,
            arguments=None if self.arguments is None else mask_arguments(self.arguments),
            values={name: value if values[name] else MASK for name, value in self.values.items()},
        )

    def words(self) -> str:
        """The point as it is typed."""
        more = [(_SCRIPT, self.script), (_REVISION, self.revision)]
        values = [*written(self.settings), *written(self.values)]
        return " ".join([*values, *(f"{key}={value}" for key, value in more if value is not None)])


def parse_point(name: str, text: str) -> Point:
    """Read `loader.num_workers=4 script=other.py git=HEAD~1`, in any order; an empty text is the training as it is.

    Raises:
        ConfigError: a word is none of these.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} cannot be split into words ({error})") from error
    others = {_SCRIPT: None, _REVISION: None} | {
        key: value for key, _, value in (word.partition("=") for word in words) if key in (_SCRIPT, _REVISION)
    }
    for key, value in others.items():
        if value == "":
            raise ConfigError(f"{key}= needs a value, such as {'script=other.py' if key == _SCRIPT else 'git=HEAD~1'}")
    settings = parse_settings(word for word in words if word.partition("=")[0] not in others)
    return Point(name, settings, script=others[_SCRIPT], revision=others[_REVISION])
