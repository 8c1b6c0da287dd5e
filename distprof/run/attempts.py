"""Attempts: one rendezvous each, told apart by a key that all its ranks know, and numbered in the order they come.

Where `distprof launch` starts the ranks, its agents agree on key and number at the rendezvous, and hand the number on
in the environment. Where another launcher does, the key is what that launcher and the scheduler count.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from distprof.run.directory import RunDirectory
from distprof.run.files import check_inside, read_json, write_json
from distprof.run.identity import IdentityError

ATTEMPT_VARIABLE = "DISTPROF_ATTEMPT"
SCHEMA = "distprof.rendezvous.v1"
_COUNTS = {"slurm": "SLURM_RESTART_COUNT", "torchrun": "TORCHELASTIC_RESTART_COUNT"}
_TRIES = 100
_PAUSE_S = 0.05
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def attempt_of(directory: RunDirectory, environment: Mapping[str, str]) -> int:
    """The number of the attempt that a rank with this environment is in; the attempt's folder is there afterwards.

    Raises:
        OSError: the run directory cannot be written.
        IdentityError: the launcher's count is no number.
    """
    told = environment.get(ATTEMPT_VARIABLE, "")
    if not told:
        return claim_attempt(directory, key_of(environment))
    if not told.isdecimal():
        raise IdentityError(f"{ATTEMPT_VARIABLE}={told!r} is not a number from 0 on: unset it.")
    directory.attempt(int(told)).mkdir(exist_ok=True)
    return int(told)


def key_of(environment: Mapping[str, str]) -> str:
    """What tells attempts apart where nobody agreed on a key: how often scheduler and launcher had started the job.

    Raises:
        IdentityError: a count is no number.
    """
    counts = {name: environment.get(variable, "").strip() or "0" for name, variable in _COUNTS.items()}
    for name, count in counts.items():
        if not count.isdecimal():
            raise IdentityError(f"{_COUNTS[name]}={count!r} is not a number from 0 on: set it to one, or unset it.")
    return " ".join(f"{name}:{count}" for name, count in counts.items())


def new_key() -> str:
    """The key of a rendezvous that took place just now."""
    return os.urandom(8).hex()


def claim_attempt(directory: RunDirectory, key: str, preferred: int | None = None) -> int:
    """The number of the attempt with this key. If nobody has made its folder yet, it is made with the next number.

    Any number of processes on any number of hosts may do so at once: a folder is renamed into its place with the key
    inside, which one of them can do.

    Args:
        preferred: the number that it has elsewhere, where that is known.

    Raises:
        OSError: the run directory cannot be written.
    """
    for _ in range(_TRIES):
        numbers = directory.attempts()
        for number in reversed(numbers):
            if read_key(directory, number) == key:
                return number
        number = numbers[-1] + 1 if numbers else 0
        if preferred is not None and preferred not in numbers:
            number = preferred
        if _make(directory.attempt(number), key):
            return number
        time.sleep(_PAUSE_S)  # another host made one; NFS may show it late
    raise OSError(errno.EBUSY, "no number for this attempt could be had", str(directory.path))


def read_key(directory: RunDirectory, number: int) -> str | None:
    """An attempt's key; None where it has none, or none that can be read."""
    path = directory.rendezvous(number)
    try:
        check_inside(path, directory.path)
        value = read_json(path)
    except (OSError, ValueError):
        return None
    key = value.get("key") if isinstance(value, dict) else None
    return key if isinstance(key, str) else None


def _make(folder: Path, key: str) -> bool:
    temporary = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.{os.urandom(3).hex()}")
    temporary.mkdir()
    try:
        write_json(temporary / "rendezvous.json", {"schema": SCHEMA, "key": key, "unix_ns": time.time_ns()})
        temporary.rename(folder)  # succeeds on no folder, and on an empty one
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True
