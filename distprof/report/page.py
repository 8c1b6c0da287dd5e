"""The report as one HTML page: it needs no network, and nothing in it reaches for one.

Texts and tables stand in the page as HTML; its script only draws pictures of the same figures. `html.py` has what keeps
names out of traces harmless.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from markupsafe import Markup

from distprof.report import figures, tables, words
from distprof.report.html import as_json, environment, part, plotly, policy
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
    scripts = [plotly(), part("page.js")] if drawn or steps else []
    return (
        environment()
        .get_template("page.html.j2")
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
            pictures=as_json({"figures": drawn, "gantt": steps}),
            style=Markup(part("page.css")),
            scripts=[Markup(script) for script in scripts],
            policy=policy(scripts),
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
