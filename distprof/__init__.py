"""distprof: find out which rank holds a distributed PyTorch training up, and why.

The public API is small and lazy: importing this package imports neither torch nor polars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distprof._version import __version__

if TYPE_CHECKING:
    from distprof.capture.api import step, zone
    from distprof.trace.load import load

__all__ = ["__version__", "load", "step", "zone"]

_HOMES = {"load": "distprof.trace.load", "step": "distprof.capture.api", "zone": "distprof.capture.api"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'distprof' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
