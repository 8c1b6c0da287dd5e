"""The facts of a rank: who it is, how it was set up, how it ended. They become `rankNNNNN.json`."""

from __future__ import annotations

import os
import platform
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from distprof.capture.conditions import host_facts
from distprof.run.config import CaptureConfig
from distprof.run.directory import RankFiles
from distprof.run.files import write_json
from distprof.run.identity import Identity, boot_id, host_name

SCHEMA = "distprof.rank.v1"
_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int | None:
    """The most memory that this process held at once, since it was executed; None where the system does not tell."""
    try:
        lines = _STATUS.read_bytes().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


class Facts:
    """Collects facts and writes them, whole, whenever they changed. Its values are plain JSON."""

    def __init__(self, files: RankFiles, identity: Identity, config: CaptureConfig, activities: list[str]) -> None:
        self._files = files
        self._writing = threading.Lock()
        self._dirty = True
        self.values: dict[str, Any] = {
            "schema": SCHEMA,
            "rank": identity.rank,
            "local_rank": identity.local_rank,
            "world_size": identity.world_size,
            "attempt": identity.attempt,
            "host": host_name(),
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "training_thread": threading.get_native_id(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "backend": None,
            "device": "cpu",
            "status": "running",
            "started_unix_ns": time.time_ns(),
            "ended_unix_ns": None,
            "exit": None,
            "told": None,
            **host_facts(),
            "requested": activities if config.wants_window(identity.rank) else [],
            "windows": [],
            "groups": [],
            "ddp": [],
            "loaders": [],
            "models": [],
            "batches": [],
            "settings": None,
            "checksums": {},
            "stopped_after": None,
            "schedule": asdict(config.schedule),
            "boundary": None,
            "boundaries": 0,
            "drained_unix_ns": None,
            "zones_left_off": False,
            "peak_resident_bytes": None,
            "own_cost": None,
            "problems": list(identity.warnings),
        }

    def set(self, **values: Any) -> None:
        """Replace facts; written at the next `write`."""
        self.values.update(values)
        self._dirty = True

    def add(self, key: str, row: Any) -> None:
        """Append to a list of facts."""
        self.values[key].append(row)
        self._dirty = True

    def add_groups(self, groups: list[dict[str, Any]]) -> None:
        """Add process groups that are not known yet; a group is kept after it was destroyed."""
        known = {group["name"] for group in self.values["groups"]}
        for group in groups:
            if group["name"] not in known:
                self.add("groups", group)
        if self.values["backend"] is None and torch.distributed.is_initialized():
            self.set(backend=torch.distributed.get_backend())

    def write(self) -> None:
        """Write them if they changed.

        Raises:
            OSError: the run directory cannot be written.
        """
        with self._writing:
            if self._dirty:
                self._dirty = False
                try:
                    write_json(self._files.facts, self.values)
                except BaseException:
                    self._dirty = True
                    raise
