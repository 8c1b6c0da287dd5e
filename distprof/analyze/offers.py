"""What analyses need to offer findings: the sections they stand on, severity, and the command that checks them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from distprof.analyze.hosts import ranks_per_host
from distprof.result import BreakdownRow, Communication, DataLoading, Operator, Steps, Stragglers
from distprof.trace.tables import Tables

# The command that opens the timeline, of a run and of traces that others recorded.
VIEW_RUN, VIEW_TRACES = "`distprof view RUN`", "`distprof view TRACES`"

_CRITICAL_SHARE = 0.25
_INFO_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """Sections of the report that findings stand on; see `result.Result`."""

    steps: Steps
    breakdown: list[BreakdownRow]
    communication: Communication
    stragglers: Stragglers
    data_loading: DataLoading
    operators: list[Operator] | None

    @classmethod
    def of(cls, sections: Mapping[str, Any]) -> Judged:
        """From all sections by name."""
        return cls(**{field.name: sections[field.name] for field in fields(cls)})

    @property
    def step(self) -> float | None:
        """How long a step takes, in ms."""
        return self.steps.steady.median

    def outside(self, ms: float) -> float:
        """So much time of a step in the window, as it would be of one outside: recording makes steps longer."""
        inside = [row.step for row in self.breakdown if row.basis == "window" and row.step]
        return ms * self.step * len(inside) / sum(inside) if inside and self.step else ms

    def share(self, ms: float) -> float:
        """So much time as a share of a step; 0 where it is not known how long a step takes."""
        return ms / self.step if self.step else 0.0

    def severity(self, saves: float) -> Literal["info", "warning", "critical"]:
        """Of a finding that would save so many ms per step."""
        share = self.share(saves)
        return "critical" if share > _CRITICAL_SHARE else "warning" if share > _INFO_SHARE else "info"


def validate(tables: Tables, *candidate: str) -> str:
    """The command that measures whether a change of settings helps: `distprof validate ... train.py`."""
    facts = list(tables.facts.values())
    script = next((row["argv"] for row in facts if row.get("argv")), ["SCRIPT"])
    per_host = ranks_per_host(tables)
    nodes = ["--nnodes", str(len(per_host))] if len(per_host) > 1 else []
    size = max(per_host.values(), default=tables.world_size)
    options = [*nodes, "--nproc-per-node", str(size), "--baseline", "", "--candidate", " ".join(candidate)]
    return f"`{shlex.join(['distprof', 'validate', *options, *script])}`"
