"""The shape of `sweep.json`; its JSON schema and docs/sweep.md are generated from here. Times are milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from distprof.experiment.statistics import Ratio
from distprof.experiment.validate import PartChange, Training
from distprof.result import NotObserved, doc
from distprof.run.files import read_json, write_atomic
from distprof.run.manifest import RunDirectoryError
from distprof.run.settings import Value

SCHEMA: Final = "distprof.sweep.v1"
FILE = "sweep.json"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A point's one run that was recorded for an explanation; under a profiler steps take longer."""

    run: Annotated[str | None, doc("Its run directory, relative to the sweep's folder.")]
    profiled: Annotated[bool, doc("A Kineto window was open; else zones alone.")]
    step: Annotated[float | None, doc("The mean step of this run.")]
    parts: Annotated[dict[str, float], doc("Parts of the step, as the report cuts it: means over ranks.")]
    data_wait: Annotated[float | None, doc("Waiting for data, per step: the mean over ranks.")]
    exposed: Annotated[float | None, doc("Exposed communication per step; null: not observed.")]
    memory_bytes: Annotated[int | None, doc("Most resident memory of a rank, without data workers.")]
    first_step: Annotated[float | None, doc("The first step.")]
    loader_start: Annotated[float | None, doc("Start of the loaders, on the slowest rank.")]
    findings: Annotated[list[str], doc("What the report finds, the costliest first.")]
    host: Annotated[str | None, doc("Host on which it ran; null: an earlier distprof did not note it.")] = None


@dataclass(frozen=True, slots=True)
class PointFound:
    """A point and what was measured of it, outside of the profiler."""

    name: Annotated[str, doc("`baseline`, or `p1` and so on.")]
    values: Annotated[dict[str, Value], doc("Settings, and values of `args`; of the baseline none.")]
    arguments: Annotated[list[str], doc("The script's own arguments.")]
    step: Annotated[float | None, doc("The mean step: the median over the repeats.")]
    samples_per_s: Annotated[float | None, doc("Samples per second of all ranks: the median over the repeats.")]
    steps: Annotated[list[float], doc("The mean step of each repeat.")]
    ratio: Annotated[Ratio | None, doc("Its time over the baseline's; null: not measured beside it.")]
    to_best: Annotated[Ratio | None, doc("Its time over the fastest point's.")]
    may_be_best: Annotated[bool, doc("It cannot be told from the fastest point.")]
    training: Annotated[Training, doc("Whether it comes to the same parameters as the baseline.")]
    failure: Annotated[str | None, doc("Why a launch of it failed, if one did.")]
    tail: Annotated[list[str], doc("The end of that launch's output.")]
    log: Annotated[str | None, doc("That output, relative to the sweep's folder.")]
    explanation: Annotated[Explanation | None, doc("What its profiled run shows.")] = None
    hosts: Annotated[list[str], doc("Hosts on which it was launched.")] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Knee:
    """Of a setting with numbers: the smallest value that is as good as the fastest, all else as recommended.

    As good: it cannot be told from the fastest, and its time is within 5% of it.
    """

    setting: Annotated[str, doc("The setting.")]
    value: Annotated[float, doc("The smallest value that is as good.")]
    point: Annotated[str, doc("The point that has it.")]
    tried: Annotated[list[float], doc("All values that were tried beside it, ascending.")]
    may_be_best: Annotated[list[float], doc("Those of them that may be the fastest; all: it makes no difference.")]


@dataclass(frozen=True, slots=True)
class HostFound:
    """A host, and the time of the baseline there, which points that were measured there are held against."""

    host: Annotated[str, doc("Its name.")]
    points: Annotated[list[str], doc("Points that were launched there, the baseline apart.")]
    baseline: Annotated[float | None, doc("The baseline's mean step there: the median over the repeats.")]
    repeats: Annotated[int, doc("Launches of the baseline there that were measured.")]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found."""

    command: Annotated[list[str], doc("The command line.")]
    script: Annotated[str, doc("What was launched.")]
    world_size: Annotated[int | None, doc("Ranks.")]
    order: Annotated[
        Literal["together", "apart"],
        doc("`together`: the repeats of all points were taken in turn; `apart`: of each point and the baseline."),
    ]
    verdict: Annotated[
        Literal["faster", "cannot_be_told", "incomplete"],
        doc("`faster`: some point beats the baseline; `incomplete`: not enough was measured to tell."),
    ]
    why: Annotated[str, doc("What it stands on, or what is missing.")]
    per: Annotated[
        Literal["step", "sample"], doc("What ratios are about; `sample`: steps have not as many samples everywhere.")
    ]
    recommended: Annotated[
        str | None,
        doc(
            "Of the points that beat the baseline, may be the fastest and are within 5% of it: that with fewest "
            "workers, then fewest settings. null: none beats it."
        ),
    ]
    best: Annotated[str | None, doc("The point with the smallest mean; by itself it says little.")]
    points: Annotated[list[PointFound], doc("The baseline first.")]
    knees: Annotated[list[Knee], doc("For each setting with numbers.")]
    because: Annotated[
        list[PartChange], doc("Parts of the step in the baseline and the recommended point, outside of the profiler.")
    ]
    swept: Annotated[list[str], doc("What points differ by.")]
    repeats: Annotated[int, doc("Whole repeats that the verdict stands on; measured apart, the fewest of a point.")]
    comparisons: Annotated[int, doc("By how many comparisons the intervals are corrected.")]
    steps: Annotated[int, doc("Steps measured in each launch.")]
    warmup: Annotated[int, doc("Steps after the first one that are not measured.")]
    notes: Annotated[list[str], doc("What to know of the settings: why one has another effect than it seems.")]
    not_observed: Annotated[list[NotObserved], doc("What is null and matters, with the reason.")] = field(
        default_factory=list
    )
    hosts: Annotated[
        list[HostFound],
        doc("Each host that launched, by name. Points of two hosts are compared by their ratios alone."),
    ] = field(default_factory=list)
    schema: Annotated[Literal["distprof.sweep.v1"], doc("Version of this shape.")] = SCHEMA

    def point(self, name: str | None) -> PointFound | None:
        """A point by its name."""
        return next((point for point in self.points if point.name == name), None)

    @property
    def baseline(self) -> PointFound:
        """The script's own settings."""
        return self.points[0]


def json_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of `sweep.json`."""
    return msgspec.json.schema(Sweep)


def write(found: Sweep, folder: Path) -> None:
    """Write `sweep.json`, atomically.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(folder / FILE, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read(folder: Path) -> Sweep:
    """Read it back.

    Raises:
        RunDirectoryError: it is not there, or of another version.
    """
    try:
        return msgspec.convert(read_json(folder / FILE), Sweep)
    except (ValueError, OSError) as error:  # msgspec's errors are ValueErrors
        raise RunDirectoryError(f"{folder / FILE} is no sweep of this version ({error})") from error
