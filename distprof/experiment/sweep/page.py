"""A sweep as one HTML page, in the style of the report's."""

from __future__ import annotations

import shlex
from pathlib import Path

from markupsafe import Markup

from distprof.experiment.sweep import figures as of_figures
from distprof.experiment.sweep import words as of_sweep
from distprof.experiment.sweep.result import Sweep
from distprof.report import figures, words
from distprof.report.html import as_json, environment, part, plotly, policy
from distprof.run.files import write_atomic

FILE = "sweep.html"
_MOST_ROWS = 60
_COLOURS = {"faster": "none", "cannot_be_told": "undecided", "incomplete": "undecided"}


def write_page(found: Sweep, folder: Path) -> None:
    """Write `sweep.html`, atomically.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(folder / FILE, page(found).encode())


def page(found: Sweep) -> str:
    """The page's text."""
    drawn = of_figures.figures(found)
    scripts = [plotly(), part("page.js")] if drawn else []
    return (
        environment("distprof.experiment.sweep")
        .get_template("page.html.j2")
        .render(
            found=found,
            words=words,
            of_sweep=of_sweep,
            figures=figures,
            pictures_of=of_figures,
            colour=_COLOURS[found.verdict],
            command=shlex.join(found.command),
            most_rows=_MOST_ROWS,
            drawn=drawn,
            pictures=as_json({"figures": drawn, "gantt": {}}),
            style=Markup(part("page.css")),
            scripts=[Markup(script) for script in scripts],
            policy=policy(scripts),
        )
    )
