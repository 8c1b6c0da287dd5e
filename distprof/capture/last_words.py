"""What a rank does when the scheduler's notice comes: it waits for it here, and has its last words at the next step."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from typing import Any

from distprof.run.notice import Notice

SOON_S = 0.2  # where a scheduler may end the job, or will
_GLANCE_S = 0.05  # how soon it is seen that there is a reason to stop waiting


class LastWords:
    """Watches for the notice.

    Attributes:
        told: it has come.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._notice = Notice(environment)
        self._due = False
        self.told = False

    def pause(self, seconds: float, enough: Callable[[], bool] | None = None) -> dict[str, Any] | None:
        """Wait, or less if it is `enough` or the notice comes; the notice is returned."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            watches = self._notice.expected and not self.told
            looks = min(SOON_S if watches else left, _GLANCE_S if enough is not None else left)
            select.select([], [], [], min(left, looks))  # `time.sleep` fails under libfaketime
            if watches and (notice := self._notice.read()) is not None:
                self.told = self._due = True
                return notice
            if enough is not None and enough():
                break
        return None

    def due(self) -> bool:
        """Whether it is time for them; once."""
        due, self._due = self._due, False
        return due

    def said(self) -> None:
        """All that there was is on the disk."""
        self._notice.answer()
