"""The analyses, by the section of the report that they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distprof.analyze.breakdown import breakdown
from distprof.analyze.communication import communication
from distprof.analyze.data_loading import data_loading
from distprof.analyze.device_use import device_use
from distprof.analyze.facts import conditions, ranks, windows
from distprof.analyze.findings import findings
from distprof.analyze.inputs import Inputs
from distprof.analyze.memory import memory
from distprof.analyze.offers import Judged
from distprof.analyze.operators import kernels, operators
from distprof.analyze.overhead import overhead
from distprof.analyze.steps import steps
from distprof.analyze.stragglers import stragglers
from distprof.analyze.syncs import sync_waits
from distprof.analyze.totals import totals
from distprof.result import NotObserved

Analysis = Callable[[Inputs], tuple[Any, list[NotObserved]]]

SECTIONS: dict[str, Analysis] = {
    "ranks": ranks,
    "conditions": conditions,
    "windows": windows,
    "steps": steps,
    "totals": totals,
    "breakdown": breakdown,
    "communication": communication,
    "stragglers": stragglers,
    "data_loading": data_loading,
    "operators": operators,
    "kernels": kernels,
    "memory": memory,
    "sync_waits": sync_waits,
    "device_use": device_use,
    "overhead": overhead,
}


def analyze(inputs: Inputs) -> dict[str, Any]:
    """All sections by name, `findings` and `not_observed` among them."""
    sections, missing = fill(inputs, SECTIONS)
    return {**sections, "findings": findings(inputs, Judged.of(sections)), "not_observed": missing}


def fill(inputs: Inputs, names: Iterable[str]) -> tuple[dict[str, Any], list[NotObserved]]:
    """These sections by name, and what could not be observed for them."""
    sections: dict[str, Any] = {}
    missing: list[NotObserved] = []
    for name in names:
        sections[name], unseen = SECTIONS[name](inputs)
        missing += unseen
    return sections, missing
