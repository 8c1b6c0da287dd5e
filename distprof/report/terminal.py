"""The report on a terminal: the verdict first, then what it stands on. 80 columns are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import rich.table
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from distprof.report import tables, words
from distprof.report.parts import COMMUNICATION, PARTS, REST, Part, shown_parts, untold_communication
from distprof.result import BreakdownRow, Finding, Result

# A terminal report stays readable for a thousand ranks; report.json and the page hold them all.
_MOST_ROWS = 32
_MOST_NAMED = 3
_MOST_OPERATORS = 8
_COLUMNS = 80
_SMALLEST_BAR = 8
_WIDEST_NAME = 20
# Marks in bars that are no parts with columns of their own, and what they stand for: no wider than the smallest bar.
_OTHER_MARKS = {COMMUNICATION: "comm", REST: "rest"}
_COMMUNICATION_COLOUR = next(part.colour for part in PARTS if part.field == "comm_transfer")

_SEVERITIES = {"critical": ("!!", "bold red"), "warning": ("!", "bold yellow"), "info": ("-", "bold")}
_VERDICTS = {"none": "bold green", "straggler": "bold red", "undecided": "bold yellow"}


def render(result: Result, console: Console) -> None:
    """Print the report.

    Every text of the result goes through `words.clean` and is printed as `rich.text.Text`, which knows no
    markup: a name out of a trace can neither colour nor steer the terminal.
    """
    view = _View(result, console)
    _head(result, view)
    _ranks(result, view)
    _findings(result, view)
    _steps(result, view)
    _breakdown(result, view)
    _communication(result, view)
    view.heading("Data loading")
    view.line(words.loading(result.data_loading), indent=2)
    view.table(tables.loading(result))
    _work(result, view)
    _measurement(result, view)


def render_verdict(result: Result, console: Console) -> None:
    """Print only what stands at the top of the report: who, why, how much."""
    _head(result, _View(result, console))


class _View:
    """Prints cleaned lines and tables."""

    def __init__(self, result: Result, console: Console) -> None:
        self.console = console
        self._named = {straggler.rank for straggler in result.stragglers.ranks}
        self._named |= {rank for finding in result.findings for rank in finding.ranks}

    def line(self, text: str, style: str = "", indent: int = 0, mark: str = "") -> None:
        """Print a text, wrapped and indented; `mark` stands at the end of the first line's indentation."""
        lines = Text(words.clean(text), style=style).wrap(self.console, max(self.console.width - indent, 20))
        for number, line in enumerate(lines):
            line.rstrip()
            self.console.print(Text((mark if number == 0 else "").rjust(indent), style=style) + line)

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, style="bold"))

    def table(
        self, table: tables.Table, marks: Sequence[str] = (), bars: Sequence[Text] = (), legend: str = ""
    ) -> None:
        """Print a table, if it has rows: under the headings their marks, at the end of each row its bar, under their
        `legend`."""
        if not table.rows:
            return
        self.line(f"{table.caption}:", "dim", indent=2)
        grid = rich.table.Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
        for index, heading in enumerate(table.headings):
            name = index in table.names
            grid.add_column(
                f"{heading}\n{marks[index]}" if marks else heading,
                justify="left" if name else "right",
                no_wrap=True,
                max_width=_WIDEST_NAME if name else None,
            )
        if bars:
            grid.add_column(legend, no_wrap=True)
        shown = self._shown(table)
        for row in shown:
            grid.add_row(*(Text(words.clean(cell)) for cell in table.rows[row]), *bars[row : row + 1])
        self.console.print(Padding(grid, (0, 0, 0, 2), expand=False))
        if len(shown) < len(table.rows):
            self.line(f"... {len(table.rows) - len(shown)} more: see report.json", "dim", indent=2)

    def _shown(self, table: tables.Table) -> list[int]:
        """Which rows to print: those about ranks that something is said about, then the first ones."""
        rows = range(len(table.rows))
        if table.ranks is not None:
            ranks = table.ranks
            rows_by_interest = sorted(rows, key=lambda row: ranks[row] not in self._named)
            return sorted(rows_by_interest[:_MOST_ROWS])
        return list(rows[:_MOST_ROWS])


def _head(result: Result, view: _View) -> None:
    first, rest = _missing(result)
    for sentence in first:
        view.line(sentence, "bold red")
    if rest:
        view.line("Ranks are missing: see Ranks below.", "bold red")
    view.line(f"distprof: {words.name(result.run.name)}  ({words.about(result.run)})", "dim")
    verdicts = words.verdict(result)
    for verdict in verdicts[:_MOST_NAMED]:
        view.line(words.sentence(words.clean(verdict, 320)), _VERDICTS[result.stragglers.verdict])
    if len(verdicts) > _MOST_NAMED:
        view.line(f"... and {words.count(len(verdicts) - _MOST_NAMED, 'more rank')}: see report.json")
    for straggler in result.stragglers.ranks[:1]:
        view.line(words.evidence(straggler))
    if result.stragglers.verdict != "undecided":
        view.line(words.sentence(result.stragglers.why))


