"""Hydra's overrides as words: which words of a command line are some, and how to write one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

# What Hydra's grammar takes for a key or a config group: a.b, a/b, a@b.c, +a, ++a, ~a.
_OVERRIDE = re.compile(r"(\+{1,2}|~)?[A-Za-z_$][\w$-]*([./][\w$-]+)*(@[\w./:$-]*)?=.*|~[A-Za-z_][\w./@-]*", re.DOTALL)
_KEY = re.compile(r"[+~]*([^=@]+)")
# These change neither what is launched nor how it is measured: the same sweep goes on with others.
_NOT_IN_KEY = ("out", "measure.repeats", "measure.budget", "measure.objective", "measure.explain", "capture", "hydra")


def is_override(word: str) -> bool:
    """Whether Hydra would take a word for an override."""
    return _OVERRIDE.fullmatch(word) is not None


def key_of(override: str) -> str:
    """What an override is about."""
    match = _KEY.match(override)
    return match[1] if match else override


def quoted(text: str, *, literal: bool = True) -> str:
    """A text as Hydra's grammar reads it back.

    Args:
        literal: `${` is meant as it is; else it begins an interpolation.
    """
    if literal:
        text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    # A backslash counts only before a quote, or at the end.
    body = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{body}'"


def listed(key: str, texts: Iterable[str], *, literal: bool = True) -> str:
    """An override that sets a list of texts."""
    return f"{key}=[{','.join(quoted(text, literal=literal) for text in texts)}]"


def identity(parts: Sequence[str], overrides: Iterable[str]) -> str:
    """What tells sweeps apart: the overrides, but for those that a sweep may go on with, and some texts."""
    kept = sorted(word for word in overrides if not _changes_nothing(key_of(word)))
    return hashlib.sha256(json.dumps([*parts, kept]).encode()).hexdigest()[:12]


def _changes_nothing(key: str) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in _NOT_IN_KEY)
