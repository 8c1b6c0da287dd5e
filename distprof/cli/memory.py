"""Too little memory, said in one line.

Where the address space is limited (`ulimit -v`, many batch systems), not only Python runs out of it: libraries cannot
be loaded, and code that is not Python's ends the process. There a command runs in a fork, and who forked it tells what
came of it. Elsewhere Linux hands out memory that it does not have, and kills: no process can tell that of itself.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from distprof.run.processes import end_with_parent

_FAILED = 1
_ENDED = b"."
_MOST_TOLD = 200
_KILLED = 128  # and the signal's number, as shells tell it
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NOT_FOR_WANT_OF_MEMORY = (*_HANDED_ON, signal.SIGPIPE)


def address_space() -> int | None:
    """Bytes that this process may map; None: there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def with_memory_told(prog: str, run: Callable[[], int]) -> int:
    """Run a command; its exit status is returned, and 1 with one line if it ran out of memory."""
    limit = address_space()
    forked = None if limit is None else _in_fork(run)
    if limit is None or forked is None:
        try:
            return run()
        except (MemoryError, OSError) as error:
            if not _lacks_memory(error):
                raise
            return _tell(prog, "memory is exhausted", "run it where more is free")
    status, why = forked
    if why is None:
        return status
    what = f"it failed{why} in an address space that is limited to {limit / 1e6:.0f} MB, most likely for want of memory"
    return _tell(prog, what, "raise the limit (`ulimit -v unlimited`, or more memory for the job)")


def _tell(prog: str, what: str, remedy: str) -> int:
    less = "or give less to read: fewer ranks, or shorter windows"
    print(f"{prog}: error: {what}: {remedy}, {less}. The recordings are as they were.", file=sys.stderr)
    return _FAILED


def _in_fork(run: Callable[[], int]) -> tuple[int, str | None] | None:
    """The exit status of `run` in a fork, and None; where it came to no end, why, as far as that is known.

    None in all: nothing can be forked.
    """
    heard, tells = os.pipe()
    told = b""
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)  # one that comes before it can be handed on
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(heard)
        os.close(tells)
        return None
    if child == 0:
        end_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(heard)
        os._exit(_end_of(run, tells))
    os.close(tells)

    def hand_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, hand_on) for number in _HANDED_ON}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.set_blocking(heard, False)
        with suppress(BlockingIOError):  # nothing was told, and something that it forked is still there
            told = os.read(heard, _MOST_TOLD)
    finally:
        os.close(heard)
        for number, handler in before.items():
            signal.signal(number, handler)
    if told == _ENDED:
        return status, None
    if -status in _NOT_FOR_WANT_OF_MEMORY:
        return _KILLED - status, None
    return status, f" ({told.decode(errors='replace')})" if told else ""


def _end_of(run: Callable[[], int], tells: int) -> int:
    """The exit status of `run`; whether it came to its end is told, or what it raised for want of memory."""
    try:
        try:
            status = run()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        except Exception as error:
            if _lacks_memory(error):
                raise
            traceback.print_exc()
            status = _FAILED
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # nobody reads it any more
                stream.flush()
        os.write(tells, _ENDED)
    except KeyboardInterrupt:  # the terminal's, or the one that is handed on, after `run` had ended by the other
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        os.write(tells, _ENDED)
        return _KILLED + signal.SIGINT
    except BaseException as error:  # what lacks memory raises many things, some of which are no Exception
        text = ": ".join(filter(None, (type(error).__name__, *str(error).strip().splitlines()[:1])))
        os.write(tells, text.encode(errors="replace")[:_MOST_TOLD])
        return _FAILED
    return status


def _lacks_memory(error: Exception) -> bool:
    """Whether this is what Python and its libraries raise when they get no memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, ModuleNotFoundError):
        return False
    # Libraries that cannot be loaded; threads that have no room for their stack.
    return isinstance(error, (MemoryError, ImportError, SystemError)) or "can't start new thread" in str(error)
