"""The pictures of a sweep's page, as plotly's figures: points with intervals, two settings' heat map, breakdowns."""

from __future__ import annotations

import math
from itertools import combinations

from distprof.experiment.sweep.judge import swept
from distprof.experiment.sweep.points import shown
from distprof.experiment.sweep.result import PointFound, Sweep
from distprof.experiment.sweep.words import short
from distprof.report.figures import Figure, Style, bars, label
from distprof.report.parts import PARTS

_ROW, _AROUND = 26, 80  # pixels of a row and of what is around the rows
_RECOMMENDED = Style("recommended", "#009e73")
_MAY_BE_BEST = Style("cannot be told from the fastest", "#0072b2")
_OTHERS = Style("slower than the fastest", "#888888")
_PATTERNS = {"comm_wait": "/", "comm_transfer": "."}


def figures(found: Sweep) -> dict[str, Figure]:
    """The pictures by the id of their place in the page; what was not observed has none."""
    drawn = {"points": points(found), "heat": heat(found), "parts": parts(found)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def points(found: Sweep) -> Figure | None:
    """Time of each point over the baseline's, with its interval; the fastest at the top."""
    rows = [point for point in found.points if point.ratio is not None]
    rows.sort(key=lambda point: point.ratio.estimate if point.ratio else math.inf)
    if len(rows) < 2:
        return None
    names = _names(rows, found)
    data = []
    for style in (_RECOMMENDED, _MAY_BE_BEST, _OTHERS):
        chosen = [(point, name) for point, name in zip(rows, names, strict=True) if _style(point, found) is style]
        ratios = [point.ratio for point, _ in chosen if point.ratio is not None]
        if not chosen:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": style.label,
                "x": [round(ratio.estimate, 4) for ratio in ratios],
                "y": [name for _, name in chosen],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_length(ratio.estimate, ratio.high) for ratio in ratios],
                    "arrayminus": [_length(ratio.low, ratio.estimate) for ratio in ratios],
                    "thickness": 2,
                    "width": 5,
                },
                "marker": {"size": 10, "color": style.colour},
                "fillcolor": style.colour,
                "fillpattern": {"shape": ""},
                "hovertemplate": "%{y}: %{x:.3f} of the baseline<extra></extra>",
            }
        )
    layout = {
        "height": len(rows) * _ROW + _AROUND,
        "xaxis": {"title": {"text": f"time per {found.per} / the baseline's"}},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
            "automargin": True,
            "dtick": 1,
        },
        "shapes": [
            {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot", "width": 1.5}}
        ],
    }
    return {"data": data, "layout": layout}


def heat(found: Sweep) -> Figure | None:
    """Time by two settings: those with most pairs of values; of several points in a cell the fastest.

    Of points that were measured apart it is the time over the baseline's: they may have been on different hosts.
    """
    relative = found.order == "apart"
    rows = [point for point in found.points[1:] if _time(point, relative=relative) is not None]
    pairs = list(combinations(swept(rows), 2))
    if not pairs:
        return None

    def cells(pair: tuple[str, str]) -> int:
        return len({(repr(point.values.get(pair[0])), repr(point.values.get(pair[1]))) for point in rows})

    across, down = max(pairs, key=cells)
    columns, lines = _values(rows, across), _values(rows, down)
    times: dict[tuple[str, str], float] = {}
    for point in rows:
        place = (_value(point, down), _value(point, across))
        times[place] = min(_time(point, relative=relative) or math.inf, times.get(place, math.inf))
    values = [[_rounded(times.get((line, column))) for column in columns] for line in lines]
    unit = f"time per {found.per} / the baseline's" if relative else "ms per step"
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [label(column) for column in columns],
                "y": [label(line) for line in lines],
                "z": values,
                "xgap": 1,
                "ygap": 1,
                "hoverongaps": False,
                "texttemplate": "%{z:.4g}",
                "hovertemplate": f"%{{z:.4g}} {unit}<extra></extra>",
                "colorbar": {"title": {"text": unit}, "thickness": 12, "outlinewidth": 0},
            }
        ],
        "layout": {
            "height": max(len(lines) * 48, 120) + _AROUND,
            "xaxis": {"title": {"text": label(across)}, "type": "category", "showgrid": False},
            "yaxis": {"title": {"text": label(down)}, "type": "category", "autorange": "reversed", "showgrid": False},
        },
    }


def _time(point: PointFound, *, relative: bool) -> float | None:
    if not relative:
        return point.step
    return None if point.ratio is None else point.ratio.estimate


def heat_axes(figure: Figure) -> str:
    """The two settings of a heat map, in words."""
    layout = figure["layout"]
    return f"{layout['yaxis']['title']['text']} and {layout['xaxis']['title']['text']}"


def parts(found: Sweep) -> Figure | None:
    """Where a step goes in the run that explains each point, stacked."""
    rows = [(point, told) for point in found.points if (told := point.explanation) is not None and told.parts]
    known = [part for part in PARTS if any(told.parts.get(part.field) for _, told in rows)]
    if not known:
        return None
    series: list[tuple[Style, list[float | None]]] = [
        (
            Style(part.short, part.colour, _PATTERNS.get(part.field, "")),
            [told.parts.get(part.field) for _, told in rows],
        )
        for part in known
    ]
    return bars(_names([point for point, _ in rows], found), series, "ms per step")


def _names(rows: list[PointFound], found: Sweep) -> list[str]:
    # Zero-width marks keep rows apart that read the same.
    seen: dict[str, int] = {}
    names = []
    for point in rows:
        text = label(short(point, found.swept))
        seen[text] = seen.get(text, -1) + 1
        names.append(text + "\u200b" * seen[text])
    return names


def _style(point: PointFound, found: Sweep) -> Style:
    if point.name == found.recommended:
        return _RECOMMENDED
    return _MAY_BE_BEST if point.may_be_best else _OTHERS


def _length(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else round(high - low, 4)


def _value(point: PointFound, setting: str) -> str:
    value = point.values.get(setting)
    return "own" if value is None else shown(value)


def _values(rows: list[PointFound], setting: str) -> list[str]:
    """Values of a setting, numbers ascending and the script's own first."""

    def order(text: str) -> tuple[float, str]:
        try:
            return float(text), ""
        except ValueError:
            return (-math.inf if text == "own" else math.inf), text

    return sorted({_value(point, setting) for point in rows}, key=order)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
