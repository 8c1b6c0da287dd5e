"""Sweeps whose launches are made up."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distprof.experiment.launching import Launcher
from distprof.experiment.settings import Point
from distprof.experiment.trial import Trial

Steps = Callable[[Point, int], float | None]


@dataclass
class Launches:
    """Launches that are made up: `step` says how long a step of (point, repeat) takes; None: the launch fails.

    `host` launches them, and parameters at the end are each host's own.
    """

    step: Steps
    interrupted_at: int | None = None
    host: str | None = None
    done: list[tuple[str, int]] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)
    launchers: list[Launcher] = field(default_factory=list)
    environments: list[str | None] = field(default_factory=list)

    def __call__(self, launcher: Launcher, point: Point, repeat: int, timeout_s: float | None) -> Trial:
        if len(self.done) == self.interrupted_at:
            raise KeyboardInterrupt
        words, folder = launcher._words(point, launcher.folder / "run")
        assert folder == Path(launcher.training.folder or "")
        where = launcher.folder.relative_to(launcher.folder.parents[0]).name
        self.done.append((f"{where}/{point.name}", repeat))
        self.arguments[point.name] = words[words.index(launcher.training.script) + 1 :]
        self.launchers.append(launcher)
        self.environments.append(os.environ.get("OF_THE_JOB"))
        step = self.step(point, repeat)
        if step is None:
            return Trial(
                point.name, repeat, 10.0, "it ended with status 1", ["no such file"], log="logs/x.txt", host=self.host
            )
        return Trial(
            point.name,
            repeat,
            10.0,
            run=f"runs/{point.name}-{repeat}",
            step_ms=[0.9 * step, 1.1 * step],
            world_size=2,
            samples_per_step=8.0,
            parts={"data_wait": max(0.0, step - 50), "compute": 50.0},
            exposed=3.0,
            checksums={"SGD#0": self.host or "a"},
            first_step=1000.0,
            memory_bytes=300 << 20,
            findings=["the loader is slow"],
            host=self.host,
        )


def steady(*, noise: float = 0.005) -> Callable[[float], float]:
    """Times that vary a little, and always the same way."""
    rng = np.random.default_rng(0)
    return lambda step: step * math.exp(noise * rng.standard_normal())


def workers_needed() -> Steps:
    """A loader that takes 100 ms for a batch, and a step of 50 ms: two workers are enough."""
    vary = steady()

    def step(point: Point, repeat: int) -> float:
        workers = int(point.settings.get("loader.num_workers", 0))
        return vary(max(50.0, 100.0 / workers) if workers else 150.0)

    return step
