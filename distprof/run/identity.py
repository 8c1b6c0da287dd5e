"""Who am I: rank, world size and attempt of this process, read from the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class IdentityError(ValueError):
    """The environment names a rank that cannot be one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in its job."""

    rank: int
    local_rank: int
    world_size: int
    attempt: int
    launcher: str


# One mapping per launcher: property -> environment variable. The first whose `rank` is set applies.
_TORCHRUN = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "attempt": "TORCHELASTIC_RESTART_COUNT",
}
_LAUNCHERS = {"torchrun": _TORCHRUN}


def read_identity(environment: Mapping[str, str]) -> Identity:
    """Read the identity from `environment`; a process that no launcher started is a world of one.

    Raises:
        IdentityError: a variable is not a number, or the rank does not fit the world size.
    """
    for launcher, names in _LAUNCHERS.items():
        if names["rank"] in environment:
            values = {key: _number(environment, name) for key, name in names.items()}
            rank = values["rank"] or 0
            world_size = values["world_size"]
            if world_size is None:
                raise IdentityError(f"{names['rank']}={rank} is set but {names['world_size']} is not: set both.")
            if not 0 <= rank < world_size:
                raise IdentityError(f"{names['rank']}={rank} does not fit {names['world_size']}={world_size}.")
            local_rank = values["local_rank"]
            return Identity(
                rank=rank,
                local_rank=rank if local_rank is None else local_rank,
                world_size=world_size,
                attempt=values["attempt"] or 0,
                launcher=launcher,
            )
    return Identity(rank=0, local_rank=0, world_size=1, attempt=0, launcher="none")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise IdentityError(f"{name}={text!r} is not a number: the launcher must set it to one.") from None


def host_name() -> str:
    """This host's name."""
    return socket.gethostname()


def boot_id() -> str | None:
    """An id of this host's boot: processes with the same one read the same clocks. None where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
