"""The steady step of each rank, cut into parts that add up to it."""

from __future__ import annotations

from distprof.analyze.inputs import Inputs
from distprof.analyze.parts import ENDLESS
from distprof.analyze.steady import MS, NO_STEP, on_device, prefer, steady_steps, times_of_steps
from distprof.analyze.waits import UNBOUND
from distprof.result import BreakdownRow, NotObserved
from distprof.trace import intervals

_DEVICE_PARTS = ("h2d", "sync_wait", "idle")
_PARTS = (
    *("step", "data_wait", "compute", "comm_wait", "comm_transfer", "comm_exposed", "comm_overlapped", "other"),
    *_DEVICE_PARTS,
)


def breakdown(inputs: Inputs) -> tuple[list[BreakdownRow], list[NotObserved]]:
    """One row per rank: from its window where it has one, else what its zones tell."""
    rows = [_row(inputs, rank) for rank in inputs.tables.ranks]
    device = on_device(inputs.tables)
    missing: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for part in _PARTS:
            if getattr(row, part) is None:
                reason = _why_not(part, row, inputs.parts[row.rank].recorded, device)
                missing.setdefault((part, reason), []).append(row.rank)
    return rows, [
        NotObserved(f"breakdown.{part}", None if len(ranks) == len(rows) else ranks, reason)
        for (part, reason), ranks in missing.items()
    ]


def _why_not(part: str, row: BreakdownRow, recorded: bool, device: bool) -> str:
    if device:
        return "the breakdown of ranks that train on a device is not computed by this version"
    if part in _DEVICE_PARTS:
        return "no device trace: the ranks trained on the CPU"
    if not row.steps_used:
        return NO_STEP
    if row.basis == "zones" and part != "comm_wait":
        return "no steady step lies inside a Kineto window of this rank"
    if not recorded:
        return "the flight recorder holds no collective of this rank"
    return ENDLESS if part == "comm_overlapped" else UNBOUND


def _row(inputs: Inputs, rank: int) -> BreakdownRow:
    """Means over steps in which waits are known, if there are any; what a rank's recordings don't tell is None."""
    tables, parts = inputs.tables, inputs.parts[rank]
    in_window = bool(parts.steps) and not on_device(tables)
    numbers, bound = prefer(parts.steps if in_window else steady_steps(tables), inputs.bound)
    steps = times_of_steps(tables, rank, numbers)
    in_flight, exposed = parts.in_flight(steps), intervals.covered(parts.exposed, steps[:, 0], steps[:, 1])

    def mean(ns: float, *, known: bool) -> float | None:
        return float(ns) / len(steps) / MS if known and len(steps) else None

    data, compute, wait, transfer, other = parts.cut(steps).sum(axis=0)
    return BreakdownRow(
        rank=rank,
        basis="window" if in_window else "zones",
        steps_used=len(steps),
        step=mean((steps[:, 1] - steps[:, 0]).sum(), known=True),
        data_wait=mean(data, known=not on_device(tables)),
        h2d=None,
        compute=mean(compute, known=in_window),
        comm_wait=mean(wait, known=bound),
        comm_transfer=mean(transfer, known=in_window and bound),
        comm_exposed=mean(wait + transfer, known=in_window and parts.recorded),
        comm_overlapped=None if in_flight is None else mean((in_flight - exposed).sum(), known=in_window),
        sync_wait=None,
        idle=None,
        other=mean(other, known=in_window and parts.recorded),
    )
