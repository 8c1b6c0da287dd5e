"""Arms distprof in a Python process, without an edit to its script.

Python imports `sitecustomize` at start-up from the first folder of PYTHONPATH that has one; the launcher
puts this one there. It waits for the script's own `import torch`, so a process that never does pays
nothing, and it hands on to the `sitecustomize` that would have been imported without it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _WhenTorchIsImported:
    """A finder that finds nothing itself: it lets the others find torch, and arms after torch has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if isinstance(spec.loader, SourceFileLoader):
                    _after(spec.loader)
                return spec
        return None


def _after(loader: Any) -> None:
    def exec_module(module: Any) -> None:
        del loader.exec_module  # the loader is as it was before anybody looks at it
        loader.exec_module(module)
        try:
            _arm()
        except Exception as error:
            print(f"distprof: this process is not profiled: {type(error).__name__}: {error}", file=sys.stderr)

    loader.exec_module = exec_module


def _arm() -> None:
    # By place and not by name: the script's interpreter may not have distprof on its path, and putting its
    # folder there would expose everything that is installed beside it.
    if "distprof" not in sys.modules:
        package = os.path.dirname(_HERE)
        spec = spec_from_file_location(
            "distprof", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{package} is no package")
        module = module_from_spec(spec)
        sys.modules["distprof"] = module
        spec.loader.exec_module(module)
    from distprof.capture.arm import arm

    arm()


def _hand_on() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]  # as without us
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _outlive_announcements() -> None:
    # SLURM sends the signal before a time limit to every process of a step, and it ends those that do not handle it.
    # The launcher hands the news on; a handler of the script's own takes the place of this.
    import signal

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


if os.environ.get("DISTPROF_NOTICE"):
    _outlive_announcements()
if os.environ.get("DISTPROF_CONFIG"):
    sys.meta_path.insert(0, _WhenTorchIsImported())
_hand_on()
