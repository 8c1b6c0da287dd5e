"""The steady step of each rank, cut into parts that add up to it."""

from __future__ import annotations

from collections.abc import Set

from distprof.analyze.device_parts import UNBOUND_DEVICE, steps_known
from distprof.analyze.inputs import HOST_UNSEEN, NO_DEVICE, NO_LOADER, NO_WINDOW, NO_WORK, Inputs
from distprof.analyze.parts import ENDLESS
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import (
    MS,
    NO_STEP,
    on_device,
    pairs,
    prefer,
    steady_steps,
    steps_or_windows,
    times_of_steps,
)
from distprof.analyze.waits import UNBOUND
from distprof.result import BreakdownRow, NotObserved
from distprof.trace import intervals
from distprof.trace.intervals import Intervals

_DEVICE_PARTS = ("h2d", "sync_wait", "idle")
_PARTS = (
    *("step", "data_wait", "compute", "comm_wait", "comm_transfer", "comm_exposed", "comm_overlapped", "other"),
    *_DEVICE_PARTS,
)
Cut = tuple[list[int], Intervals]  # steps by number, and when they were; or windows, and no numbers
_POINT_TO_POINT = (
    "ranks wait for what is no recorded collective, as sending and receiving is, and who waits for whom in it is not "
    "known"
)


def breakdown(inputs: Inputs) -> tuple[list[BreakdownRow], list[NotObserved]]:
    """One row per rank: from its window where it has one, else what its zones tell."""
    cuts = {rank: steps_or_windows(inputs.tables, rank) for rank in inputs.tables.ranks}
    on_devices = steps_known(inputs.tables, inputs.devices)
    on_cpu = inputs.bound - _waited_for_unknown(inputs)
    rows = [
        _of_device(inputs, rank, cut, on_devices) if rank in inputs.devices else _of_cpu(inputs, rank, cut, on_cpu)
        for rank, cut in cuts.items()
    ]
    missing: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for part in _PARTS:
            if getattr(row, part) is None:
                missing.setdefault((part, _why_not(part, row, inputs)), []).append(row.rank)
    return rows, [
        NotObserved(f"breakdown.{part}", None if len(ranks) == len(rows) else ranks, reason)
        for (part, reason), ranks in missing.items()
    ]


def _why_not(part: str, row: BreakdownRow, inputs: Inputs) -> str:
    device, parts = inputs.devices.get(row.rank), inputs.parts[row.rank]
    if device is None and on_device(inputs.tables):
        return NO_WORK
    if device is None and part in _DEVICE_PARTS:
        return NO_DEVICE
    if row.step is None:
        return NO_STEP if device is None else NO_WINDOW
    if part == "data_wait" and not inputs.loading_seen(row.rank):
        return NO_LOADER
    if device is not None:
        return UNBOUND_DEVICE if part in ("comm_wait", "comm_transfer") else HOST_UNSEEN
    if row.basis == "zones" and part != "comm_wait":
        return NO_WINDOW
    if not parts.recorded:
        return parts.why_not
    if part == "comm_overlapped":
        return ENDLESS
    return _POINT_TO_POINT if any(len(each.unknown) for each in inputs.parts.values()) else UNBOUND


def _of_cpu(inputs: Inputs, rank: int, cut: Cut, known_steps: Set[int]) -> BreakdownRow:
    """Means over steps in which waits are known, if there are any; what a rank's recordings don't tell is None."""
    tables, parts = inputs.tables, inputs.parts[rank]
    numbers, steps = cut
    in_window = len(steps) > 0 and not on_device(tables)
    if not in_window or numbers:
        numbers, bound = prefer(numbers if in_window else steady_steps(tables), known_steps)
        steps = times_of_steps(tables, rank, numbers)
    else:
        bound = tables.world_size == 1
    in_flight, exposed = parts.in_flight(steps), intervals.covered(parts.exposed, steps[:, 0], steps[:, 1])

    def mean(ns: float, *, known: bool) -> float | None:
        return float(ns) / len(steps) / MS if known and len(steps) else None

    data, compute, wait, transfer, other = parts.cut(steps).sum(axis=0)
    return BreakdownRow(
        rank=rank,
        basis="window" if in_window else "zones",
        steps_used=len(numbers),
        step=mean((steps[:, 1] - steps[:, 0]).sum(), known=True),
        data_wait=mean(data, known=not on_device(tables) and inputs.loading_seen(rank)),
        h2d=None,
        compute=mean(compute, known=in_window),
        comm_wait=mean(wait, known=bound and not on_device(tables)),
        comm_transfer=mean(transfer, known=in_window and bound),
        comm_exposed=mean(wait + transfer, known=in_window and parts.recorded),
        comm_overlapped=None if in_flight is None else mean((in_flight - exposed).sum(), known=in_window),
        sync_wait=None,
        idle=None,
        other=mean(other, known=in_window and parts.recorded),
    )


def _of_device(inputs: Inputs, rank: int, cut: Cut, known: Set[int]) -> BreakdownRow:
    """Means over steps in which waits are `known`, if there are any."""
    parts = inputs.devices[rank]
    numbers, steps = cut
    bound = bool(parts.known(steps).all())
    if numbers:
        numbers, bound = prefer(numbers, known)
        steps = times_of_steps(inputs.tables, rank, numbers)
    host = parts.host
    held = intervals.union(host.collective, host.sync)
    sets = [parts.compute, parts.wait, parts.comm, parts.h2d, parts.busy, host.data, held]
    compute, wait, moved, h2d, copies, data, sync, rest = intervals.assign(steps[:, 0], steps[:, 1], sets).sum(axis=0)
    communicated = intervals.covered(parts.comm, steps[:, 0], steps[:, 1]).sum()

    def mean(ns: float, *, known: bool = True) -> float | None:
        return float(ns) / len(steps) / MS if known and len(steps) else None

    return BreakdownRow(
        rank=rank,
        basis="window",
        steps_used=len(numbers),
        step=mean((steps[:, 1] - steps[:, 0]).sum()),
        data_wait=mean(data, known=host.recorded and inputs.loading_seen(rank)),
        h2d=mean(h2d),
        compute=mean(compute),
        comm_wait=mean(wait, known=bound),
        comm_transfer=mean(moved, known=bound),
        comm_exposed=mean(wait + moved),
        comm_overlapped=mean(communicated - wait - moved),
        sync_wait=mean(sync, known=host.recorded),
        # Where nothing is known of the host there is no reason for a device to stand idle.
        idle=mean(0 if host.recorded else data + sync + rest),
        other=mean(copies + rest if host.recorded else copies),
    )


def _waited_for_unknown(inputs: Inputs) -> set[int]:
    """Steps in which some rank's thread waits for long for what is no recorded collective."""
    touched: set[int] = set()
    for rank, parts in inputs.parts.items():
        if len(parts.unknown):
            of_steps = of_rank(inputs.tables.steps, rank).drop_nulls(["start", "end"])
            known = parts.known(pairs(of_steps, "start", "end"))
            touched.update(of_steps["step"].to_numpy()[~known].tolist())
    return touched
