"""A bar that shows how far reading, or writing, is: on a terminal, and only where one would wonder."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_S = 1.0


class ReadingBar:
    """A `trace.workers.Progress`. It appears when reading has taken a second and will take another one, on standard
    error, and is gone when the block ends."""

    def __init__(self, what: str = "reading") -> None:
        """Begin.

        Args:
            what: takes so long.
        """
        self._what = what
        self._begin = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    @property
    def shown(self) -> bool:
        """Whether the bar has appeared."""
        return self._bar is not None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            taken = time.monotonic() - self._begin
            if not sys.stderr.isatty() or taken < _PATIENCE_S or taken * (total - done) < _PATIENCE_S * done:
                return
            self._bar = _bar()
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
