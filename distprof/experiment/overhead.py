"""What distprof costs a training: without it, with its zones, and with a window open.

A step cannot be timed from outside, so 'without' is not nothing: the launch is torchrun's, and the one thing that is
recorded are the boundaries of steps (two readings of the clock around each backward and optimizer step). Nothing is
asked of loaders, models, collectives, garbage collections or the flight recorder, and no clock probes are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from distprof.experiment.core import Experiment
from distprof.experiment.settings import Point
from distprof.experiment.statistics import Ratio, ratio
from distprof.experiment.trial import Trial, mean
from distprof.result import doc

WITHOUT, ZONES, WINDOW = "without", "zones", "window"
_WINDOW_WARMUP = 2
_WORTH_A_ROW = 0.01  # of a step


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of recording costs, against another."""

    what: Annotated[str, doc("`step`, or a kind of zone.")]
    recorded: Annotated[str, doc("`zones`, or `window`: zones, and a Kineto window over all measured steps.")]
    against: Annotated[str, doc("`without`: step boundaries only; or `zones`.")]
    before: Annotated[float, doc("Milliseconds per step in what it is held against: the mean over the repeats.")]
    after: Annotated[float, doc("The same with the recording.")]
    ratio: Annotated[Ratio, doc("after / before.")]


@dataclass(frozen=True, slots=True)
class OverheadFound:
    """The answer."""

    costs: Annotated[list[Cost], doc("Steps first, then parts of them that both record.")]
    failures: Annotated[dict[str, str], doc("Points of which a launch failed, and why.")]


def points(warmup: int, steps: int) -> list[Point]:
    """The three ways of recording; the window is open over all measured steps."""
    opens = max(0, warmup - _WINDOW_WARMUP)
    # The step that it opens in is the last one that is not measured, and it is open until the training is ended.
    schedule = f"wait={opens},warmup={warmup - opens},active={steps + 2}"
    return [
        Point(WITHOUT, options=["--only-steps"]),
        Point(ZONES, options=["--no-window"]),
        Point(WINDOW, options=["--schedule", schedule]),
    ]


def judge(experiment: Experiment) -> OverheadFound:
    """What was measured so far says this."""
    costs = [
        cost
        for recorded, against in ((ZONES, WITHOUT), (WINDOW, WITHOUT), (WINDOW, ZONES))
        for cost in _costs(experiment, recorded, against)
    ]
    failed = {point.name: experiment.failures(point.name) for point in experiment.points}
    failures = {name: trials[-1].failure or "" for name, trials in failed.items() if trials}
    return OverheadFound(sorted(costs, key=lambda cost: cost.what != "step"), failures)


def _costs(experiment: Experiment, recorded: str, against: str) -> list[Cost]:
    before, after = experiment.together(against, recorded)
    step = mean([trial.step or 0.0 for trial in before])
    if step is None:
        return []
    kinds = set.intersection(*(set(trial.zones) for trial in [*before, *after]))
    rows = [("step", [trial.step or 0.0 for trial in before], [trial.step or 0.0 for trial in after])]
    rows += [(kind, _of(before, kind), _of(after, kind)) for kind in sorted(kinds)]
    costs = []
    for what, old, new in rows:
        found = ratio(old, new) if min(*old, *new) > 0 else None
        if found is not None and sum(old) / len(old) >= _WORTH_A_ROW * step:
            costs.append(Cost(what, recorded, against, sum(old) / len(old), sum(new) / len(new), found))
    return costs


def _of(trials: list[Trial], kind: str) -> list[float]:
    return [trial.zones[kind] for trial in trials]
