"""At each rendezvous the agents of a job agree on an attempt: agent 0 takes a number, and tells it to the others.

torch's own count of restarts differs from agent to agent, and starts anew when a scheduler requeues the job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters, registry

from distprof.run.attempts import ATTEMPT_VARIABLE, claim_attempt, new_key
from distprof.run.directory import RunDirectory

_KEY = "distprof/attempt"
_PATIENCE = timedelta(seconds=30)

Noted = Callable[[dict[str, int]], None]


@contextmanager
def agreed_attempts(directories: list[RunDirectory], noted: Noted) -> Iterator[None]:
    """Inside it each rendezvous of torch's elastic launch is an attempt; the ranks find its number in the environment.

    Args:
        directories: where the attempt's folder is made: the run's own first, then a staged one.
        noted: is called with what is known about each attempt: `attempt`, `node_rank`, `nodes`, `unix_ns`.
    """
    original = registry.get_rendezvous_handler

    def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
        handler = original(params)
        agree = _Agreement(directories, noted, handler.get_backend() == "static")
        meet = handler.next_rendezvous

        def next_rendezvous() -> RendezvousInfo:
            info = meet()
            agree(info)
            return info

        handler.next_rendezvous = next_rendezvous  # type: ignore[method-assign]
        return handler

    registry.get_rendezvous_handler = get_rendezvous_handler
    try:
        yield
    finally:
        registry.get_rendezvous_handler = original
        os.environ.pop(ATTEMPT_VARIABLE, None)


class _Agreement:
    def __init__(self, directories: list[RunDirectory], noted: Noted, keeps_its_store: bool) -> None:
        self._directories = directories
        self._noted = noted
        self._keeps_its_store = keeps_its_store
        self._count = 0

    def __call__(self, info: RendezvousInfo) -> None:
        # A static rendezvous has one store for all times; the others have a new one each time.
        name = f"{_KEY}/{self._count}" if self._keeps_its_store else _KEY
        self._count += 1
        try:
            number = self._agree(info, name)
        except Exception as error:  # the training must not fail by this
            os.environ.pop(ATTEMPT_VARIABLE, None)  # the ranks go by the counts in their environment
            print(f"distprof: no attempt was agreed on ({type(error).__name__}: {error})", file=sys.stderr)
            return
        os.environ[ATTEMPT_VARIABLE] = str(number)
        row = {"attempt": number, "node_rank": info.rank, "nodes": info.world_size, "unix_ns": time.time_ns()}
        self._noted(row)

    def _agree(self, info: RendezvousInfo, name: str) -> int:
        if info.rank == 0:
            key = new_key()
            number = claim_attempt(self._directories[0], key)
            info.store.set(name, json.dumps([number, key]))
        else:
            info.store.wait([name], _PATIENCE)
            number, key = json.loads(info.store.get(name))
        for directory in self._directories:  # on a file system that agent 0 does not share it is not there yet
            number = claim_attempt(directory, key, preferred=number)
        return int(number)
