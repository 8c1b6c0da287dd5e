"""Under which conditions a rank is measured: its host, its batches, its model, its loaders."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from distprof.run.secrets import mask_arguments, measured_environment

_MOST_SHAPES = 32
_MOST_LEAVES = 16
_DEEPEST = 4


def host_facts() -> dict[str, Any]:
    """What the process runs on and was started with."""
    return {
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "argv": mask_arguments(sys.argv),
        "environment": measured_environment(os.environ),
    }


class Batches:
    """Shapes of the batches that a rank's loaders gave, each with its count.

    Attributes:
        facts: one row per shape, for the rank's facts file; at most a few dozen.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.facts: list[dict[str, Any]] = []

    def see(self, batch: Any) -> tuple[int, int]:
        """Note a batch.

        Returns:
            Samples (the first tensor's first dimension) and elements of all tensors; zeros where it holds none.
        """
        tensors = list(islice(_tensors(batch, _DEEPEST), _MOST_LEAVES))
        if not tensors:
            return 0, 0
        key = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        row = self._rows.get(key)
        if row is None and len(self._rows) < _MOST_SHAPES:
            shapes = [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in key]
            row = self._rows[key] = {"shapes": shapes, "count": 0}
            self.facts.append(row)
        if row is not None:
            row["count"] += 1
        first = tensors[0]
        return int(first.shape[0]) if first.ndim else 1, sum(tensor.numel() for tensor in tensors)


def _tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    """Tensors of a batch. Only containers of Python's own are looked into: one of the script's may load, decode or draw
    random numbers when it is asked for its items."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth and isinstance(batch, (dict, UserDict)):
        for value in batch.values():
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(batch, (list, tuple)):
        for value in batch[:_MOST_LEAVES]:
            yield from _tensors(value, depth - 1)


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


def model_facts(name: str, model: Any) -> dict[str, Any]:
    """State of a model at its first forward."""
    inner = getattr(model, "module", model)
    compiled = any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in (model, inner)
    )
    return {
        "name": name,
        "mode": "train" if model.training else "eval",
        "autocast": torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"),
        "compiled": compiled,
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
