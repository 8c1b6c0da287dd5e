"""The report as one HTML page: no network, no scripts, readable in print and by every eye."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from distprof.report import tables, words
from distprof.report.parts import Part, shown_parts
from distprof.result import Result
from distprof.run.files import write_atomic


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a rank's bar; `start` and `width` are percent of the longest rank's step."""

    part: Part
    start: float
    width: float
    title: str


def write_page(result: Result, path: Path) -> None:
    """Write the page, atomically.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(path, page(result).encode())


def page(result: Result) -> str:
    """The page's text."""
    template = _environment().from_string((files("distprof.report") / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        result=result,
        words=words,
        tables=tables,
        command=shlex.join(result.run.command) if result.run.command is not None else None,
        parts=shown_parts(result.breakdown),
        bars=_bars(result),
    )


def _environment() -> Environment:
    # `finalize` sees each value before it is escaped, so that no text of the result can be forgotten.
    return Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )


def _shown(value: object) -> str | Markup:
    if isinstance(value, Markup):
        return value
    if value is None:
        return words.NULL
    if isinstance(value, bool):
        return words.yes_no(value)
    return words.clean(str(value))


def _bars(result: Result) -> list[list[Segment]]:
    parts = shown_parts(result.breakdown)
    longest = max((sum(part.of(row) or 0.0 for part in parts) for row in result.breakdown), default=0.0)
    bars = []
    for row in result.breakdown:
        bar: list[Segment] = []
        end = 0.0
        for part in parts:
            value = part.of(row)
            if value:
                bar.append(
                    Segment(part, 100 * end / longest, 100 * value / longest, f"{part.label} {words.ms(value)} ms")
                )
                end += value
        bars.append(bar)
    return bars
