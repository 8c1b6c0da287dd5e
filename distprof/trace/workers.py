"""Reading several files at once, and telling how far it is.

Decoding holds the interpreter's lock, so that threads would take turns. A fresh process would take longer to import
what reads than most traces take to be read; therefore workers are forks. A process that runs threads is not forked, and
none in which polars has computed: its pool of threads would be missing in the fork. There one file is read at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from distprof.run.manifest import RunDirectoryError
from distprof.run.processes import end_with_parent

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

# Called with the number of a file's bytes that were read since the last call.
Advance = Callable[[int], None]

_POLL_S = 0.1
_POLARS_COMPUTED = ("polars-0", "tokio-rt")  # threads that it starts with its first query
_counter: Any = None  # in a worker: bytes that all of them have read


class Progress(Protocol):
    """Is told how many bytes of how many have been read."""

    def __call__(self, done: int, total: int) -> None: ...


def no_advance(read: int) -> None:
    """Nobody wants to know."""


def read_each(
    read: Callable[[Item, Advance], Result],
    items: Sequence[Item],
    sizes: Sequence[int],
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> Iterator[Callable[[], Result]]:
    """Read items; yields for each of them, in their order, what returns its result or raises what reading it raised.

    Args:
        read: of a module, or a partial of one: workers are told it by its name.
        sizes: bytes of each item.
        workers: forks that read, if there are several items and the process can be forked.

    Raises:
        RunDirectoryError: (the callables) a worker was killed.
    """
    done, total = 0, sum(sizes)

    def advance(read: int) -> None:
        nonlocal done
        done += read
        if progress is not None and read:
            progress(min(done, total), total)

    workers = min(workers, len(items))
    if workers < 2 or not _can_fork():
        for item in items:
            yield partial(read, item, advance)
        return
    import multiprocessing  # which a single file does not need
    from concurrent.futures import ProcessPoolExecutor, wait

    context = multiprocessing.get_context("fork")
    counter = context.Value("q", 0)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(counter, os.getpid())) as pool:
        try:
            futures = [pool.submit(_in_worker, read, item) for item in items]
        except OSError:  # no descriptor or no process is left, and the forks that there are would wait for ever
            for fork in set(multiprocessing.active_children()) - others:
                fork.terminate()
            raise
        for future in futures:
            running = True
            while running:
                running = not wait([future], _POLL_S).done
                advance(counter.value - done)
            yield partial(_result, future)


def _can_fork() -> bool:
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    computed = any(name.startswith(_POLARS_COMPUTED) for name in names)
    return threading.active_count() == 1 and not computed


def _begin(counter: Any, parent: int) -> None:
    global _counter  # noqa: PLW0603 (what an initializer is for)
    _counter = counter
    end_with_parent(parent)  # else a worker would wait for its next item for ever


def _in_worker(read: Callable[[Item, Advance], Result], item: Item) -> Result:
    return read(item, _count)


def _count(read: int) -> None:
    with _counter.get_lock():
        _counter.value += read


def _result(future: Future[Result]) -> Result:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool as error:
        text = "reading was killed, as when memory is exhausted: give fewer ranks, or shorter windows"
        raise RunDirectoryError(text) from error
