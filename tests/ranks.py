"""Running a script as a world of one under capture, without a launcher: one process, for what needs no peers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import distprof
from distprof.launcher.spec import LaunchSpec
from distprof.run.config import CaptureConfig
from distprof.run.manifest import create_run
from distprof.trace.load import Run


@dataclass(frozen=True)
class Captured:
    """A script's process that has ended, and its recordings."""

    run_dir: Path
    returncode: int
    stdout: str
    stderr: str

    @property
    def run(self) -> Run:
        """The recordings, read."""
        return distprof.load(self.run_dir)

    @property
    def facts(self) -> dict[str, object]:
        """Rank 0's facts."""
        return self.run.tables.facts[0]


def capture(
    tmp_path: Path, script: str, *, env: dict[str, str] | None = None, config: dict[str, object] | None = None
) -> Captured:
    """Run `script` (source text) under capture with these capture settings, to its end."""
    run_dir = tmp_path / "run"
    settings = replace(CaptureConfig(run_dir=str(run_dir)), **(config or {}))  # type: ignore[arg-type]
    create_run(run_dir, run_id=None, command=["test"], world_size=1, config={}, versions={})
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    return run_in(run_dir, path, env=env, settings=settings)


def run_in(
    run_dir: Path, script: Path, *, env: dict[str, str] | None = None, settings: CaptureConfig | None = None
) -> Captured:
    """Run a script under capture in a run directory that exists, to its end."""
    capture_settings = settings or CaptureConfig(run_dir=str(run_dir))
    spec = LaunchSpec(command=["test"], script=str(script), capture=capture_settings)
    inherited = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**inherited, **spec.environment(inherited), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Captured(run_dir, done.returncode, done.stdout, done.stderr)
