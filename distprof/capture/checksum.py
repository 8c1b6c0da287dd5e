"""A checksum of the parameters as they are at the end of the training: whether two runs trained the same.

Losses cannot be seen without editing the script; the parameters that an optimizer steps are there. They are summed up
before the process groups vanish, at the end of the process, or when the optimizer goes away before that. The
optimizer's own references keep the parameters alive until then, none of ours.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import torch

_MOST_OPTIMIZERS = 20


class Checksums:
    """Sums up the parameters of the optimizers that stepped.

    Attributes:
        facts: name of the optimizer -> checksum, for the rank's facts.
        failure: why one could not be summed up, if so.
    """

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.failure: Exception | None = None
        self._stepped = False
        self._alive: dict[str, weakref.finalize[Any, Any]] = {}

    def saw(self, name: str, optimizer: Any) -> None:
        """An optimizer stepped; of the first many."""
        self._stepped = True
        if name not in self._alive and len(self._alive) < _MOST_OPTIMIZERS:
            # The list is the optimizer's own, so it holds groups that are added later, too.
            finalizer = weakref.finalize(optimizer, self._goes, name, optimizer.param_groups)
            finalizer.atexit = False
            self._alive[name] = finalizer

    def take(self) -> None:
        """Sum up the parameters of all optimizers that are still there, as they are now; again if there were steps."""
        if not self._stepped:
            return
        self._stepped = False
        for name, finalizer in self._alive.items():
            found = finalizer.peek()
            if found is not None:
                self._take(name, found[0].param_groups)

    def _goes(self, name: str, groups: list[dict[str, Any]]) -> None:
        if self._stepped or name not in self.facts:
            self._take(name, groups)

    def _take(self, name: str, groups: list[dict[str, Any]]) -> None:
        try:
            self.facts[name] = _checksum(groups)
        except Exception as error:
            self.failure = error


def _checksum(groups: list[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for group in groups:
        for parameter in group["params"]:
            tensor = parameter.detach()
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            digest.update(f"{local.dtype}{tuple(local.shape)}".encode())
            data = local.to("cpu").contiguous().flatten().view(torch.uint8)
            digest.update(memoryview(data.numpy()) if data.numel() else b"")
    return digest.hexdigest()
