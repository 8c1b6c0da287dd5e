"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared inputs (`cases/`), from DISTPROF_SHARED or else beside the repository.

    Without it a test is skipped; where CI is `true` it fails, so that a pipeline cannot pass by skipping.
    """
    folder = Path(os.environ.get("DISTPROF_SHARED") or ROOT.parent / "shared").resolve()
    if not (folder / "cases").is_dir():
        absent = f"no shared inputs: {folder / 'cases'} is not a folder; set DISTPROF_SHARED"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    return folder
