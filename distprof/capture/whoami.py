"""Which rank this process is, where the process group may know it already."""

from __future__ import annotations

import os
from dataclasses import replace

import torch.distributed as dist

from distprof.run.identity import Identity, IdentityError, read_identity


def identify() -> Identity:
    """Who this is: the process group knows best, where there is one already.

    Raises:
        IdentityError: there is none, and the environment names no valid rank.
    """
    if not dist.is_available() or not dist.is_initialized():
        return read_identity(os.environ)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        identity = read_identity(os.environ)
    except IdentityError as error:
        told = f"{error} The process group says rank {rank} of {world_size}, and was believed."
        return Identity(rank, None, world_size, attempt=0, launcher="process group", warnings=(told,))
    if (rank, world_size) == (identity.rank, identity.world_size):
        return identity
    warnings = identity.warnings
    if identity.launcher != "none":
        warnings += (
            f"the environment says rank {identity.rank} of {identity.world_size}, the process group rank {rank} of "
            f"{world_size}; the process group was believed",
        )
    return replace(identity, rank=rank, world_size=world_size, warnings=warnings)
