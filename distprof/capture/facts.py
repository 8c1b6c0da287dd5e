"""The facts of a rank: who it is, how it was set up, how it ended. They become `rankNNNNN.json`."""

from __future__ import annotations

import os
import platform
import threading
import time
from typing import Any

import torch

from distprof.run.config import CaptureConfig
from distprof.run.directory import RankFiles
from distprof.run.files import write_json
from distprof.run.identity import Identity, boot_id, host_name

SCHEMA = "distprof.rank.v1"


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
            "requested": activities if config.wants_window(identity.rank) else [],
            "windows": [],
            "groups": [],
            "ddp": [],
            "loaders": [],
            "own_cost": None,
            "problems": [],
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
                write_json(self._files.facts, self.values)


def loader_facts(name: str, loader: Any) -> dict[str, Any]:
    """Settings of a `DataLoader`, as constructed."""
    return {
        "name": name,
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "pin_memory": bool(loader.pin_memory),
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": bool(loader.persistent_workers),
    }


def ddp_facts(name: str, model: Any) -> dict[str, Any]:
    """Settings of a `DistributedDataParallel`, as constructed; its buckets are not known before they are rebuilt."""
    return {
        "name": name,
        "module": type(model.module).__name__,
        "bucket_cap_mb": model.bucket_bytes_cap / (1024 * 1024),
        "bucket_bytes": None,
        "params": None,
        "find_unused_parameters": bool(model.find_unused_parameters),
        "static_graph": bool(model.static_graph),
        "gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
        "broadcast_buffers": bool(model.broadcast_buffers),
    }


def ddp_buckets(model: Any) -> dict[str, Any]:
    """Bytes and parameters of each bucket after DDP rebuilt them; {} before that."""
    logged = model._get_ddp_logging_data()
    if not logged.get("has_rebuilt_buckets"):
        return {}
    names = model._build_debug_param_to_name_mapping(model._build_params_for_reducer()[0])
    return {
        "bucket_bytes": [int(size) for size in logged["rebuilt_bucket_sizes"].split(",")],
        "params": [
            [names[int(index)] for index in bucket.split()]
            for bucket in logged["rebuilt_per_bucket_param_indices"].split(",")
        ],
    }
