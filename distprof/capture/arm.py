"""Arming a process: the hooks, and the process that they record in."""

from __future__ import annotations

import contextlib
import os
import random
import sys

import torch

from distprof.capture import hooks
from distprof.capture.process import process
from distprof.capture.settings import Overrides
from distprof.run.config import CaptureConfig
from distprof.run.identity import IdentityError, read_identity


def arm() -> None:
    """Install the hooks in this process if its environment says so.

    Raises:
        ConfigError: the environment holds a configuration of another version.
    """
    config = CaptureConfig.from_environment(os.environ)
    if config is not None:
        overrides = Overrides(config.settings)
        process.arm(config, hooks.watch_plain_modules, overrides.facts if config.settings else None)
        if config.seed is not None:
            _seed(config.seed)
        overrides.install()
        hooks.install(only_steps=config.only_steps)


def _seed(seed: int) -> None:
    """Seed what is seeded from the system's entropy; a script that seeds does so after this."""
    with contextlib.suppress(IdentityError):  # whoever claims the rank says what is wrong
        seed += read_identity(os.environ).rank
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
