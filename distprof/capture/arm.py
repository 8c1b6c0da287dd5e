"""Arming a process: the hooks, and the process that they record in."""

from __future__ import annotations

import os

from distprof.capture import hooks
from distprof.capture.process import process
from distprof.run.config import CaptureConfig


def arm() -> None:
    """Install the hooks in this process if its environment says so.

    Raises:
        ConfigError: the environment holds a configuration of another version.
    """
    config = CaptureConfig.from_environment(os.environ)
    if config is not None:
        process.arm(config, hooks.watch_plain_modules)
        hooks.install()