def _missing(result: Result) -> tuple[list[str], list[str]]:
    """Sentences about missing ranks: those that stand above the verdict, and those that are too long or too many."""
    missing = [sentence for status, sentence in words.incomplete(result.ranks) if status == "missing"]
    first = [sentence for sentence in missing if len(sentence) <= 2 * _COLUMNS][:2]
    return first, [sentence for sentence in missing if sentence not in first]


def _ranks(result: Result, view: _View) -> None:
    said, _ = _missing(result)
    rows = [(status, sentence) for status, sentence in words.incomplete(result.ranks) if sentence not in said]
    if rows:
        view.heading("Ranks")
        for status, sentence in rows:
            view.line(sentence, "" if status == "complete" else "yellow", indent=2)


def _findings(result: Result, view: _View) -> None:
    if result.findings:
        view.heading("Findings")
        for finding in result.findings:
            _finding(finding, view)


def _finding(finding: Finding, view: _View) -> None:
    mark, style = _SEVERITIES[finding.severity]
    view.line(words.capital(finding.observation) + words.where(finding), style, indent=5, mark=f"{mark} ")
    view.line(words.sentence(f"probably: {finding.hypothesis}"), indent=5)
    view.line(words.next_check(finding), indent=5)


def _steps(result: Result, view: _View) -> None:
    view.heading("Steps")
    view.line(words.steady(result.steps), indent=2)
    view.line(words.boundary(result.steps), indent=2)
    excluded = words.excluded(result.steps.excluded)
    if excluded:
        view.line(excluded, indent=2)


def _breakdown(result: Result, view: _View) -> None:
    rows = result.breakdown
    if not rows:
        return
    view.heading("Where a step goes")
    table = tables.breakdown(result)
    parts = shown_parts(rows)
    width = min(view.console.width, _COLUMNS) - 2
    width -= sum(1 + max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True))
    longest = max(_length(row, parts) for row in rows)
    drawn = width >= _SMALLEST_BAR and longest > 0
    bars = [_bar(row, parts, width / longest) for row in rows] if drawn else []
    used = {mark for bar in bars for mark in bar.plain}
    view.table(
        table,
        marks=["", "", *(part.mark for part in parts)],
        bars=bars,
        legend="\n".join(f"{mark} {what}" for mark, what in _OTHER_MARKS.items() if mark in used),
    )
    view.table(tables.device_use(result))
    view.table(tables.sync_waits(result))


def _length(row: BreakdownRow, parts: Sequence[Part]) -> float:
    """How long a step's bar is, in ms: as long as the step, where that is known."""
    return max(row.step or 0.0, sum(value for _, _, value in _pieces(row, parts)))


def _pieces(row: BreakdownRow, parts: Sequence[Part]) -> list[tuple[str, str, float]]:
    """What is known of a step: mark, colour and ms."""
    known = [(part.mark, part.colour, part.of(row) or 0.0) for part in parts]
    return [*known, (COMMUNICATION, _COMMUNICATION_COLOUR, untold_communication(row) or 0.0)]


def _bar(row: BreakdownRow, parts: Sequence[Part], per_ms: float) -> Text:
    """A step as a bar of each part's marks, `per_ms` characters for a millisecond."""
    bar = Text()
    end, drawn = 0.0, 0
    pieces = _pieces(row, parts)
    rest = _length(row, parts) - sum(value for _, _, value in pieces)
    for mark, colour, value in (*pieces, (REST, "", rest)):
        end += value
        length = round(end * per_ms) - drawn
        bar.append(mark * length, style=colour)
        drawn += length
    return bar


def _communication(result: Result, view: _View) -> None:
    view.heading("Communication")
    view.line(words.communication(result.communication), indent=2)
    view.line(words.matching(result.communication), indent=2)
    for sentence in (words.gradients(result.communication), *words.links(result.communication, result.groups)):
        if sentence is not None:
            view.line(sentence, indent=2)
    for table in (tables.communication, tables.buckets, tables.kinds):
        view.table(table(result))


def _work(result: Result, view: _View) -> None:
    shown = [tables.operators(result), tables.kernels(result)]
    if any(table.rows for table in shown):
        view.heading("Operators")
        for table in shown:
            view.table(replace(table, rows=table.rows[:_MOST_OPERATORS]))
    memory = tables.memory(result)
    if memory.rows:
        view.heading("Memory")
        view.table(memory)


def _measurement(result: Result, view: _View) -> None:
    view.heading("Measurement")
    view.line(f"Cost of distprof: {words.overhead(result.overhead)}", indent=2)
    view.line("Clocks: " + words.clocks(result.clock), indent=2)
    rows = words.not_observed(result.not_observed)
    if rows:
        view.line("Not observed:", indent=2)
        for row in rows:
            view.line(row, "dim", indent=4, mark="- ")
