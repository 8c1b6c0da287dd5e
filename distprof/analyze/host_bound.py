"""Devices that wait for their hosts to launch work, in most of their steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.analyze.device_habits import tiny_work
from distprof.analyze.device_use import idle_for, launch_queue, launches_of
from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import VIEW_RUN, Judged
from distprof.analyze.ranks import of_rank, training_zones
from distprof.analyze.steady import MS, pairs, steps_in_windows, times_of_steps
from distprof.result import Finding
from distprof.trace import intervals

# Of a step. In eager training the host often lags between steps, in the optimizer and where it reads a loss; devices
# whose hosts keep up with them otherwise idled for 0 to 15% of the step, those that it did not for 40% or more.
_HOST_BOUND = 0.35
_LISTED_STEPS = 5
# What the host may do instead of launching that has findings of its own.
_TOLD = ("gc", "checkpoint", "evaluation")


@dataclass(frozen=True, slots=True)
class _Idle:
    """Of one rank's steps in its windows.

    Attributes:
        idle: time in ms that the device idled since the host had launched nothing: the median.
        step: how long they took in ms: the median.
        launches: per step.
        queue: see `DeviceUse.queue_median`.
    """

    steps: list[int]
    idle: float
    step: float
    launches: float
    queue: float


def host_bound(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Devices idle for much of most steps since their hosts have launched nothing.

    Where that is one rank which the others wait for, or since kernels are tiny, the finding is that.
    """
    late = {row.rank for row in judged.stragglers.ranks}
    found = {rank: idle for rank in inputs.devices if rank not in late and (idle := _idle(inputs, rank)) is not None}
    saves = {rank: _outside(idle, judged) for rank, idle in found.items()}
    bound = [rank for rank, ms in saves.items() if judged.share(ms) >= _HOST_BOUND]
    if not bound or tiny_work(inputs, judged):
        return []
    rank = max(bound, key=lambda number: saves[number])
    worst = found[rank]
    return [
        Finding(
            id="habit.host_bound",
            severity=judged.severity(saves[rank]),
            ranks=sorted(bound),
            steps=worst.steps[:_LISTED_STEPS],
            observation=f"the device of rank {rank} stands idle for {worst.idle:.1f} ms of a step of {worst.step:.1f} "
            f"ms since the host has launched nothing; when a kernel begins, {worst.queue:.0f} others are waiting",
            hypothesis="Python and operators take the host longer than their kernels take the device",
            next_check=f"look at what the host does while the device idles ({VIEW_RUN}); if it is many operators, "
            "compile the model (torch.compile) or use larger batches",
            evidence={
                "idle.host_slow_to_launch": worst.idle,
                "device_use.launches": worst.launches,
                "device_use.queue_median": worst.queue,
            },
            saves=saves[rank],
        )
    ]


def _idle(inputs: Inputs, rank: int) -> _Idle | None:
    """None where no steps or no launches were recorded."""
    tables, parts = inputs.tables, inputs.devices[rank]
    numbers = steps_in_windows(tables, rank)
    launches = launches_of(of_rank(tables.kernels, rank))
    if not numbers or not len(launches) or not parts.host.recorded:
        return None
    steps = times_of_steps(tables, rank, numbers)
    inside = intervals.contains(intervals.union(steps), launches["start"].to_numpy())
    if not inside.any():
        return None
    told = intervals.union(pairs(training_zones(tables, rank).filter(pl.col("kind").is_in(_TOLD)), "start", "end"))
    sets = [parts.busy, *idle_for(parts.host, launches), told]
    idle = intervals.assign(steps[:, 0], steps[:, 1], sets)[:, -1]
    return _Idle(
        steps=numbers,
        idle=float(np.median(idle)) / MS,
        step=float(np.median(np.diff(steps))) / MS,
        launches=float(inside.sum()) / len(steps),
        queue=float(np.median(launch_queue(launches)[inside])),
    )


def _outside(found: _Idle, judged: Judged) -> float:
    """So much idle time in a step outside the windows: what recording adds to a step, it adds to the host's work."""
    added = max(0.0, found.step - judged.step) if judged.step is not None else 0.0
    return max(0.0, found.idle - added)
