"""Overriding what the script gives its loaders and its DDP, where it constructs them.

The constructors are wrapped and not the objects changed: a loader's samplers and DDP's buckets are made from the
arguments. What was asked, what the script had and what took effect is noted for the rank's facts.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from distprof.capture.agent import Agent
from distprof.capture.guard import is_the_scripts
from distprof.capture.process import process
from distprof.run.config import OWNER_VARIABLE
from distprof.run.settings import ONLY, Value

_MOST_NOTED = 100
_MOST_PLACES = 5
# What a loader without workers must be given.
_WITHOUT_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
_NEEDS_WORKERS = "it needs workers, and the loader has none"
_DDP_DEFAULT_MB = 25


class Overrides:
    """Settings that were asked for, and what became of them.

    Attributes:
        facts: for the rank's facts. `asked`: the settings; `met`: a row for each setting and object, with what the
            script had and what it has now; `unmet`: settings that took effect nowhere so far, each with the reason.
    """

    def __init__(self, asked: Mapping[str, Value]) -> None:
        self._loader = _of(asked, "loader.")
        self._only = self._loader.pop("only", None)
        self._ddp = _of(asked, "ddp.")
        self._places: list[str] = []
        self.facts: dict[str, Any] = {
            "asked": dict(asked),
            "met": [],
            "unmet": {
                **{f"loader.{name}": "the script made no torch DataLoader" for name in self._loader},
                **{f"ddp.{name}": "the script made no DistributedDataParallel" for name in self._ddp},
            },
        }

    def install(self) -> None:
        """Wrap the constructors of what is to be set. To be called once, before the script uses them."""
        if self._loader:
            _wrap(DataLoader, self._loader_init)
        if self._ddp and torch.distributed.is_available():
            from torch.nn.parallel import DistributedDataParallel

            _wrap(DistributedDataParallel, self._ddp_init)

    def _loader_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            bound = _bound(signature, loader, args, kwargs)
            if bound is None or not _trains() or not self._is_chosen(_place(loader)):
                original(loader, *args, **kwargs)
                return
            had = {name: bound.arguments[name] for name in self._loader}
            workers = self._loader.get("num_workers", bound.arguments["num_workers"])
            bound.arguments.update(self._loader)
            if workers == 0:
                # What the script gave for workers goes with them; what it gave without any is its own mistake.
                names = _WITHOUT_WORKERS if "num_workers" in self._loader else _WITHOUT_WORKERS.keys() & self._loader
                bound.arguments.update({name: _WITHOUT_WORKERS[name] for name in names})
            original(*bound.args, **bound.kwargs)
            with _nothing_raised():
                for name, asked in self._loader.items():
                    took = getattr(loader, name)
                    why = _what_to_know(name, asked, took, loader)
                    self._note(loader, setting=f"loader.{name}", asked=asked, had=had[name], took=took, why=why)

        return __init__

    def _is_chosen(self, place: str) -> bool:
        number = len(self._places)
        self._places.append(place)
        if self._only is None or self._only == number:
            return True
        if isinstance(self._only, str):
            file, _, line = self._only.rpartition(":")
            its_file, _, its_line = place.rpartition(":")
            names = Path(file).parts
            if line == its_line and Path(its_file).parts[-len(names) :] == names:
                return True
        shown = ", ".join(f"{index} at {where}" for index, where in enumerate(self._places[:_MOST_PLACES]))
        for setting in self.facts["unmet"].keys() & {f"loader.{name}" for name in self._loader}:
            self.facts["unmet"][setting] = f"{ONLY}={self._only} chooses none of the loaders ({shown})"
        return False

    def _ddp_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            bound = _bound(signature, model, args, kwargs)
            if bound is None or not _trains():
                original(model, *args, **kwargs)
                return
            had = {name: bound.arguments[name] for name in self._ddp}
            if had.get("bucket_cap_mb", 0) is None:
                had["bucket_cap_mb"] = _DDP_DEFAULT_MB
            bound.arguments.update(self._ddp)
            if "bucket_cap_mb" in self._ddp and "bucket_cap_mb_list" in bound.arguments:
                bound.arguments["bucket_cap_mb_list"] = None
            original(*bound.args, **bound.kwargs)
            with _nothing_raised():
                for name, asked in self._ddp.items():
                    took = _taken(model, name)
                    took = asked if math.isclose(took, asked, rel_tol=1e-3, abs_tol=1e-6) else took  # whole bytes
                    self._note(model, setting=f"ddp.{name}", asked=asked, had=had[name], took=took, why=None)

        return __init__

    def _note(self, thing: Any, *, setting: str, asked: Value, had: Any, took: Any, why: str | None) -> None:
        if took == asked:
            self.facts["unmet"].pop(setting, None)
        elif setting in self.facts["unmet"]:
            self.facts["unmet"][setting] = why or f"{type(thing).__name__} has {took}"
        if len(self.facts["met"]) < _MOST_NOTED:
            row = {"setting": setting, "target": type(thing).__name__, "place": _place(thing), "why": why}
            self.facts["met"].append({**row, "had": _plain(had), "took": _plain(took)})
        process.tell(Agent.settings_changed)


def _of(asked: Mapping[str, Value], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in asked.items() if key.startswith(prefix)}


def _wrap(owner: Any, make: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    original = owner.__init__
    owner.__init__ = functools.wraps(original)(make(original))


def _bound(
    signature: inspect.Signature, thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    """The arguments by name, defaults among them; None where they do not fit, as the constructor itself will say."""
    try:
        bound = signature.bind(thing, *args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound


def _what_to_know(name: str, asked: Value, took: Any, loader: Any) -> str | None:
    """Why a loader's setting has no effect, or another one than it seems."""
    if took != asked:
        return _NEEDS_WORKERS if name in _WITHOUT_WORKERS else "the loader's class sets it itself"
    if name == "pin_memory" and asked and not torch.accelerator.is_available():
        return "there is no accelerator, so that torch pins nothing"
    if name == "num_workers" and took > 1 and isinstance(loader.dataset, IterableDataset):
        return "each worker reads all of an IterableDataset, unless it shards itself: data may come several times"
    return None


def _taken(model: Any, name: str) -> float | bool:
    return model.bucket_bytes_cap / (1024 * 1024) if name == "bucket_cap_mb" else bool(getattr(model, name))


@contextmanager
def _nothing_raised() -> Iterator[None]:
    """What the script constructs is constructed: that we cannot note it must not undo it."""
    try:
        yield
    except Exception as error:
        if is_the_scripts(error):
            raise
        process.tell(Agent.problem, "noting a setting", error)


def _trains() -> bool:
    """Whether this process may be the one that trains: data workers and other children keep what the script gave."""
    mine = str(os.getpid())
    return torch.utils.data.get_worker_info() is None and os.environ.get(OWNER_VARIABLE, mine) == mine


def _place(thing: Any) -> str:
    """Where the script makes an object that is being constructed: FILE:LINE outside of its constructors."""
    frame: FrameType | None = sys._getframe(1)
    # `DataLoader[int](...)` is called by typing.
    while frame is not None and (frame.f_globals.get("__name__") in (__name__, "typing") or _constructs(frame, thing)):
        frame = frame.f_back
    return "?:0" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _constructs(frame: FrameType, thing: Any) -> bool:
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    return frame.f_locals.get(code.co_varnames[0]) is thing


def _plain(value: Any) -> Value | None:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)[:100]
