"""What a sweep measures: the training, its points, and the folders that hold what was measured.

<out>/sweep.json, sweep.html
<out>/measured/     all points, measured in turn
<out>/explained/    their profiled runs
<out>/jobs/<key>/   of a job that measures by itself: measured/ and explained/ of its point
<out>/hydra/        Hydra's own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from omegaconf import DictConfig

from distprof.experiment.core import Setup, prepare
from distprof.experiment.progress import parse_duration
from distprof.experiment.settings import Point
from distprof.experiment.sweep.judge import About
from distprof.experiment.sweep.points import baseline_of, common, distinct, explained, point_of, training_of
from distprof.launcher.spec import versions
from distprof.run.config import ConfigError

MEASURED: Final = "measured"
EXPLAINED: Final = "explained"
JOBS: Final = "jobs"
_ROOM_AFTER = 2  # steps: the window is closed in the first of them


@dataclass(frozen=True, slots=True)
class Grid:
    """What is to be measured.

    Attributes:
        config: of one of its points; what all share is read from it.
        points: the baseline first.
        out: the sweep's folder.
        command: the command line, for the record.
    """

    config: DictConfig
    points: list[Point]
    out: Path
    command: list[str]

    @property
    def budget_s(self) -> float | None:
        """Seconds that all launches may take.

        Raises:
            ConfigError: it is no time.
        """
        text = self.config.measure.budget
        return None if text is None else parse_duration(str(text))

    def about(self) -> About:
        """The rest of its result."""
        measure, capture = self.config.measure, self.config.capture
        return About(
            self.command, self.config.script, measure.steps, measure.warmup, bool(capture.window), bool(measure.explain)
        )

    def setup(self, folder: Path, what: Literal["measured", "explained"]) -> Setup:
        """Find what was measured before, or begin.

        Raises:
            ConfigError: a setting cannot be had.
            RunDirectoryError: the folder holds something else.
        """
        measure = self.config.measure
        steps = measure.steps if what == MEASURED else self.config.capture.active
        points = self.points if what == MEASURED else [explained(point, self.config) for point in self.points]
        after = 0 if what == MEASURED else _ROOM_AFTER
        return prepare(
            "sweep",
            command=self.command,
            training=training_of(self.config),
            points=points,
            steps=steps,
            warmup=measure.warmup,
            versions=versions(),
            capture=["--checksum", f"--seed={measure.seed}", f"--stop-after={1 + measure.warmup + steps + after}"],
            folder=folder / what,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One of Hydra's jobs: a point, and the baseline as this job's configuration has it."""

    config: DictConfig
    point: Point
    baseline: Point

    @classmethod
    def of(cls, config: DictConfig) -> Job:
        """Read a configuration, while what it refers to of Hydra's is there.

        Raises:
            ConfigError: a setting cannot have its value, or an argument refers to nothing.
        """
        return cls(config, point_of(config), baseline_of(config))


def grid_of(jobs: Sequence[Job], out: Path, command: list[str]) -> Grid:
    """The grid of jobs that Hydra made.

    Raises:
        ConfigError: they differ by what cannot be swept.
    """
    first = jobs[0]
    shared = common(first.config)
    for job in jobs[1:]:
        different = [name for name, value in common(job.config).items() if value != shared[name]]
        if different:
            raise ConfigError(
                f"{different[0]} is not the same for all points: what can be swept is loader, ddp and args (which "
                "script_args may refer to)"
            )
    return Grid(first.config, [first.baseline, *distinct([job.point for job in jobs], first.baseline)], out, command)
