"""What a rank does when the scheduler's notice comes: it waits for it here, and has its last words at the next step."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import Any

from distprof.run.notice import Notice

SOON_S = 0.2  # where a scheduler may end the job, or will


class LastWords:
    """Watches for the notice.

    Attributes:
        told: it has come.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._notice = Notice(environment)
        self._due = False
        self.told = False

    def pause(self, seconds: float) -> dict[str, Any] | None:
        """Wait, or less if the notice comes; then it is returned."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            watches = self._notice.expected and not self.told
            select.select([], [], [], min(left, SOON_S) if watches else left)  # `time.sleep` fails under libfaketime
            if watches and (notice := self._notice.read()) is not None:
                self.told = self._due = True
                return notice
        return None

    def due(self) -> bool:
        """Whether it is time for them; once."""
        due, self._due = self._due, False
        return due

    def said(self) -> None:
        """All that there was is on the disk."""
        self._notice.answer()
