"""A scheduler's signals, as the agent handles them: the ranks are told, and have a moment, before anything ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch.distributed.elastic.multiprocessing.api as torch_api

from distprof.run.notice import NOTICE_VARIABLE, NoticeBoard
from distprof.run.scheduled import ANNOUNCING, take_announcements

_PATIENCE_S = 1.5

Told = Callable[[str], None]


@contextmanager
def noticing(ranks_here: int, told: Told) -> Iterator[None]:
    """Inside it the ranks that this process starts are told of a scheduler's signals by a `NoticeBoard`.

    After an announcing signal the training goes on. SIGTERM ends it as under torchrun, once the ranks have answered,
    or have had a moment to. Where the scheduler sends it to the ranks, too, they are gone by then.

    Args:
        ranks_here: ranks that this process starts.
        told: is called with the name of each signal.
    """
    board = NoticeBoard()
    os.environ[NOTICE_VARIABLE] = str(board.folder)
    end = torch_api._terminate_process_handler
    names: set[str] = set()

    def announced(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name not in names:  # a scheduler may send it to the whole job, and whoever started this process hands it on
            names.add(name)
            board.tell(name)
            told(name)

    def ends(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            if "SIGTERM" in names:
                return  # the end is under way
            announced(signum, frame)
            deadline = time.monotonic() + _PATIENCE_S
            while board.answers() < ranks_here and time.monotonic() < deadline:
                time.sleep(0.05)
        end(signum, frame)

    before = {number: signal.signal(number, announced) for number in ANNOUNCING}
    take_announcements()
    torch_api._terminate_process_handler = ends  # torch installs it anew at each start of the ranks
    try:
        yield
    finally:
        torch_api._terminate_process_handler = end
        for number, handler in before.items():
            signal.signal(number, handler)
        os.environ.pop(NOTICE_VARIABLE, None)
        board.remove()
