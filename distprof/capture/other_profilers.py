"""Making way for the script's own profiler.

Two profilers in one process lose events or crash it: the first `stop()` ends the shared session, and exporting
the other's result is a segmentation fault. torch's own 'is a profiler enabled' is thread-local and knows
nothing of one in its warm-up, so the three calls that all profilers go through are watched instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import profiler as torch_profiler

from distprof.capture.guard import is_the_scripts


class OtherProfilers:
    """Watches for profilers that are not ours, from the import of torch on.

    Attributes:
        active: the script's profiler is prepared or running.
        ours_ran: one of ours was started in this process.
        make_way: called when the script prepares or starts one, with the identity of the thread that does so.
            What it raises goes to `report`; the script never sees it.
    """

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self._report = report
        self._calls_are_ours = False
        self.active = False
        self.ours_ran = False
        self.make_way: Callable[[int], None] | None = None
        for name in ("_prepare_profiler", "_enable_profiler"):
            self._watch(name, begins=True)
        self._watch("_disable_profiler", begins=False)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Inside it the profiler calls are our own."""
        self._calls_are_ours = self.ours_ran = True
        try:
            yield
        finally:
            self._calls_are_ours = False

    def _watch(self, name: str, *, begins: bool) -> None:
        original = getattr(torch_profiler, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self._calls_are_ours:
                self.active = begins
                if begins and self.make_way is not None:
                    try:
                        self.make_way(threading.get_ident())
                    except Exception as error:
                        if is_the_scripts(error):
                            raise
                        self._report("closing the window for the script's profiler", error)
            return original(*args, **kwargs)

        setattr(torch_profiler, name, watched)
