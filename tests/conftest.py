"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

# A machine that is busy makes examples slow, and no test is about that.
settings.register_profile("distprof", deadline=None)
settings.load_profile("distprof")

ROOT = Path(__file__).parents[1]
Tell = Callable[[str], None]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared inputs (`cases/`), from DISTPROF_SHARED or else beside the repository.

    Without it a test is skipped; where CI is `true` it fails, so that a pipeline cannot pass by skipping.
    """
    folder = Path(os.environ.get("DISTPROF_SHARED") or ROOT.parent / "shared").resolve()
    if not (folder / "cases").is_dir():
        skip_but_in_ci(f"no shared inputs: {folder / 'cases'} is not a folder; set DISTPROF_SHARED")
    return folder


def skip_but_in_ci(reason: str) -> NoReturn:
    """Skip a test that this machine cannot run; where CI is `true` it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Prints a line, whatever pytest captures: campaigns say what they saw, for `benchmarks/soak/`."""

    def print_line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    return print_line
