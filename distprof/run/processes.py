"""What a process asks the system for, for itself."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the process that forked this one ends: one that was killed tells its children nothing.

    Args:
        parent: its pid, taken before the fork, since it may have ended meanwhile.
        number: the signal.
    """
    if sys.platform == "linux":
        import ctypes  # which is slow to import, and most commands fork nothing

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
