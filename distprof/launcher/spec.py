"""What a launch is: the training's own command line, and the capture around it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from distprof._version import __version__
from distprof.run.config import RING_VARIABLE, CaptureConfig, inject_folder, ring_size


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A launch, as every place that can start one needs it.

    Attributes:
        command: the command line as the user typed it, for the manifest.
        script: the training script, module or program.
        capture: what the ranks record.
    """

    command: list[str]
    script: str
    capture: CaptureConfig

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that arm a Python process which inherits them; a value that the user set is kept."""
        ours = str(inject_folder())
        theirs = inherited.get("PYTHONPATH")
        if theirs is not None:
            theirs = os.pathsep.join(folder for folder in theirs.split(os.pathsep) if folder != ours)
        return {
            **self.capture.to_environment(),
            # Ours comes first, since another sitecustomize before it would hide it; ours hands on to that one.
            "PYTHONPATH": os.pathsep.join([ours, *([theirs] if theirs else [])]),
            RING_VARIABLE: str(ring_size(inherited)),
        }


def new_run_dir(script: str, name: str, *, shared: bool = False) -> Path:
    """Make the folder where a run goes when the user does not say: `./distprof-runs/<name>-<script>`.

    A second one of the same name gets a number, so that launches side by side have one each.

    Args:
        script: the training script.
        name: the time, or the scheduler's name of the job.
        shared: other nodes or attempts of the run use the same name for it, so that it may be there already.

    Raises:
        OSError: it cannot be made.
    """
    stem = Path(script).stem.replace(".", "-") or "run"
    parent = Path("distprof-runs")
    parent.mkdir(exist_ok=True)
    number = 1
    while True:
        path = parent / (f"{name}-{stem}" + (f"-{number}" if number > 1 else ""))
        try:
            path.mkdir(exist_ok=shared)
        except FileExistsError:
            number += 1
        else:
            return path


def versions() -> dict[str, str]:
    """Versions of what launches."""
    return {"distprof": __version__, "torch": version("torch"), "python": platform.python_version()}
