"""A sweep's answer in words and tables, for the terminal and the page alike."""

from __future__ import annotations

from distprof.experiment.statistics import Ratio
from distprof.experiment.sweep.judge import part_of
from distprof.experiment.sweep.points import BASELINE, shown
from distprof.experiment.sweep.result import Knee, PointFound, Sweep
from distprof.report import words
from distprof.report.parts import PARTS
from distprof.report.tables import Table

_LABELS = {part.field: part.label for part in PARTS} | {"exposed": "communication, exposed"}
_SHORT = ("loader.", "ddp.")
_VERDICTS = {"faster": "faster", "slower": "slower", "cannot_be_told": "not told"}
_BEST = "*"
TAKE = "take"
_MOST_NAMED = 4
_TRAINING = {
    "changed": "changes the result of the training: after the same steps its parameters are others",
    "not_repeatable": "comes to other parameters at each repeat, so whether it changes the result cannot be told",
}


def name(point: PointFound) -> str:
    """A point by what it sets."""
    if point.name == BASELINE:
        return "baseline (the script's own settings)"
    return " ".join(f"{setting}={shown(value)}" for setting, value in point.values.items()) or "the script's arguments"


def short(point: PointFound, swept: list[str]) -> str:
    """A point by what points differ by."""
    if point.name == BASELINE:
        return BASELINE
    told = [
        f"{_brief(setting)}={shown(value)}" for setting in swept if (value := point.values.get(setting)) is not None
    ]
    return " ".join(told) or name(point)


def _brief(setting: str) -> str:
    prefix = next((prefix for prefix in _SHORT if setting.startswith(prefix)), "")
    return setting.removeprefix(prefix)


def verdict(found: Sweep) -> str:
    """The answer in a sentence."""
    chosen = found.point(found.recommended)
    if chosen is not None and chosen.ratio is not None:
        return f"Take {name(chosen)}: its time per {found.per} is {interval(chosen.ratio)} of the baseline's."
    if found.verdict == "incomplete":
        return "It cannot be told yet."
    return (
        "It cannot be told that any of these settings is faster than the script's own: there is nothing to recommend."
    )


