"""How far the times of different ranks can be compared: what is more than the clocks may be wrong by is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from distprof.result import Clock, ClockRow

Confidence = Literal["bound", "ends_agree", "same_clock"]


def confidence(clock: Clock, ns: float, ranks: Sequence[int], *, device: bool = False) -> Confidence | None:
    """What it stands on that something took `ns` by the times of all of `ranks`; None: it is undecided.

    Args:
        device: the times are those of the ranks' devices.
    """
    read = {row.same_as for row in clock.ranks if row.rank in ranks}
    if not device and (clock.verdict == "same_host" or (len(read) == 1 and None not in read)):
        return "same_clock"
    for figure, stands_on in (("bound_us", "bound"), ("error_us", "ends_agree")):
        off = _off(clock, figure, ranks, device=device)
        if off is not None and ns > off:
            return stands_on  # type: ignore[return-value]
    return None


def undecided_ns(clock: Clock, *, device: bool = False) -> dict[int, int]:
    """rank -> what its times may be wrong by, against the reference rank's: by the ends of collectives where they tell,
    else by causality. What two ranks differ by is undecided up to their sum. Ranks of which neither tells are absent.
    """
    found = {}
    for row in _rows(clock, device=device):
        off = row.error_us if row.error_us is not None else row.bound_us
        if clock.verdict == "same_host" and not device:
            off = 0.0
        if off is not None:
            found[row.rank] = round(off * 1e3)
    return found


def _off(clock: Clock, figure: str, ranks: Sequence[int], *, device: bool) -> float | None:
    """ns that two of the ranks may differ by, at most."""
    by_clock = {row.same_as: getattr(row, figure) for row in _rows(clock, device=device) if row.rank in ranks}
    values = sorted(by_clock.values(), key=lambda value: (value is None, value))
    if not values or values[-1] is None:
        return None
    return float(sum(values[-2:])) * 1e3


def _rows(clock: Clock, *, device: bool) -> Sequence[ClockRow]:
    return clock.devices if device else clock.ranks
