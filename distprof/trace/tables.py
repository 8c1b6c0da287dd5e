"""The tables that a run is read into: names, columns and dtypes.

Times are integer nanoseconds since the Unix epoch, on the clock of the rank's own host until `clock`
has aligned them. One frame of each kind holds all ranks. A null is 'not observed'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from distprof.result import Group

# What a rank's own timeline consists of. `thread` is 0 for the training thread. In the order of their start; a zone
# comes before those inside it.
#   kind: step (the user's mark, no duration) | data_loading (a loader's __next__ that gave a batch)
#       | loader_first (the same while its workers were starting) | loader_end (one that ended the epoch)
#       | loader_start (__iter__) | forward | evaluation (forward in evaluation mode, without gradients) | backward
#       | optimizer | checkpoint (torch.save) | gc | zone (the user's) | wait (Work.wait)
#       | own (distprof's own work in the training thread)
ZONES: dict[str, Any] = {
    "rank": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
    "thread": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
}
ZONE_KINDS = frozenset(
    {"step", "data_loading", "loader_first", "loader_end", "loader_start", "forward", "evaluation", "backward"}
    | {"optimizer", "checkpoint", "gc", "zone", "wait", "own"}
)

# A step ends at its boundary and begins at the one before; step 0 begins where the training thread's
# first zone does. Step k of one rank is step k of all. `backwards` is how many backward passes ended in it, null where
# no zones tell. `excluded` is None for a steady step, else why it is not: first | compile (a window shows that torch
# compiled something in it, which it does not in all steps, on any rank) | export (a window's edge, or work of
# distprof's own of more than 1 ms and 2% of a step, on any rank) | out_of_step (it contains evaluation or a checkpoint,
# which most steps do not, on any rank); it is the same on all ranks;
# and not_chosen: the user asked for others. Where torch's `ProfilerStep` marks are the
# boundary, a step is from a mark's beginning to its end, and has the mark's number.
STEPS: dict[str, Any] = {
    "rank": pl.Int32,
    "step": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "backwards": pl.Int32,
    "excluded": pl.String,
}

# Batches that a loader gave the training thread: `samples` is the first tensor's first dimension, `elements` counts
# those of all its tensors. `step` is the step it was loaded in, null out of step.
BATCHES: dict[str, Any] = {
    "rank": pl.Int32,
    "time": pl.Int64,
    "samples": pl.Int64,
    "elements": pl.Int64,
    "step": pl.Int64,
}

# How long the device worked on a zone (forward, backward, optimizer) of the training thread; `start` is the zone's on
# the host. Empty for a training on the CPU.
DEVICE_ZONES: dict[str, Any] = {
    "rank": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
    "start": pl.Int64,
    "device_ns": pl.Int64,
}

# One row per collective and rank, in the order of creation. (group, seq) is the same on all members: torch's own
# sequence number where it was recorded, else one that was given by aligning the ranks' sequences (see `matching`).
# `ended` and `started` are null where neither the backend nor a Kineto window tells them for certain. Of a trace that
# does not tell when a collective was created, `created` is its start. `step` is null out of step.
# `zone` is the kind of the innermost of the training thread's zones that it was created in, or null. `bucket` and
# `model` are set for DDP's gradient all-reduces, where sizes leave no doubt. `root` is the rank that a broadcast or
# scatter comes from, or that a reduce or gather goes to; null where the recording does not tell it.
COLLECTIVES: dict[str, Any] = {
    "rank": pl.Int32,
    "group": pl.Int32,
    "seq": pl.Int64,
    "kind": pl.String,
    "bytes": pl.Int64,
    "dtype": pl.String,
    "created": pl.Int64,
    "started": pl.Int64,
    "ended": pl.Int64,
    "step": pl.Int64,
    "zone": pl.String,
    "model": pl.String,
    "bucket": pl.Int32,
    "root": pl.Int32,
}

# Events of a Kineto window, in the order of their start. cat is Kineto's category. `leaf` is True for an operator that
# computes: a `cpu_op` with a namespace (`aten::addmm`), the outermost of these on its thread, so that their union is
# the time computed. What wraps others and may run Python in between (autograd's nodes, Python functions, steps,
# annotations) is none, and neither is what enqueues or awaits a collective or contains an operator that does. The
# innermost operators alone would not do: `aten::addmm` computes itself and calls `aten::expand` on the way.
# `end` is where the event was cut if it was not over when the window closed.
EVENTS: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "cat": pl.String,
    "name": pl.String,
    "thread": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "leaf": pl.Boolean,
}

# A window as it was recorded on one rank: from Kineto's start to its stop.
WINDOWS: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
}

# What a device did: kernels (cat `kernel`), copies (`gpu_memcpy`) and fills (`gpu_memset`), in the order of their
# start. `collective` is the kind of collective that a kernel carries out, `unclassified` where it only looks like one,
# null where it computes. `launched` is when the host began the call that launched it, `launch_end` when that returned,
# `launch_thread` the host thread; null where the window does not hold that call. `bytes` is what a copy or a fill
# moved, null where the trace does not tell.
KERNELS: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "cat": pl.String,
    "name": pl.String,
    "device": pl.Int64,
    "stream": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "collective": pl.String,
    "correlation": pl.Int64,
    "launched": pl.Int64,
    "launch_end": pl.Int64,
    "launch_thread": pl.Int64,
    "bytes": pl.Int64,
}

# Allocations (bytes > 0) and releases (bytes < 0), where a window recorded memory, in the order of time. `device_type`
# is torch's number (0: CPU, 1: CUDA); `allocated` and `reserved` are what the allocator held then, in bytes.
MEMORY: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "time": pl.Int64,
    "device_type": pl.Int64,
    "device": pl.Int64,
    "address": pl.Int64,
    "bytes": pl.Int64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}

# Shapes of the inputs that operators were called with, where a window recorded them, as torch writes them:
# `[[128, 64], [64]]`, one for each input. `ns` is what all these calls took, with the operators that they call.
SHAPES: dict[str, Any] = {
    "rank": pl.Int32,
    "window": pl.Int32,
    "name": pl.String,
    "shapes": pl.String,
    "calls": pl.Int64,
    "ns": pl.Int64,
}

# Probes of the clocks: `rank` sent a request to `peer` at `sent` (on its own clock), which came there at
# `peer_received` and was answered at `peer_sent` (on the peer's clock); the answer came at `received` (own clock).
PROBES: dict[str, Any] = {
    "rank": pl.Int32,
    "peer": pl.Int32,
    "sent": pl.Int64,
    "peer_received": pl.Int64,
    "peer_sent": pl.Int64,
    "received": pl.Int64,
}


# The last signs of a rank's life: when it last wrote its zones (`written`), as it does each second while its process
# runs, and when it last read its flight recorder (`drained`): collectives that it created later are not recorded. Null:
# it never did.
SIGNS: dict[str, Any] = {
    "rank": pl.Int32,
    "written": pl.Int64,
    "drained": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """A run as tables, for the analyses. See the module's constants for the columns.

    Attributes:
        ranks: the ranks that left something to analyse, ascending.
        world_size: ranks of the job, present or not.
        step_source: see `result.Steps.source`.
        training_thread: rank -> the thread id by which `events` knows its training thread.
        facts: rank -> the rank's facts file as it was read; of a trace that others recorded, the same as far as
            the trace tells it.
        arrival: the column of `collectives` that says when a rank arrived at one: `created`, or `started` where devices
            carry them out.
    """

    ranks: list[int]
    world_size: int
    step_source: str
    groups: list[Group]
    zones: pl.DataFrame
    steps: pl.DataFrame
    collectives: pl.DataFrame
    events: pl.DataFrame
    windows: pl.DataFrame
    training_thread: dict[int, int]
    facts: dict[int, dict[str, Any]]
    batches: pl.DataFrame = field(default_factory=lambda: empty(BATCHES))
    device_zones: pl.DataFrame = field(default_factory=lambda: empty(DEVICE_ZONES))
    kernels: pl.DataFrame = field(default_factory=lambda: empty(KERNELS))
    memory: pl.DataFrame = field(default_factory=lambda: empty(MEMORY))
    shapes: pl.DataFrame = field(default_factory=lambda: empty(SHAPES))
    probes: pl.DataFrame = field(default_factory=lambda: empty(PROBES))
    signs: pl.DataFrame = field(default_factory=lambda: empty(SIGNS))
    arrival: Literal["created", "started"] = "created"


def empty(schema: dict[str, Any]) -> pl.DataFrame:
    """An empty table of the given schema."""
    return pl.DataFrame(schema=schema)
