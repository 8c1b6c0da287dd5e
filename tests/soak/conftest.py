"""What the campaigns share."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture(scope="session")
def seed() -> int:
    """What random moments are drawn with: DISTPROF_SOAK_SEED, or else another one each time. Tests print it."""
    return int(os.environ.get("DISTPROF_SOAK_SEED") or random.randrange(1_000_000))
