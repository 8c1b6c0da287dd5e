"""A sweep's answer on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from distprof.experiment.sweep import words
from distprof.experiment.sweep.result import Sweep
from distprof.report.tables import Table
from distprof.report.words import clean

_STYLES = {"faster": "bold green", "cannot_be_told": "bold yellow", "incomplete": "bold yellow"}


def show(found: Sweep, out: Path, console: Console) -> None:
    """Print the answer, and what it stands on."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(clean(text), style=style))

    line(words.verdict(found), _STYLES[found.verdict])
    for sentence in words.reasons(found):
        line(sentence)
    for table in (words.points(found, narrow=True), words.hosts(found), words.explanations(found, narrow=True)):
        if table.rows:
            line(f"{table.caption}:", "dim")
            console.print(_drawn(table))
    for point in found.points:
        if point.failure is not None:
            line(f"{words.name(point)} failed: {point.failure}", "bold red")
            for text in point.tail:
                line(f"    {text}", "dim")
    for note in found.notes:
        line(note, "yellow")
    line(
        f"Measured: {found.steps} steps of each launch after the first {1 + found.warmup}, without a window; a launch "
        "counts by its mean step."
    )
    console.print(Text(f"results: {out}, page: {out / 'sweep.html'}"), soft_wrap=True)


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, heading in enumerate(table.headings):
        drawn.add_column(
            Text(clean(heading)), justify="left" if index in table.names else "right", min_width=len(heading)
        )
    for row in table.rows:
        drawn.add_row(*(Text(clean(cell)) for cell in row), style="bold" if row[0].startswith(words.TAKE) else "")
    return drawn
