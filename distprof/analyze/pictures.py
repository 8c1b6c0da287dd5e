"""The pictures of the report: who was late when, and some steps across ranks; bounded, whatever the size of the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.analyze import blame
from distprof.analyze.evidence import Evidence, of_run
from distprof.analyze.gantt import gantt
from distprof.analyze.inputs import Inputs
from distprof.analyze.lateness import Floats, lateness
from distprof.analyze.roles import roles
from distprof.analyze.steady import MS, NO_STEP
from distprof.result import GanttStep, Lateness, NotObserved, RankLateness

MOST_COLUMNS = 200
MOST_VALUES = 2**17


def with_pictures(inputs: Inputs, sections: dict[str, Any], evidence: Evidence | None = None) -> dict[str, Any]:
    """The sections with `lateness` and `gantt`, which show what the findings among them say.

    Args:
        evidence: what stragglers were judged by; None: what a run of our own is.
    """
    evidence = evidence or of_run(inputs)
    late, shown, unseen = None, list[GanttStep](), list[NotObserved]()
    if not evidence.own.steps:
        unseen = [NotObserved(name, None, NO_STEP) for name in ("lateness", "gantt")]
    else:
        delays = _delays(evidence)
        shown = gantt(evidence, delays, sections["findings"])
        if len(evidence.own.ranks) > 1:
            late = _lateness(evidence, delays)
        else:
            unseen = [NotObserved("lateness", None, "one rank made steps, and there is nobody to compare it with")]
    not_observed = [*sections["not_observed"], *unseen]
    return {**sections, "lateness": late, "gantt": shown, "not_observed": not_observed}


def _delays(evidence: Evidence) -> Floats:
    """How late each rank was in each step, in ms, as stragglers are judged; ranks and steps are those of own times."""
    own = evidence.own
    times = [own.own[:, :, zones].sum(axis=2) for zones in blame.places(own).values()]
    found = lateness(np.stack(times, axis=2).astype(np.float64), roles(evidence).members, evidence.step)
    delays: Floats = found.delays / MS
    return delays


def _lateness(evidence: Evidence, delays: Floats) -> Lateness:
    ranks, steps = evidence.own.ranks, evidence.own.steps
    limit = max(min(MOST_COLUMNS, MOST_VALUES // len(ranks)), 1)
    first = np.arange(0, len(steps), -(-len(steps) // limit))
    last = np.append(first[1:], len(steps)) - 1
    columns = np.maximum.reduceat(delays, first, axis=1)
    worst = delays.argmax(axis=1)
    return Lateness(
        basis=evidence.basis,
        steps_used=len(steps),
        first_steps=[steps[index] for index in first],
        last_steps=[steps[index] for index in last],
        ranks=[
            RankLateness(
                rank=rank,
                median=float(np.median(delays[row])),
                largest=float(delays[row, worst[row]]),
                largest_step=steps[worst[row]],
                late=np.round(columns[row], 3).tolist(),
            )
            for row, rank in enumerate(ranks)
        ],
    )
