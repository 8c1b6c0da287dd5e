"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.experiment.launching import Launcher
from distprof.experiment.settings import Point
from distprof.experiment.trial import Trial
from tests.unit.sweeps import Launches


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `distprof sweep` in an empty folder with made-up launches."""
    from distprof.cli import sweep as command  # Hydra and torch: for the tests that sweep alone

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")

    def run(launches: Launches, *words: str, entry: Callable[[list[str]], int] | None = None) -> int:
        def launch(launcher: Launcher, point: Point, repeat: int, timeout_s: float | None) -> Trial:
            return launches(launcher, point, repeat, timeout_s)

        monkeypatch.setattr(Launcher, "__call__", launch)
        return (entry or command.main)(list(words))

    return run
