"""The report as one HTML page: it needs no network, and nothing in it reaches for one.

Texts and tables stand in the page as HTML; its script only draws pictures of the same figures. Two things keep names
out of traces harmless: whatever the template shows is cleaned and escaped, and the page's policy lets no script run but
the two that it was made with, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from distprof.report import figures, tables, words
from distprof.result import Result
from distprof.run.files import write_atomic

_MOST_ROWS = 40  # longer tables are folded
_TITLES = {
    "findings": "Findings",
    "lateness": "Who was late when",
    "breakdown": "Where a step goes",
    "gantt": "A step across ranks",
    "steps": "Steps",
    "communication": "Communication",
    "loading": "Data loading",
    "work": "Operators, kernels, memory",
    "clocks": "Clocks",
    "unseen": "Not observed",
    "cost": "Cost of distprof",
    "run": "How it was run",
}


def write_page(result: Result, path: Path) -> None:
    """Write the page, atomically.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(path, page(result).encode())


def page(result: Result) -> str:
    """The page's text."""
    drawn = figures.figures(result)
    steps = {step.step: figures.gantt(step) for step in result.gantt}
    scripts = [_plotly(), _part("page.js")] if drawn or steps else []
    return (
        _environment()
        .from_string(_part("page.html.j2"))
        .render(
            result=result,
            words=words,
            tables=tables,
            command=shlex.join(result.run.command) if result.run.command is not None else None,
            titles=_TITLES,
            sections=_sections(result),
            most_rows=_MOST_ROWS,
            figures=figures,
            drawn=drawn,
            steps=list(steps.values()),
            pictures=_json({"figures": drawn, "gantt": steps}),
            style=Markup(_part("page.css")),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
        )
    )


def _sections(result: Result) -> list[tuple[str, str]]:
    """Names and titles of the sections that the page has."""
    of = {
        "findings": result.findings,
        "lateness": result.lateness,
        "breakdown": result.breakdown,
        "gantt": result.gantt,
        "work": result.operators or result.kernels or result.memory,
        "unseen": result.not_observed,
    }
    return [(name, title) for name, title in _TITLES.items() if of.get(name, True)]


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


def _part(name: str) -> str:
    return (files("distprof.report") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # only a page needs it

    script: str = get_plotlyjs()
    return script


def _policy(scripts: list[str]) -> str:
    """The page's content security policy: no requests, and these scripts only. Plotly sets styles and draws images."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{code}'" for code in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: object) -> Markup:
    """JSON that no parser of HTML takes for markup, whatever its texts contain."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
