"""The page's pictures, as plotly's figures: plain dictionaries that its script draws.

Every text goes through `label`, since plotly reads markup in texts. What differs between light and dark is left to the
page's script.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distprof.report import words
from distprof.report.parts import Part, shown_parts, untold_communication
from distprof.result import BreakdownRow, GanttBar, GanttStep, Lateness, Result

Figure = dict[str, Any]

MOST_BARS = 40  # ranks beyond these become an area
MOST_ROWS = 64  # of a heat map; beyond these neighbours share a row
_LATEST = 24  # of many ranks, those that have rows of their own
_WAIT_LEAST, _WAIT_MOST = 20, 4  # of many ranks, those that have bars
_SMALL_REST = 0.01  # of the step: what rounding leaves
_MOST_KINDS = 20
_ROW, _AROUND = 28, 70  # pixels of a bar and of what is around the bars


_CSS_PATTERNS = {
    "": "",
    "/": "repeating-linear-gradient(135deg, #fff 0 1px, transparent 1px 4px)",
    "-": "repeating-linear-gradient(0deg, #fff 0 1px, transparent 1px 4px)",
    ".": "radial-gradient(circle, #fff 1px, transparent 1.2px) 0 0 / 4px 4px",
    "x": "repeating-linear-gradient(135deg, #fff 0 1px, transparent 1px 4px), "
    "repeating-linear-gradient(45deg, #fff 0 1px, transparent 1px 4px)",
}


@dataclass(frozen=True, slots=True)
class Style:
    """How something is drawn. Colours are Okabe and Ito's; what matters has a pattern, too."""

    label: str
    colour: str
    pattern: str = ""

    @property
    def swatch(self) -> str:
        """The same in CSS, as a background."""
        return f"{_CSS_PATTERNS[self.pattern]} {self.colour}"


STYLES = {
    "data_loading": Style("data loading", "#e69f00"),
    "loader_first": Style("loader starts", "#e69f00", "x"),
    "loader_start": Style("loader starts", "#e69f00", "x"),
    "loader_end": Style("end of an epoch", "#e69f00", "-"),
    "forward": Style("forward", "#0072b2"),
    "evaluation": Style("evaluation", "#0072b2", "x"),
    "backward": Style("backward", "#009e73"),
    "compute": Style("compute on the device", "#0072b2", "-"),
    "optimizer": Style("optimizer", "#cc79a7"),
    "zone": Style("the script's zones", "#f0e442"),
    "checkpoint": Style("checkpoint", "#f0e442", "x"),
    "gc": Style("garbage collection", "#555555", "x"),
    "own": Style("distprof itself", "#555555", "."),
    "host": Style("between zones", "#bbbbbb"),
    "wait": Style("waiting for other ranks", "#d55e00", "/"),
    "transfer": Style("transfer between ranks", "#56b4e9", "."),
    "communication": Style("communication", "#56b4e9", "-"),
}
_PATTERNS = {"comm_wait": "/", "comm_transfer": "."}
_OUTLINE = {"color": "rgba(127,127,127,0.7)", "width": 0.5}


def label(text: str) -> str:
    """A text that plotly shows as it is."""
    return html.escape(words.name(text), quote=False)