def reasons(found: Sweep) -> list[str]:
    """What the answer stands on, and what explains it."""
    sentences = [words.sentence(found.why)]
    others = [point for point in found.points if point.may_be_best and point.name != found.recommended]
    if found.recommended is not None and others:
        told = "; ".join(name(point) for point in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        sentences.append(f"What cannot be told from the fastest either: {told}{more}.")
    if found.recommended is None and found.verdict == "cannot_be_told":
        equal = sum(point.may_be_best for point in found.points)
        sentences.append(f"{words.count(equal, 'point')} of {len(found.points)} cannot be told from the fastest one.")
    sentences += [knee(each) for each in found.knees]
    change = part_of(found.because)
    if change is not None:
        sentences.append(
            f"Most of the gain is in {_LABELS.get(change.part, change.part)}: {words.duration(change.baseline)} "
            f"per step in the baseline, {words.duration(change.candidate)} with what is recommended."
        )
    if len(found.hosts) > 1:
        sentences.append(
            f"Measured on {len(found.hosts)} hosts: each point is held against the baseline on its own host, and "
            "points with each other by these ratios alone; what a setting gains on one host it may not gain on another."
        )
    chosen = found.point(found.recommended)
    if chosen is not None and chosen.training in _TRAINING:
        sentences.append(f"What is recommended {_TRAINING[chosen.training]}.")
    return sentences


def knee(found: Knee) -> str:
    """Where more of a setting gains nothing that can be told."""
    tried = ", ".join(f"{value:g}" for value in found.tried)
    if found.may_be_best == found.tried:
        return f"{found.setting}: between {tried} no difference can be told."
    return f"{found.setting}: of {tried} the smallest that is as good as the fastest is {found.value:g}."


def interval(ratio: Ratio) -> str:
    """A ratio with its interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.estimate:.3f}"
    return f"{ratio.estimate:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def points(found: Sweep, *, narrow: bool = False) -> Table:
    """All points, the fastest first and those that failed last; `narrow`: what a terminal has room for."""
    rows = sorted(found.points, key=lambda point: point.ratio.estimate if point.ratio else float("inf"))
    wide = [] if narrow else ["samples/s", "launches"]
    several = len(found.hosts) > 1
    return Table(
        caption=f"Points, measured outside of the profiler. Ratio: time per {found.per} over the baseline's; "
        f"{_BEST}: cannot be told from the fastest",
        headings=[
            "",
            *map(_brief, found.swept),
            *(["host"] if several else []),
            "ms/step",
            *wide,
            "ratio",
            "interval",
            "",
            "verdict",
        ],
        rows=[
            [
                _mark(point, found),
                *(_value(point, setting) for setting in found.swept),
                *([_where(point.hosts)] if several else []),
                words.ms(point.step),
                *([] if narrow else [_rate(point), str(len(point.steps))]),
                words.NULL if point.ratio is None else f"{point.ratio.estimate:.3f}",
                _edges(point.ratio),
                _BEST if point.may_be_best else "",
                _told(point),
            ]
            for point in rows
        ],
        names=frozenset({0, len(found.swept) + several + len(wide) + 5}),
    )


def hosts(found: Sweep) -> Table:
    """Where points were measured, if on several hosts: how fast the baseline is on each."""
    rows = found.hosts if len(found.hosts) > 1 else []
    return Table(
        caption="Hosts. ms/step of points are of their own host, and so is the baseline that they are held against",
        headings=["host", "baseline, ms/step", "its launches", "points"],
        rows=[[row.host, words.ms(row.baseline), str(row.repeats), " ".join(row.points)] for row in rows],
        names=frozenset({0, 3}),
    )


def explanations(found: Sweep, *, narrow: bool = False) -> Table:
    """What the profiled run of each point shows; `narrow`: what a terminal has room for."""
    rows = [(point, point.explanation) for point in found.points if point.explanation is not None]
    profiled = any(told.profiled for _, told in rows)
    several = len({told.host for _, told in rows if told.host is not None}) > 1
    return Table(
        caption=f"One {'profiled ' if profiled else ''}run of each, in ms: a step's waits, memory, start-up",
        headings=[
            "",
            *(["host"] if several else []),
            "data wait",
            "exposed",
            *([] if narrow else ["compute", "loader start"]),
            "memory",
            "first step",
        ],
        rows=[
            [
                short(point, found.swept),
                *([told.host or words.NULL] if several else []),
                words.ms(told.data_wait),
                words.ms(told.exposed),
                *([] if narrow else [words.ms(told.parts.get("compute")), words.ms(told.loader_start)]),
                words.size(told.memory_bytes),
                words.ms(told.first_step),
            ]
            for point, told in rows
        ],
        names=frozenset({0}),
    )


def _mark(point: PointFound, found: Sweep) -> str:
    return f"{TAKE} {point.name}" if point.name == found.recommended else point.name


def _rate(point: PointFound) -> str:
    return words.NULL if point.samples_per_s is None else f"{point.samples_per_s:.1f}"


def _value(point: PointFound, setting: str) -> str:
    value = point.values.get(setting)
    return ("own" if point.name == BASELINE else words.NULL) if value is None else shown(value)


def _where(hosts: list[str]) -> str:
    return words.NULL if not hosts else hosts[0] if len(hosts) == 1 else words.count(len(hosts), "host")


def _edges(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return words.NULL
    return f"{ratio.low:.3f}–{ratio.high:.3f}"


def _told(point: PointFound) -> str:
    if point.failure is not None:
        return "failed"
    if point.ratio is None:
        return "not measured"
    told = "" if point.name == BASELINE else _VERDICTS[point.ratio.verdict]
    changed = "changes the training" if point.training == "changed" else ""
    return ", ".join(filter(None, (told, changed)))
