"""Bandwidth of collectives, as nccl-tests define it."""

from __future__ import annotations

from collections.abc import Callable

# Bus bandwidth is what each link carries: algorithm bandwidth times this factor of n ranks.
_BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: float(n - 1),
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def bandwidths(
    kind: str, members: int, size: int | None, transfer_ms: float | None
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth in 10^9 bytes per second; None where size or transfer is not known or nothing.

    Args:
        kind: of the collective; of one that has no definition there is no bus bandwidth.
        members: ranks of its group.
        size: bytes that each rank hands in.
        transfer_ms: time from the last participant's arrival to the end.
    """
    if not transfer_ms or not size:
        return None, None
    algorithm = size / (transfer_ms * 1e6)
    factor = _BUS_FACTOR.get(kind)
    return algorithm, algorithm * factor(members) if factor is not None else None
