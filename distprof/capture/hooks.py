"""Where distprof listens: wrappers around a few of torch's own functions, in place before the script uses them.

A wrapper does its bookkeeping around the original call and nothing else: what the original returns or raises is
what the script gets. All wrappers ask `process.recorder()` first; where this process is not the one that
trains, they are the original call and one comparison.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as dataloader_module

from distprof.capture.agent import Agent
from distprof.capture.process import process
from distprof.capture.zones import ZoneRecorder, now

Function = Callable[..., Any]
_is_compiling = torch.compiler.is_compiling


def install(*, only_steps: bool = False) -> None:
    """Put all wrappers in place, or only those of what may end a step. To be called once, right after torch was
    imported."""
    _wrap(torch.autograd, "backward", _backward_call)
    Optimizer.profile_hook_step = staticmethod(_wrapped_profile_hook_step(Optimizer.profile_hook_step))  # type: ignore[method-assign]
    _wrap(torch.amp.grad_scaler.GradScaler, "step", _scaler_step)
    if torch.distributed.is_available():
        from torch.distributed import distributed_c10d as c10d

        for name, make in (
            ("init_process_group", _init_process_group),
            ("destroy_process_group", _destroy_process_group),
        ):
            _wrap(c10d, name, make)
            setattr(torch.distributed, name, getattr(c10d, name))
    if not only_steps:
        _watch_what_steps_do()


def _watch_what_steps_do() -> None:
    _wrap(DataLoader, "__iter__", _loader_start)
    _wrap(dataloader_module._BaseDataLoaderIter, "__next__", _data_loading)
    gc.callbacks.append(_Collections())
    _wrap(torch.serialization, "save", _timed("checkpoint", "torch.save"))
    torch.save = torch.serialization.save  # the same object in both places, or it could not be pickled
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        _wrap(DistributedDataParallel, "__init__", _ddp_init)
        _wrap(DistributedDataParallel, "__call__", _model_call)
        _wrap(torch._C._distributed_c10d.Work, "wait", _timed("wait", "Work.wait"))
        _wrap(torch.distributed, "_broadcast_coalesced", _timed("wait", "broadcast of buffers"))  # DDP's, in forward


def _wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    original = getattr(owner, name)
    wrapper = functools.wraps(original)(make(original))
    _hide_from_dynamo(wrapper)
    setattr(owner, name, wrapper)


def _hide_from_dynamo(function: Function) -> None:
    """Let torch.compile run the wrapper as it is: traced, it would break the script's graphs."""
    eval_frame = torch._C._dynamo.eval_frame
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    eval_frame.set_code_exec_strategy(function.__code__, skip)


class _Outermost:
    """A zone that is recorded for the outermost call on the training thread only."""

    def __init__(self) -> None:
        self.inside = False

    def call(self, recorder: ZoneRecorder, zone: int, function: Function, args: Any, kwargs: Any) -> Any:
        """Call `function` inside the zone. To be called on the training thread, and not while inside."""
        self.inside = True
        device = recorder.device
        start = now()
        mark = device.mark() if device is not None else None
        try:
            return function(*args, **kwargs)
        finally:
            self.inside = False
            recorder.add(zone, start, now())
            if device is not None:
                device.zone(zone, start, mark)

    def skips(self, recorder: ZoneRecorder | None) -> bool:
        """Whether a call is not the outermost one, or not to be recorded at all."""
        return recorder is None or self.inside or not recorder.trains_here()


Value = TypeVar("Value")


class _Known(Generic[Value]):
    """What is known of objects of the script's, without keeping them alive. Of one that cannot be remembered, since it
    is unhashable, has slots, or its own methods raise, nothing is."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[Any, Value] = WeakKeyDictionary()

    def get(self, thing: Any) -> Value | None:
        """What is known of the object."""
        try:
            return self._values.get(thing)
        except Exception:
            return None

    def set(self, thing: Any, value: Value) -> bool:
        """Remember it; whether that could be."""
        try:
            self._values[thing] = value
        except Exception:
            return False
        return True


class _Names:
    """Numbers objects of a class in order of appearance: `SGD#0`, `SGD#1`; those it cannot remember share a name."""

    def __init__(self) -> None:
        self._names: _Known[str] = _Known()
        self._counts: dict[str, int] = {}

    def of(self, thing: Any) -> str:
        """The object's name."""
        name = self._names.get(thing)
        if name is None:
            kind = type(thing).__name__
            number = self._counts.get(kind, 0)
            name = f"{kind}#{number}"
            if not self._names.set(thing, name):
                return kind
            self._counts[kind] = number + 1
        return name


_forward = _Outermost()
_backward = _Outermost()
_optimizer = _Outermost()
_models = _Names()
_optimizers = _Names()
_loaders = _Names()


