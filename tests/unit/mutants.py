"""Property tests where thousands of mutants of the code run each of them: `make mutation`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def examples(count: int, *, always_the_same: bool = False) -> settings:
    """Settings of a test that tries `count` examples; for a mutant fewer and the same, and none is made smaller."""
    if "MUTANT_UNDER_TEST" in os.environ:
        return settings(
            max_examples=min(count, 10),
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),  # which ask how long it takes
        )
    return settings(max_examples=count, derandomize=always_the_same)
