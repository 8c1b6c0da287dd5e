"""Who am I: rank, world size and attempt of this process, read from the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path


class IdentityError(ValueError):
    """The environment does not say which rank this is; the message names the variables and the remedy."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in its job.

    Attributes:
        rank: global rank, from 0.
        local_rank: rank on its host; None where nobody says.
        world_size: ranks of the job.
        attempt: how often torchrun or the scheduler had started the job before.
        launcher: who said so: torchrun, environment (RANK set by anybody else), openmpi, pmi, slurm or none.
        warnings: contradictions, each with both sources and which of them was taken.
    """

    rank: int
    local_rank: int | None
    world_size: int
    attempt: int
    launcher: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a launcher says who a process is: the environment variable of each property."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str

    def set_in(self, environment: Mapping[str, str]) -> list[str]:
        """`NAME=value` for each of its variables that is set."""
        names = (self.rank, self.world_size, self.local_rank)
        return [f"{name}={environment[name]}" for name in names if environment.get(name)]


_TORCH = _Place("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_MPI = (
    _Place("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Place("pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
# The task count is the step's: SLURM_NTASKS is the job's, and a plain process in an allocation has it, too.
_SLURM = _Place("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_STEPS = (*_MPI, _SLURM)  # inner ones first: mpirun starts its helpers as a SLURM step
_TORCHRUN_SAYS = "TORCHELASTIC_RUN_ID"
_ATTEMPTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def read_identity(environment: Mapping[str, str]) -> Identity:
    """Read the identity from `environment`; a process that no launcher started is a world of one.

    torch's own variables come first. Inside an MPI or SLURM step, torchrun is one agent for several ranks and owes
    the step nothing; variables that anybody else set are held against the step's.

    Raises:
        IdentityError: a rank is said by halves, is not a number, or does not fit its world size.
    """
    attempt = next((count for name in _ATTEMPTS if (count := _number(environment, name)) is not None), 0)
    torch = _read(_TORCH, environment, attempt)
    if torch is not None and environment.get(_TORCHRUN_SAYS):
        return replace(torch, launcher="torchrun")
    steps = {place: step for place in _STEPS if (step := _read(place, environment, attempt)) is not None}
    if steps:
        return _settle(torch, steps, environment)
    if torch is not None:
        return torch
    for place in (_TORCH, *_MPI):
        if said := place.set_in(environment):
            remedy = f"set {place.rank} and {place.world_size}, or neither."
            raise IdentityError(f"{', '.join(said)} does not say which rank this is: {remedy}")
    return Identity(rank=0, local_rank=0, world_size=1, attempt=attempt, launcher="none")


def _read(place: _Place, environment: Mapping[str, str], attempt: int) -> Identity | None:
    """What a place says; None where rank or world size is not set."""
    rank, world_size = _number(environment, place.rank), _number(environment, place.world_size)
    if rank is None or world_size is None:
        return None
    if rank >= world_size:
        raise IdentityError(
            f"{place.rank}={rank} does not fit {place.world_size}={world_size}: ranks go from 0 to world size - 1."
        )
    return Identity(rank, _number(environment, place.local_rank), world_size, attempt, place.launcher)


def _settle(torch: Identity | None, steps: Mapping[_Place, Identity], environment: Mapping[str, str]) -> Identity:
    """Whom to believe: the innermost step, or torch's variables, which somebody set by hand in whole or in part."""
    place, step = next(iter(steps.items()))
    rank, world_size = _number(environment, _TORCH.rank), _number(environment, _TORCH.world_size)
    same_rank, same_size = rank in (None, step.rank), world_size in (None, step.world_size)
    if torch is None:
        taken, agree = step, same_rank and same_size
    elif torch.world_size < step.world_size:  # the same rank may have been set for every task of the step
        taken, agree = step, False
    else:  # a world that is larger than the step has a launcher in each task
        taken, agree = torch, same_rank or not same_size
    if taken.local_rank is None:
        same = [other for other in steps.values() if (other.rank, other.world_size) == (taken.rank, taken.world_size)]
        taken = replace(taken, local_rank=next((o.local_rank for o in same if o.local_rank is not None), None))
    if agree:
        return taken
    by_hand, by_step = ", ".join(_TORCH.set_in(environment)), ", ".join(place.set_in(environment))
    source = _TORCH.rank if taken.launcher == _TORCH.launcher else place.rank
    warning = f"{by_hand} contradicts {by_step}: taken was rank {taken.rank} of {taken.world_size}, by {source}"
    return replace(taken, warnings=(warning,))


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """The number that a variable holds; None where it is not set, or empty."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise IdentityError(f"{name}={text!r} is not a number from 0 on: set it to one, or unset it.")
    return int(text)


def host_name() -> str:
    """This host's name."""
    return socket.gethostname()


def boot_id() -> str | None:
    """An id of this host's boot: processes with the same one read the same clocks. None where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