class _Iterator:
    """What is known of a loader's iterator: its loader's name, and whether its workers are still starting."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.starting = workers > 0


_iterators: _Known[_Iterator] = _Known()
_unknown_loader = _Iterator("DataLoader", 0)


def _loader_start(original: Function) -> Function:
    def __iter__(self: Any) -> Any:
        recorder = process.recorder(training=False)
        if recorder is None:
            return original(self)
        start = now()
        iterator = original(self)
        end = now()
        name = _loaders.of(self)
        _iterators.set(iterator, _Iterator(name, self.num_workers))
        process.tell(Agent.saw_loader, name, self)
        recorder.add(recorder.zone("loader_start", name), start, end)
        return iterator

    return __iter__


def _data_loading(original: Function) -> Function:
    def __next__(self: Any) -> Any:
        recorder = process.recorder(training=False)
        if recorder is None:
            return original(self)
        iterator = _iterators.get(self) or _unknown_loader
        kind = "loader_end"
        start = now()
        try:
            batch = original(self)
            kind = "loader_first" if iterator.starting else "data_loading"
        finally:
            end = now()
            iterator.starting = False
            recorder.add(recorder.zone(kind, iterator.name), start, end)
        if threading.get_ident() == recorder.training_thread:
            process.tell(Agent.saw_batch, batch, end)
        return batch

    return __next__


def _ddp_init(original: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder = process.recorder()
        if recorder is not None:
            process.tell(Agent.makes_ddp, True)
        try:
            original(self, *args, **kwargs)
        except BaseException:
            if recorder is not None:
                process.tell(Agent.makes_ddp, False)
            raise
        if recorder is not None:
            process.tell(Agent.saw_ddp, _models.of(self), self)

    return __init__


def _model_call(original: Function) -> Function:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _forward.inside or _is_compiling():
            return original(self, *args, **kwargs)
        recorder = process.recorder()
        if recorder is None or _forward.skips(recorder):
            return original(self, *args, **kwargs)
        name = _models.of(self)
        evaluates = not self.training and not torch.is_grad_enabled()
        zone = recorder.zone("evaluation" if evaluates else "forward", name)
        process.tell(Agent.saw_model, name, self)
        return _forward.call(recorder, zone, original, (self, *args), kwargs)

    return __call__


def watch_plain_modules() -> None:
    """Time the outermost call of any module; off under DDP, since it costs every inner module's call a little."""
    _wrap(torch.nn.Module, "__call__", _model_call)


def _backward_call(original: Function) -> Function:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(*args, **kwargs)
        recorder = process.recorder()
        if recorder is None or _backward.skips(recorder):
            return original(*args, **kwargs)
        result = _backward.call(recorder, recorder.zone("backward", "backward"), original, args, kwargs)
        process.boundary("backward")
        return result

    return backward


def _wrapped_profile_hook_step(original: Function) -> Function:
    """Wrap what torch wraps every optimizer class's `step` with, so that ours is outside of torch's annotation."""

    def profile_hook_step(function: Function) -> Function:
        process.optimizer_exists = True
        return functools.wraps(function)(_optimizer_step(original(function)))

    return profile_hook_step


def _optimizer_step(original: Function) -> Function:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _step_zone(self, original, (self, *args), kwargs)

    _hide_from_dynamo(step)
    return step


def _scaler_step(original: Function) -> Function:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return _step_zone(optimizer, original, (self, optimizer, *args), kwargs)

    return step


def _step_zone(optimizer: Any, function: Function, args: Any, kwargs: Any) -> Any:
    recorder = process.recorder()
    if recorder is None or _optimizer.skips(recorder):
        return function(*args, **kwargs)
    name = _optimizers.of(optimizer)
    result = _optimizer.call(recorder, recorder.zone("optimizer", name), function, args, kwargs)
    process.tell(Agent.saw_optimizer, name, optimizer)
    process.boundary("optimizer", name)
    return result


def _timed(kind: str, name: str) -> Callable[[Function], Function]:
    """A zone around each call of a function, on whatever thread."""

    def make(original: Function) -> Function:
        def timed(*args: Any, **kwargs: Any) -> Any:
            recorder = process.recorder(training=False)
            if recorder is None:
                return original(*args, **kwargs)
            start = now()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.add(recorder.zone(kind, name), start, now())

        return timed

    return make


def _init_process_group(original: Function) -> Function:
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        process.recorder()
        process.tell(Agent.group_is_there)
        return result

    return init_process_group


def _destroy_process_group(original: Function) -> Function:
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        process.tell(Agent.before_groups_vanish)
        return original(*args, **kwargs)

    return destroy_process_group


class _Collections:
    """Records garbage collections, but for the many short ones, which would fill the timeline and explain nothing."""

    shortest_ns = 50_000

    def __init__(self) -> None:
        self._start = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start = now()
            return
        end = now()
        recorder = process.recorder_if_claimed()
        if recorder is not None and end - self._start >= self.shortest_ns:
            recorder.add(recorder.zone("gc", f"generation {info['generation']}"), self._start, end, pulse=False)
