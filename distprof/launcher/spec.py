"""What a launch is: the training's own command line, and the capture around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distprof.run.config import CaptureConfig, inject_folder

_RING_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_RING_SIZE = "2000"


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
        path = inherited.get("PYTHONPATH")
        return {
            **self.capture.to_environment(),
            # Ours comes first, since another sitecustomize before it would hide it; ours hands on to that one.
            "PYTHONPATH": os.pathsep.join([str(inject_folder()), *([path] if path else [])]),
            _RING_VARIABLE: inherited.get(_RING_VARIABLE, _RING_SIZE),
        }


def default_run_dir(script: str, time_stamp: str) -> Path:
    """Where a run goes when the user does not say: `./distprof-runs/<time>-<script>`."""
    stem = Path(script).stem.replace(".", "-") or "run"
    return Path("distprof-runs") / f"{time_stamp}-{stem}"
