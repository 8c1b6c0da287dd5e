"""One launch of one point, and what was measured in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import polars as pl

from distprof.analyze.steady import MS, on_device
from distprof.analyze.waits import match, rank_waits
from distprof.pipeline import build
from distprof.report.parts import PARTS
from distprof.result import Result, SettingRow, doc
from distprof.trace.intervals import covered
from distprof.trace.load import Run, load
from distprof.trace.tables import Tables


@dataclass(frozen=True, slots=True)
class Trial:
    """A launch and its figures; times are milliseconds unless the name says otherwise."""

    point: Annotated[str, doc("Which point was launched.")]
    repeat: Annotated[int, doc("In which repeat, from 0.")]
    seconds: Annotated[float, doc("What the launch took, start and end included.")]
    failure: Annotated[str | None, doc("Why there are no figures; null: there are.")] = None
    tail: Annotated[list[str], doc("Of a launch that failed: the end of its output.")] = field(default_factory=list)
    log: Annotated[str | None, doc("Its output, relative to the experiment's folder.")] = None
    run: Annotated[str | None, doc("Its run directory, relative to the experiment's folder.")] = None
    step_ms: Annotated[list[float], doc("The measured steps, each the mean over ranks.")] = field(default_factory=list)
    world_size: Annotated[int | None, doc("Ranks.")] = None
    samples_per_step: Annotated[float | None, doc("Samples per step and rank.")] = None
    parts: Annotated[dict[str, float], doc("Parts of the step, as the report cuts it: means over ranks.")] = field(
        default_factory=dict
    )
    zones: Annotated[dict[str, float], doc("Time in each kind of zone per measured step: means over ranks.")] = field(
        default_factory=dict
    )
    exposed: Annotated[
        float | None,
        doc("Exposed communication per measured step: the training thread did nothing but wait for collectives."),
    ] = None
    checksums: Annotated[dict[str, str] | None, doc("Optimizer -> checksum of its parameters at the end.")] = None
    settings: Annotated[list[SettingRow] | None, doc("What became of the overridden settings.")] = None
    first_step: Annotated[float | None, doc("The first step, the mean over ranks.")] = None
    loader_start: Annotated[
        float | None, doc("Time in loaders' `__iter__` and first `__next__`, the whole launch: the slowest rank's.")
    ] = None
    memory_bytes: Annotated[
        int | None, doc("Most resident memory of a rank's process, without data workers: the largest rank's.")
    ] = None
    findings: Annotated[list[str], doc("What the report finds, the costliest first.")] = field(default_factory=list)
    host: Annotated[str | None, doc("Host that launched it; null: an earlier distprof did not note it.")] = None

    @property
    def step(self) -> float | None:
        """The mean measured step. Not the median: a loader that stalls in each fourth step has fast ones in between."""
        return sum(self.step_ms) / len(self.step_ms) if self.step_ms else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all ranks together."""
        if self.step is None or self.samples_per_step is None or self.world_size is None:
            return None
        return self.samples_per_step * self.world_size / self.step * 1e3


@dataclass(frozen=True, slots=True)
class Figures:
    """What is read from a run directory; see `Trial`."""

    step_ms: list[float]
    result: Result
    zones: dict[str, float]
    exposed: float | None

    @property
    def unmet(self) -> list[SettingRow]:
        """Settings that took effect nowhere."""
        return [row for row in self.result.conditions.settings or () if row.target is None]

    @property
    def loader_start(self) -> float | None:
        """The slowest rank's start of loaders, in milliseconds."""
        return max((row.startup for row in self.result.data_loading.per_rank if row.startup is not None), default=None)

    @property
    def memory_bytes(self) -> int | None:
        """The largest rank's peak of resident memory."""
        peaks = [row.peak_bytes for row in self.result.memory or () if row.device == "host"]
        return max((peak for peak in peaks if peak is not None), default=None)

    @property
    def parts(self) -> dict[str, float]:
        """Parts of the step that some rank has: means over ranks."""
        rows = self.result.breakdown
        told = {part.field: [value for row in rows if (value := part.of(row)) is not None] for part in PARTS}
        return {name: sum(values) / len(values) for name, values in told.items() if values}


def read_figures(run_dir: Path, first: int) -> Figures:
    """Read a run directory; its steps from number `first` on are those that are measured.

    Raises:
        RunDirectoryError: nothing can be read.
    """
    run = load(run_dir)
    steps = run.tables.steps.filter((pl.col("step") >= first) & pl.col("excluded").is_null())
    per_step = (
        steps.group_by("step")
        .agg(((pl.col("end") - pl.col("start")).mean() / MS).alias("ms"), pl.len().alias("ranks"))
        .filter(pl.col("ranks") == len(run.tables.ranks))
        .sort("step")
    )
    measured = steps.filter(pl.col("step").is_in(per_step["step"].implode()))
    return Figures(
        [round(ms, 6) for ms in per_step["ms"]], build(run), _zones(run, measured), _exposed(run.tables, measured)
    )


def _zones(run: Run, steps: pl.DataFrame) -> dict[str, float]:
    """Time in the training thread's zones per step, by kind; those that begin in these steps."""
    if not len(steps):
        return {}
    zones = run.tables.zones.filter((pl.col("thread") == 0) & ~pl.col("kind").is_in(["own", "step", "zone"]))
    spans = steps.select("rank", "step", begin="start", over="end").sort("begin")
    inside = (
        zones.sort("start")
        .join_asof(spans, left_on="start", right_on="begin", by="rank", check_sortedness=False)
        .filter(pl.col("start") < pl.col("over"))
    )
    totals = inside.group_by("kind").agg(((pl.col("end") - pl.col("start")).sum() / MS / len(steps)).alias("ms"))
    return {str(kind): float(ms) for kind, ms in totals.sort("kind").iter_rows()}


def _exposed(tables: Tables, steps: pl.DataFrame) -> float | None:
    """Time per step in which the training thread was blocked on collectives: the mean over ranks. None where ranks
    train on a device, since the host's waits are not the device's."""
    if not len(steps) or on_device(tables):
        return None
    matched = match(tables)
    blocked = 0
    for rank in tables.ranks:
        mine = steps.filter(pl.col("rank") == rank)
        of_rank = rank_waits(tables, matched, rank).blocked
        blocked += int(covered(of_rank, mine["start"].to_numpy(), mine["end"].to_numpy()).sum())
    return blocked / len(steps) / MS


def hosts_of(trials: Iterable[Trial]) -> list[str]:
    """The hosts that launched them, as far as they are known."""
    return sorted({trial.host for trial in trials if trial.host is not None})


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of none."""
    return sum(values) / len(values) if values else None