def figures(result: Result) -> dict[str, Figure]:
    """The pictures by the id of their place in the page; what was not observed has none."""
    drawn: dict[str, Figure | None] = {
        "breakdown": breakdown(result.breakdown),
        "breakdown-all": all_ranks(result.breakdown),
        "buckets": _buckets(result),
        "kinds": _kinds(result),
    }
    if result.lateness is not None:
        drawn["lateness"] = lateness(result.lateness, result.stragglers.noise)
        drawn["latest"] = latest(result.lateness, result.stragglers.noise)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def lateness(late: Lateness, noise: float | None) -> Figure | None:
    """All ranks in their order; of many ranks neighbours share a row, which shows the latest of them."""
    if not late.ranks:
        return None
    together = -(-len(late.ranks) // MOST_ROWS)
    rows = [late.ranks[index : index + together] for index in range(0, len(late.ranks), together)]
    names = [f"{row[0].rank}" if len(row) == 1 else f"{row[0].rank}–{row[-1].rank}" for row in rows]
    values = [[max(column) for column in zip(*(rank.late for rank in row), strict=True)] for row in rows]
    return _heat(late, names, values, noise)


def latest(late: Lateness, noise: float | None) -> Figure | None:
    """Of more ranks than have rows of their own in `lateness`: the latest ones."""
    if len(late.ranks) <= MOST_ROWS:
        return None
    chosen = words.latest(late)[:_LATEST]
    return _heat(late, [str(row.rank) for row in chosen], [row.late for row in chosen], noise)


def _heat(late: Lateness, names: list[str], values: Sequence[Sequence[float]], noise: float | None) -> Figure:
    largest = max(row.largest for row in late.ranks)
    steps = [
        str(first) if first == last else f"{first}–{last}"
        for first, last in zip(late.first_steps, late.last_steps, strict=True)
    ]
    apart = 1 if len(steps) <= 2 * MOST_BARS and len(names) <= MOST_BARS else 0
    heat = {
        "type": "heatmap",
        "x": steps,
        "y": names,
        "z": [[round(value, 2) for value in row] for row in values],
        "zmin": 0,
        "zmax": max(largest, 2 * (noise or 0.0), 0.001),
        "xgap": apart,
        "ygap": apart,
        "hoverongaps": False,
        "hovertemplate": "rank %{y}, step %{x}: %{z} ms late<extra></extra>",
        "colorbar": {"title": {"text": "ms late"}, "thickness": 12, "outlinewidth": 0},
    }
    layout = {
        "height": min(max(len(names) * 22, 90), 640) + _AROUND,
        "xaxis": {"title": {"text": "step"}, "type": "category", "nticks": 12, "tickangle": 0, "showgrid": False},
        "yaxis": {
            "title": {"text": "rank"},
            "type": "category",
            "autorange": "reversed",
            "nticks": 32,
            "showgrid": False,
        },
    }
    return {"data": [heat], "layout": layout}


def breakdown(rows: Sequence[BreakdownRow]) -> Figure | None:
    """A bar per rank; of many ranks those that wait least, which the others wait for, and those that wait most."""
    if len(rows) > MOST_BARS:
        by_wait = _by_wait(rows)
        rows = by_wait[:_WAIT_LEAST] + by_wait[-_WAIT_MOST:]
    series = _parts_of(rows)
    return bars([f"rank {row.rank}" for row in rows], series, "ms per step") if series else None


def all_ranks(rows: Sequence[BreakdownRow]) -> Figure | None:
    """The same of many ranks as areas, in the order of what they wait for others."""
    rows = _by_wait(rows) if len(rows) > MOST_BARS else []
    series = _parts_of(rows)
    return _areas([str(row.rank) for row in rows], series) if series else None


def _by_wait(rows: Sequence[BreakdownRow]) -> list[BreakdownRow]:
    return sorted(rows, key=lambda row: row.comm_wait or 0.0)


def _parts_of(rows: Sequence[BreakdownRow]) -> list[tuple[Style, list[float | None]]]:
    """The parts that some rank has, and what is left of the step where not all parts are known."""
    parts = [part for part in shown_parts(rows) if any(part.of(row) for row in rows)]
    communication = [untold_communication(row) for row in rows]
    if not parts and not any(communication):
        return []
    series = [
        (Style(_named(part), part.colour, _PATTERNS.get(part.field, "")), [part.of(row) for row in rows])
        for part in parts
    ]
    if any(communication):
        series.append((STYLES["communication"], communication))
    known = [sum(values[index] or 0.0 for _, values in series) for index in range(len(rows))]
    rest: list[float | None] = [max((row.step or 0.0) - told, 0.0) for row, told in zip(rows, known, strict=True)]
    if max(value or 0.0 for value in rest) > _SMALL_REST * max(row.step or 0.0 for row in rows):
        series.append((Style("not told apart", "rgba(127,127,127,0.25)"), rest))
    return series


def _named(part: Part) -> str:
    return part.short if part.short == part.label else f"{part.short} ({part.label})"


def _buckets(result: Result) -> Figure | None:
    rows = result.communication.buckets[:MOST_BARS]
    several = len({row.model for row in rows}) > 1
    names = [f"{f'{label(row.model)} ' if several else ''}bucket {row.bucket}, {words.size(row.bytes)}" for row in rows]
    return _waits(names, [row.wait for row in rows], [row.transfer for row in rows], "ms per all-reduce")


def _kinds(result: Result) -> Figure | None:
    rows = result.communication.by_kind
    by_cost = sorted(rows, key=lambda row: -row.count * ((row.wait or 0.0) + (row.transfer or 0.0)))[:_MOST_KINDS]
    # Zero-width marks keep rows apart that read the same.
    names = [f"{label(row.kind)} {words.size(row.bytes)}" + "\u200b" * index for index, row in enumerate(by_cost)]
    return _waits(names, [row.wait for row in by_cost], [row.transfer for row in by_cost], "ms per call")


def _waits(names: list[str], wait: list[float | None], transfer: list[float | None], unit: str) -> Figure | None:
    if not any(value for value in (*wait, *transfer)):
        return None
    return bars(names, [(STYLES["wait"], wait), (STYLES["transfer"], transfer)], unit)


def bars(names: list[str], series: Sequence[tuple[Style, list[float | None]]], unit: str) -> Figure:
    """Horizontal bars, one stack per name."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": style.label,
            "y": names,
            "x": [None if value is None else round(value, 4) for value in values],
            "marker": marker(style),
            "hovertemplate": "%{y}: " + style.label + " %{x:.2f} ms<extra></extra>",
        }
        for style, values in series
    ]
    layout = {
        "height": len(names) * _ROW + _AROUND,
        "barmode": "stack",
        "bargap": 0.25,
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "dtick": 1},
    }
    return {"data": data, "layout": layout}


def _areas(names: list[str], series: Sequence[tuple[Style, list[float | None]]]) -> Figure:
    """Stacked areas over many names."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "parts",
            "name": style.label,
            "x": names,
            "y": [round(value or 0.0, 3) for value in values],
            "line": {"width": 0, "shape": "hvh", "color": style.colour},
            "fillcolor": style.colour,
            "fillpattern": _pattern(style),
            "hovertemplate": "rank %{x}: " + style.label + " %{y:.2f} ms<extra></extra>",
        }
        for style, values in series
    ]
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "ranks, by how long they wait for others"}, "type": "category", "nticks": 16},
        "yaxis": {"title": {"text": "ms per step"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}


def gantt(step: GanttStep) -> Figure:
    """A step across ranks: for each rank its training thread and, below and thinner, its collectives."""
    place = {rank: index for index, rank in enumerate(step.ranks)}
    by_kind: dict[tuple[str, str], list[GanttBar]] = {}
    for bar in step.bars:
        by_kind.setdefault((bar.lane, bar.kind), []).append(bar)
    order = list(STYLES)
    known = sorted(by_kind, key=lambda key: order.index(key[1]) if key[1] in STYLES else len(order))
    data = []
    for lane, kind in known:
        style = STYLES.get(kind, Style(label(kind), "#888888"))
        bars = by_kind[lane, kind]
        thread = lane == "thread"
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": style.label,
                "base": [bar.start for bar in bars],
                "x": [round(bar.end - bar.start, 4) for bar in bars],
                "y": [place[bar.rank] if thread else round(place[bar.rank] + 0.42, 2) for bar in bars],
                "width": 0.5 if thread else 0.24,
                "marker": marker(style),
                "customdata": [_hover(bar, style) for bar in bars],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    marks = [f"<b>▸ rank {rank}</b>" if rank in step.about else f"rank {rank}" for rank in step.ranks]
    since = "the first rank began the step" if step.aligned else "each rank began the step"
    layout = {
        "height": max(len(step.ranks) * 44, 120) + _AROUND,
        "barmode": "overlay",
        "xaxis": {"title": {"text": f"ms since {since}"}, "range": [0, step.duration]},
        "yaxis": {
            "tickvals": [round(index + 0.1, 1) for index in range(len(marks))],
            "ticktext": marks,
            "range": [len(marks) - 0.25, -0.45],
            "showgrid": False,
        },
    }
    return {"data": data, "layout": layout}


def _hover(bar: GanttBar, style: Style) -> str:
    what = f"{style.label}{f' ({label(bar.name)})' if bar.name else ''}"
    size = "" if bar.bytes is None else f", {words.size(bar.bytes)}"
    bucket = "" if bar.bucket is None else f", bucket {bar.bucket}"
    when = f"{bar.start:.2f}–{bar.end:.2f} ms: {words.duration(bar.end - bar.start)}"
    return f"rank {bar.rank}: {what}{size}{bucket}<br>{when}"


def marker(style: Style) -> dict[str, Any]:
    """What a bar looks like."""
    return {"color": style.colour, "line": _OUTLINE, "pattern": _pattern(style)}


def _pattern(style: Style) -> dict[str, Any]:
    return {"shape": style.pattern, "size": 7, "solidity": 0.2, "fillmode": "overlay", "fgcolor": "#ffffff"}


def legend(*drawn: Figure) -> list[Style]:
    """What the pictures' bars and areas stand for, each once."""
    styles: dict[str, Style] = {}
    for trace in (trace for figure in drawn for trace in figure["data"] if trace["type"] != "heatmap"):
        bar = trace["type"] == "bar"
        colour = trace["marker"]["color"] if bar else trace["fillcolor"]
        pattern = trace["marker"]["pattern"] if bar else trace["fillpattern"]
        styles.setdefault(trace["name"], Style(html.unescape(trace["name"]), colour, pattern["shape"]))
    return list(styles.values())
