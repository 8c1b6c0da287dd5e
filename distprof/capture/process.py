"""Which process records.

Every process that inherits the environment installs the hooks, but only one per rank may record: the first
that trains claims the rank. Data workers, forked children and subprocesses find it claimed and stay silent.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from distprof.capture.agent import Agent
from distprof.capture.guard import is_the_scripts
from distprof.capture.other_profilers import OtherProfilers
from distprof.capture.zones import ZoneRecorder
from distprof.run.config import OWNER_VARIABLE, CaptureConfig
from distprof.run.identity import IdentityError, read_identity


class Process:
    """This process, as the hooks see it. Its methods raise nothing but what the script's own signal handlers do.

    Attributes:
        optimizer_exists: the script has made one.
    """

    def __init__(self) -> None:
        self._config: CaptureConfig | None = None
        self._others: OtherProfilers | None = None
        self._watch_plain_modules: Callable[[], None] = lambda: None
        self._settings: dict[str, Any] | None = None
        self._agent: Agent | None = None
        self._decided = True
        self.optimizer_exists = False
        self._claiming = threading.Lock()

    def arm(
        self, config: CaptureConfig, watch_plain_modules: Callable[[], None], settings: dict[str, Any] | None
    ) -> None:
        """From now on this process records as soon as it trains.

        Args:
            config: capture settings.
            watch_plain_modules: times forward of any module.
            settings: facts about settings that are overridden; None: none is.
        """
        self._settings = settings
        self._watch_plain_modules = watch_plain_modules
        self._config = config
        self._others = OtherProfilers(self._problem)
        self._decided = False
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def recorder(self, *, training: bool = True) -> ZoneRecorder | None:
        """Where this process records its zones; None where it does not.

        The first call claims the rank. `training` False is for what other processes do as well: it claims only where
        the launcher said which rank this is.
        """
        if not self._decided:
            self._claim(training)
        return self._agent.zones if self._agent is not None else None

    def recorder_if_claimed(self) -> ZoneRecorder | None:
        """The same, but never claims."""
        return self._agent.zones if self._agent is not None else None

    def _claim(self, training: bool) -> None:
        with self._claiming:
            if self._decided or self._config is None or self._others is None:
                return
            if not training and not _launched():
                return
            if torch.utils.data.get_worker_info() is not None:
                return
            self._decided = True
            if os.environ.setdefault(OWNER_VARIABLE, str(os.getpid())) != str(os.getpid()):
                return
            try:
                agent = Agent(self._config, self._others, self._watch_plain_modules, self._settings)
                agent.start()
                self._agent = agent
            except Exception as error:
                if is_the_scripts(error):
                    raise
                print(f"distprof: this process is not profiled: {type(error).__name__}: {error}", file=sys.stderr)

    def _before_fork(self) -> None:
        # multiprocessing's children, data workers among them, end without the destructors that Kineto crashes in.
        forks = sys._getframe(1).f_globals.get("__name__", "")
        if not forks.startswith("multiprocessing."):
            self.tell(Agent.before_fork)

    def _after_fork(self) -> None:
        agent, self._agent = self._agent, None  # where nothing was claimed before the fork, the child may still do so
        if agent is not None:
            agent.disown()
        if self._others is not None:
            self._others.make_way = None
            if self._others.ours_ran:
                _end_without_destructors()
        self._claiming = threading.Lock()

    def _problem(self, where: str, error: Exception) -> None:
        if self._agent is not None:
            self._agent.problem(where, error)

    def boundary(self, kind: str, name: str = "") -> None:
        """A step may be over: an outermost `backward`, an `optimizer`'s step or the `user`'s own mark returned.

        Where there is an optimizer, its steps are waited for and backward passes are none.
        """
        recorder = self.recorder_if_claimed()
        if recorder is None or not recorder.trains_here():
            return
        if kind != "backward" or not self.optimizer_exists:
            self.tell(Agent.boundary, kind, name)

    def tell(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call one of the agent's methods, given as `Agent.method`, if this process records."""
        agent = self._agent
        if agent is not None:
            try:
                what(agent, *arguments)
            except Exception as error:
                if is_the_scripts(error):
                    raise
                agent.problem(what.__name__.replace("_", " "), error)


def _end_without_destructors() -> None:
    """Let this process end before C++'s static destructors.

    Kineto starts a thread at the first use of a profiler, and its destructor waits for it: in a fork, where there is no
    such thread, for ever. The script's fork must end as it would if we had not used a profiler.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        atexit.register(libc.fflush, None)
        libc.on_exit(libc._exit, None)  # the latest comes first, and is called with the exit status


def _launched() -> bool:
    try:
        return read_identity(os.environ).launcher != "none"
    except IdentityError:
        return True  # whoever claims says what is wrong


process = Process()
