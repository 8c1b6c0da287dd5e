"""How an experiment tells on a terminal what it does, and times in words."""

from __future__ import annotations

import math
import re
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from distprof.experiment.settings import Point
from distprof.experiment.trial import Trial
from distprof.report.words import clean
from distprof.run.config import ConfigError

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


class ProgressLines:
    """Tells on standard error how an experiment goes on: a line for each launch and, on a terminal, a bar."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not sys.stderr.isatty())
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(clean(text), style=style), soft_wrap=True)

    def says(self, text: str) -> None:
        """Something to know of what comes."""
        self._line(text)

    def planned(self, launches: int, seconds: float | None) -> None:
        """So many launches are missing."""
        if not launches:
            self._line("Everything was measured before.")
            return
        takes = "how long they take is known after the first one" if seconds is None else f"about {duration(seconds)}"
        self._line(
            f"{launches} launch{'' if launches == 1 else 'es'} at most, {takes}. Ctrl-C keeps what was measured."
        )
        self._task = self._bar.add_task("", total=launches, left="")

    def starts(self, point: Point, repeat: int) -> None:
        """A launch begins."""
        if self._task is not None:
            self._bar.update(self._task, description=f"{point.name}, repeat {repeat + 1}")

    def ended(self, trial: Trial, launches: int, seconds: float | None) -> None:
        """It has ended."""
        left = "" if not launches or seconds is None else f"; at most {duration(seconds)} left"
        name = f"{trial.point}, repeat {trial.repeat + 1}"
        if trial.failure is None:
            self._line(f"{name}: {trial.step or 0.0:.2f} ms per step (launch {duration(trial.seconds)}){left}")
        else:
            self._line(f"{name} failed: {trial.failure}{left}", "bold red")
            for line in trial.tail:
                self._line(f"    {line}", "dim")
        if self._task is not None:
            self._bar.update(self._task, advance=1, left=left.removeprefix("; "))


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `20min` or `1.5h`.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)\s*(s|sec|min|m|h)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{text!r} is no time such as 90s, 20min or 1.5h")
    return float(match[1]) * _UNITS[match[2]]
