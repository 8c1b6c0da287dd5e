"""The result of an analysis: what stands in `report.json`.

These frozen dataclasses are the only description of the report's shape. The JSON schema
(`json_schema`) and `docs/report.md` are generated from them, so a field is explained here or nowhere.

Durations are milliseconds unless the name says otherwise. `None` means 'not observed' and never zero;
each `None` that matters has a row in `Result.not_observed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

SCHEMA: Final = "distprof.report.v1"


def doc(text: str) -> msgspec.Meta:
    """Explain a field; the text goes into the JSON schema and into `docs/report.md`."""
    return msgspec.Meta(description=text)


Basis = Literal["window", "zones"]
BASIS = doc("What the section was computed from: `zones` is the whole run, `window` the Kineto window.")
STEPS_USED = doc("How many steady steps stand behind the section's figures.")
PER = doc("`window`: no steady step lies inside a window, so the figures are of whole windows and not of a step.")

Cause = Literal[
    "data_loading",
    "host_to_device",
    "forward",
    "backward",
    "optimizer",
    "gc",
    "host",
    "device",
    "uneven_work",
    "zone",
]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which run this is."""

    name: Annotated[str, doc("Name of the run directory, or of the folder the traces came from.")]
    id: Annotated[str | None, doc("The run id in `run.json`; the same on every node of a job.")] = None
    command: Annotated[list[str] | None, doc("The command line that was launched.")] = None
    world_size: Annotated[int | None, doc("Number of ranks of the job.")] = None
    nnodes: Annotated[int | None, doc("Number of hosts that ranks ran on.")] = None
    backend: Annotated[str | None, doc("Backend of the default process group.")] = None
    device: Annotated[str | None, doc("Device type that the ranks trained on.")] = None
    torch: Annotated[str | None, doc("Version of torch in the ranks.")] = None
    attempt: Annotated[int | None, doc("The attempt (rendezvous) that is reported.")] = None
    attempts: Annotated[list[int], doc("All attempts found in the run directory.")] = field(default_factory=list)
    wall_s: Annotated[float | None, doc("Seconds from the first rank's first to the last rank's last record.")] = None


Setting = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that was overridden, and what became of it."""

    setting: Annotated[str, doc("Its name, such as `loader.num_workers`.")]
    asked: Annotated[Setting | None, doc("What was asked for.")]
    target: Annotated[str | None, doc("Class of what it was set on; null: it took effect nowhere.")]
    place: Annotated[str | None, doc("Where the script makes that: FILE:LINE.")]
    had: Annotated[Setting | None, doc("What the script had given.")]
    took: Annotated[Setting | None, doc("What it has now.")]
    why: Annotated[str | None, doc("Why it has no effect, or another one than it seems.")]
    ranks: Annotated[list[int], doc("Ranks of which this is true.")]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which conditions the figures hold."""

    batch_shapes: Annotated[list[str] | None, doc("Shapes and dtypes of the batches seen.")] = None
    samples_per_step: Annotated[float | None, doc("Samples per step and rank.")] = None
    autocast: Annotated[bool | None, doc("Whether autocast was on in forward.")] = None
    mode: Annotated[str | None, doc("`train` or `eval`.")] = None
    compiled: Annotated[bool | None, doc("Whether the model was compiled.")] = None
    loader: Annotated[
        list[dict[str, Any]] | None,
        doc("Each `DataLoader`: batch size, number of workers, pinning, prefetching, as constructed."),
    ] = None
    ddp: Annotated[
        list[dict[str, Any]] | None,
        doc("Each `DistributedDataParallel`: bucket cap, bucket sizes after the rebuild, its switches."),
    ] = None
    settings: Annotated[
        list[SettingRow] | None, doc("Settings that were overridden (`--set`); null: none was to be.")
    ] = None
    checksums: Annotated[
        dict[str, str] | None,
        doc(
            "Optimizer -> checksum of its parameters at the end of the training, over all ranks (`--checksum`); null: "
            "it was not asked for, or some rank has none."
        ),
    ] = None
    stopped_after: Annotated[
        int | None, doc("Steps after which the training was ended (`--stop-after`); null: it ended by itself.")
    ] = None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One row for each rank of the world, present or not."""

    rank: Annotated[int, doc("The rank.")]
    host: Annotated[str | None, doc("Host it ran on.")]
    device: Annotated[str | None, doc("Its device.")]
    status: Annotated[
        Literal["complete", "partial", "missing"],
        doc("`complete`: it closed its files itself; `partial`: it was cut off; `missing`: it left nothing."),
    ]
    reason: Annotated[str | None, doc("Why it is not complete, or how it ended.")] = None
    trace: Annotated[str | None, doc("Its Kineto trace, relative to the run directory.")] = None
    requested: Annotated[list[str], doc("Profiler activities that were asked for.")] = field(default_factory=list)
    observed: Annotated[list[str], doc("Profiler activities that stand in the trace.")] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Window:
    """A Kineto window: the steps in which each operator was recorded."""

    index: Annotated[int, doc("Number of the window within the attempt.")]
    ranks: Annotated[list[int], doc("Ranks that recorded it.")]
    steps: Annotated[list[int], doc("Steady steps that lie wholly inside it on every one of these ranks.")]


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    id: Annotated[int, doc("Number by which other sections refer to the group.")]
    name: Annotated[str, doc("torch's name of the group.")]
    desc: Annotated[str | None, doc("torch's description of the group.")]
    members: Annotated[list[int], doc("Global ranks of its members.")]


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A rank's clock against the reference rank's."""

    rank: Annotated[int, doc("The rank.")]
    offset_us: Annotated[float | None, doc("What was subtracted from its times, in microseconds.")]
    drift_ppm: Annotated[float | None, doc("Its drift, in parts per million.")] = None
    bound_us: Annotated[float | None, doc("Largest possible error of the offset, by causality alone.")] = None
    error_us: Annotated[float | None, doc("Error of the offset, assuming that symmetric collectives end together.")] = (
        None
    )
    same_as: Annotated[int | None, doc("The lowest rank that reads the same clock.")] = None


@dataclass(frozen=True, slots=True)
class DeviceClockRow(ClockRow):
    """A rank's device's clock against the reference rank's; `bound_us` and `error_us` against that rank's device's."""

    behind_host_us: Annotated[
        float | None,
        doc(
            "It is behind its host's clock by at least this, since kernels begin after their launch; negative: ahead "
            "by at most that."
        ),
    ] = None
    behind_host_most_us: Annotated[
        float | None,
        doc(
            "It is behind its host's clock by at most this, since a synchronisation with the device returns after the "
            "kernels that it waited for; null: no such synchronisation was recorded."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clocks of the ranks were aligned."""

    method: Annotated[str, doc("How, in words.")]
    verdict: Annotated[
        Literal["aligned", "same_host", "unaligned"],
        doc("`same_host`: all ranks read one host's clock; `unaligned`: lateness between ranks is undecided."),
    ]
    reference_rank: Annotated[int | None, doc("The rank whose clock the others are held against.")]
    ranks: Annotated[list[ClockRow], doc("One row per rank: its host's clock.")]
    origin_unix_ns: Annotated[
        int | None,
        doc(
            "The reference rank's time at which the offsets hold: what its clock read at time t of a rank's is "
            "t - offset - drift * (t - offset - origin)."
        ),
    ] = None
    devices: Annotated[
        list[DeviceClockRow], doc("Clocks of the devices that kernels ran on; the times of kernels are theirs.")
    ] = field(default_factory=list)
    ends: Annotated[int, doc("Symmetric collectives whose ends were seen on several ranks with aligned clocks.")] = 0
    ends_apart_us: Annotated[
        float | None, doc("What the ends of nine of ten of these lie apart, at most, after the alignment.")
    ] = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a duration over steps."""

    count: Annotated[int, doc("How many.")]
    median: Annotated[float | None, doc("Median.")]
    p10: Annotated[float | None, doc("10th percentile.")]
    p90: Annotated[float | None, doc("90th percentile.")]


@dataclass(frozen=True, slots=True)
class RankSteps:
    """A rank's steps."""

    rank: Annotated[int, doc("The rank.")]
    first: Annotated[float | None, doc("Its first step; it includes warm-up and worker start-up.")]
    count: Annotated[int, doc("Steady steps that all ranks share; where they share none, its own.")]
    median: Annotated[float | None, doc("Median of its steady steps.")]
    p10: Annotated[float | None, doc("10th percentile.")]
    p90: Annotated[float | None, doc("90th percentile.")]


@dataclass(frozen=True, slots=True)
class Excluded:
    """Time that is kept out of the steady figures: the mean over ranks."""

    first: Annotated[float | None, doc("The first step.")] = None
    compile: Annotated[float | None, doc("Steps in which something was compiled.")] = None
    export: Annotated[
        float | None,
        doc("Steps touched by the opening, closing or export of a window, or by a long read of the flight recorder."),
    ] = None
    out_of_step: Annotated[
        float | None, doc("Work before the first step, after the last one, and in validation loops.")
    ] = None


@dataclass(frozen=True, slots=True)
class Steps:
    """What a step is here and how long it takes. A step ends at its boundary and begins at the one before."""

    source: Annotated[
        Literal["user", "optimizer", "backward", "annotation", "none"],
        doc("What marks the step boundary; `none`: no boundary was found and figures are for the whole run."),
    ]
    boundary: Annotated[str, doc("The boundary in words.")]
    first: Annotated[float | None, doc("Duration of the first step, the mean over ranks.")]
    micro_steps: Annotated[float | None, doc("Backward passes per step (gradient accumulation).")]
    samples_per_s: Annotated[
        float | None, doc("Samples that the loaders of all ranks gave in steady steps, over the time of these.")
    ]
    steady: Annotated[Spread, doc("Steady steps: per step the mean over ranks, then the spread over steps.")]
    per_rank: Annotated[list[RankSteps], doc("The same rank by rank.")]
    excluded: Annotated[Excluded, doc("What was kept out.")]


@dataclass(frozen=True, slots=True)
class Total:
    """Unions over a rank's whole window, for checking against other tools."""

    rank: Annotated[int, doc("The rank.")]
    span: Annotated[float | None, doc("From the first to the last event.")]
    compute: Annotated[float | None, doc("Union of leaf operators (CPU) or of kernels (device).")]
    comm: Annotated[float | None, doc("Union of the collectives' spans on the backend's threads or streams.")]
    exposed: Annotated[float | None, doc("`comm` minus `compute`, as other tools define it.")]


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """A rank's steady step, cut into parts that add up to it: each piece belongs to the first that applies.

    On a CPU, by the training thread: data_wait, h2d, compute, comm_wait, comm_transfer, other. On a device: compute,
    comm_wait, comm_transfer, h2d; then, where it stood idle, what its host did meanwhile: data_wait, sync_wait, other.
    """

    rank: Annotated[int, doc("The rank.")]
    basis: Annotated[Basis, BASIS]
    steps_used: Annotated[int, STEPS_USED]
    step: Annotated[float | None, doc("Mean duration of the steps that were cut.")]
    data_wait: Annotated[float | None, doc("Inside a loader's `__next__` or `__iter__`.")]
    h2d: Annotated[float | None, doc("Copies from host to device.")]
    compute: Annotated[float | None, doc("A leaf operator runs on the training thread (or on the device: a kernel).")]
    comm_wait: Annotated[
        float | None,
        doc("Blocked on a collective that some participant has not joined yet."),
    ]
    comm_transfer: Annotated[float | None, doc("Blocked on communication otherwise: all participants have joined.")]
    comm_exposed: Annotated[float | None, doc("comm_wait + comm_transfer.")]
    comm_overlapped: Annotated[
        float | None, doc("Communication beside the other parts: the collectives' union minus comm_exposed.")
    ]
    sync_wait: Annotated[float | None, doc("Device only: idle while the host waits for it or for other ranks.")]
    idle: Annotated[float | None, doc("Device only: idle without a known reason, since the host was not recorded.")]
    other: Annotated[
        float | None,
        doc(
            "Python between operators, garbage collection; on a device: it is idle while the host runs Python and "
            "operators, or it copies within itself or to the host, or fills memory."
        ),
    ]


@dataclass(frozen=True, slots=True)
class RankCommunication:
    """A rank's communication per steady step."""

    rank: Annotated[int, doc("The rank.")]
    total: Annotated[float | None, doc("Union of its collectives: from created to ended, on devices of their kernels.")]
    exposed: Annotated[float | None, doc("The part of it that blocked the training thread.")]
    wait: Annotated[float | None, doc("Union of its waits: from its own creation to the last participant's.")]
    transfer: Annotated[float | None, doc("`total` minus `wait`.")]


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """Collectives of one kind, group and size; per call, the mean over ranks and calls."""

    kind: Annotated[str, doc("all_reduce, broadcast, ...")]
    group: Annotated[int | None, doc("Process group, by id.")]
    bytes: Annotated[int | None, doc("Bytes handed in by each rank.")]
    count: Annotated[int, doc("Calls over the whole run, each logical collective counted once.")]
    wait: Annotated[float | None, doc("Wait per call in steady steps; of traces without any, in all of them.")]
    transfer: Annotated[float | None, doc("Transfer per call in the same.")]
    algbw_gbps: Annotated[float | None, doc("bytes / transfer, in 10^9 bytes per second.")] = None
    busbw_gbps: Annotated[float | None, doc("algbw x 2(n-1)/n for all-reduce and the like.")] = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """One DDP bucket's gradient all-reduce, per steady step."""

    model: Annotated[str, doc("The DDP instance.")]
    bucket: Annotated[int, doc("Bucket number, in the order of reduction.")]
    group: Annotated[int, doc("Process group, by id.")]
    bytes: Annotated[int, doc("Gradient bytes per rank.")]
    params: Annotated[list[str] | None, doc("Parameters in the bucket, where DDP tells them.")]
    count: Annotated[int, doc("All-reduces counted: steady steps of the whole run.")]
    wait: Annotated[float | None, doc("From a rank's own creation to the last rank's: mean over ranks and steps.")]
    transfer: Annotated[
        float | None, doc("From the last rank's creation to the end: mean over ranks and the window's steps.")
    ]
    last_rank: Annotated[int | None, doc("The rank that was most often the last to create it, where one was.")]
    last_share: Annotated[float | None, doc("In which share of the steps it was.")] = None
    algbw_gbps: Annotated[float | None, doc("bytes / transfer, in 10^9 bytes per second.")] = None
    busbw_gbps: Annotated[float | None, doc("algbw x 2(n-1)/n.")] = None


@dataclass(frozen=True, slots=True)
class GradientOverlap:
    """How far DDP's gradient all-reduces ran beside backward, per steady step in the window: means over ranks."""

    steps_used: Annotated[int, STEPS_USED]
    total: Annotated[float | None, doc("Union of the gradients' all-reduces from created to ended.")]
    overlapped: Annotated[
        float | None, doc("The part of it in which backward computed: inside its zone, and not blocked.")
    ]
    exposed: Annotated[float | None, doc("The part of it that blocked the training thread.")]
    wait: Annotated[float | None, doc("The part of `exposed` in which some rank had not arrived.")]
    saved_by_perfect_overlap: Annotated[
        float | None,
        doc(
            "What a step would be shorter by if transfers ran beside all of backward's computing: exposed transfer, "
            "less what the transfers exceed that computing by. An upper limit: the last bucket is never hidden."
        ),
    ]


@dataclass(frozen=True, slots=True)
class TransferModel:
    """Transfer of an all-reduce as latency + bytes / bandwidth, from when the last rank's backend began with it."""

    group: Annotated[int, doc("Process group, by id.")]
    latency: Annotated[float, doc("What an all-reduce of nothing would take.")]
    algbw_gbps: Annotated[float, doc("Algorithm bandwidth without latency, in 10^9 bytes per second.")]
    at_once: Annotated[int, doc("So many transfers a rank had under way at once, at most.")]
    calls: Annotated[int, doc("All-reduces in steady steps that it was fitted to.")]
    smallest_bytes: Annotated[int, doc("The smallest of these.")]
    largest_bytes: Annotated[int, doc("The largest of these.")]
    error: Annotated[float, doc("Median relative difference of the calls' transfers from it.")]


@dataclass(frozen=True, slots=True)
class Communication:
    """Communication per steady step: means over ranks. Durations that overlap are united, not added."""

    basis: Annotated[Basis, BASIS]
    steps_used: Annotated[int, STEPS_USED]
    collectives: Annotated[int | None, doc("Logical collectives in the whole run.")]
    matched: Annotated[int | None, doc("Of these, seen on every member of their group.")]
    unmatched: Annotated[int | None, doc("Of these, not seen on every member that was recorded.")]
    unclassified: Annotated[int | None, doc("Of these, of a kind that is not known: nothing is concluded from them.")]
    total: Annotated[float | None, doc("Union of collectives from created to ended.")]
    exposed: Annotated[float | None, doc("The part of `total` that blocked the training thread.")]
    overlapped: Annotated[float | None, doc("`total` minus `exposed`.")]
    wait: Annotated[float | None, doc("The part of `total` in which some participant had not arrived.")]
    transfer: Annotated[float | None, doc("`total` minus `wait`.")]
    per_rank: Annotated[list[RankCommunication], doc("The same rank by rank.")]
    by_kind: Annotated[list[CollectiveKind], doc("Per kind, group and size.")]
    buckets: Annotated[list[Bucket], doc("Per DDP bucket.")]
    gradients: Annotated[
        GradientOverlap | None, doc("How far DDP's all-reduces ran beside backward; null: no bucket was recognised.")
    ] = None
    transfer_models: Annotated[
        list[TransferModel], doc("Latency and bandwidth, for each group whose all-reduces tell them apart.")
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others waited for."""

    rank: Annotated[int, doc("The culprit.")]
    cause: Annotated[Cause, doc("Kind of the zone that its extra time was lost in; `host`: between zones.")]
    zone: Annotated[str | None, doc("That zone's name.")]
    pattern: Annotated[
        Literal["persistent", "intermittent", "rotating"],
        doc(
            "`persistent`: late in three of five steps or more; `intermittent`: in fewer, but more often than its "
            "peers, and over all steps beyond their accidents by more than a hundredth of a step and a fifth of "
            "`noise_of_a_step`, and with twice the cost of any that is not named, and where a host has fewer than "
            "two CPUs for each rank alike within 30%; "
            "`rotating`: ranks are late one after the other, in most steps or at regular intervals."
        ),
    ]
    steps: Annotated[list[int], doc("Steps in which it was late by more than the noise, at most the first 100.")]
    group: Annotated[int | None, doc("Group whose collectives it held up, by id.")]
    via: Annotated[
        list[int],
        doc(
            "Ranks through which the delay reached the others: they waited for it in one group, and so came last to "
            "another, where without the delay, by the replay, half of the wait or more would not have been."
        ),
    ]
    delay: Annotated[
        float,
        doc(
            "Its extra own time per step, net of waits, against what is usual for its role (ranks with the same "
            "collectives): the median over the steady steps if it is persistent, else over the steps in which it was "
            "late. Own time runs from its last release from a collective to the next, across step boundaries."
        ),
    ]
    imposed_wait: Annotated[
        float | None,
        doc(
            "Wait that each other rank had in front of it, or of ranks that had waited for it, united, in the same "
            "steps: the mean over these ranks."
        ),
    ]
    last_arrivals: Annotated[int, doc("Synchronisations at which it was the last to arrive.")]
    of_collectives: Annotated[int, doc("Synchronisations that were judged: one per step and group.")]
    saved_if_fixed: Annotated[
        float | None,
        doc(
            "Time per steady step that would be saved if only this rank did not lose its extra: all ranks' own times "
            "and collectives are played again without it. Where another rank is as late, little is."
        ),
    ]
    confidence: Annotated[
        Literal["bound", "ends_agree", "same_clock"],
        doc("What the comparison of clocks stands on; `same_clock`: one host."),
    ]


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Who the others waited for, where it lost the time, and how much."""

    basis: Annotated[Basis, BASIS]
    steps_used: Annotated[int, STEPS_USED]
    verdict: Annotated[Literal["none", "straggler", "undecided"], doc("The verdict.")]
    why: Annotated[str, doc("What the verdict stands on, or why there is none.")]
    noise: Annotated[float | None, doc("Below this delay per step nobody is named in this run.")]
    ranks: Annotated[list[Straggler], doc("The culprits, the costliest first; victims are not among them.")]
    noise_of_a_step: Annotated[
        float | None, doc("The same in a single step: below this delay no step counts as one in which a rank was late.")
    ] = None
    saved_if_all_fixed: Annotated[
        float | None,
        doc("Time per step that the replay saves without the extra of all culprits; not the sum of `saved_if_fixed`."),
    ] = None


@dataclass(frozen=True, slots=True)
class RankLateness:
    """By how much a rank's own time exceeds what is usual, step by step; negative: it was faster."""

    rank: Annotated[int, doc("The rank.")]
    median: Annotated[float, doc("Median over the steps.")]
    largest: Annotated[float, doc("In the step in which it was the latest.")]
    largest_step: Annotated[int, doc("That step.")]
    late: Annotated[list[float], doc("The largest of each column's steps, column by column.")]


@dataclass(frozen=True, slots=True)
class Lateness:
    """A picture of who was late when: ranks by steps. At most 200 columns and some 130,000 values."""

    basis: Annotated[Basis, BASIS]
    steps_used: Annotated[int, STEPS_USED]
    first_steps: Annotated[list[int], doc("The first step of each column.")]
    last_steps: Annotated[list[int], doc("The last step of each column.")]
    ranks: Annotated[list[RankLateness], doc("Rank by rank.")]


@dataclass(frozen=True, slots=True)
class GanttBar:
    """What a rank did, from when to when; times are milliseconds since the picture's beginning."""

    rank: Annotated[int, doc("The rank.")]
    lane: Annotated[
        Literal["thread", "collectives"],
        doc("`thread`: the training thread, and its device; bars do not overlap. `collectives`: those, which may."),
    ]
    kind: Annotated[
        str,
        doc(
            "Kind of the innermost zone, or `host` between zones; `compute`: a kernel computes. Of a time in which the "
            "thread is blocked, and of a collective: `wait` for ranks that had not come, `transfer` after that, or "
            "`communication` where these are not told apart."
        ),
    ]
    name: Annotated[str, doc("Name of the zone, or kind of the collective.")]
    start: Annotated[float, doc("When it begins.")]
    end: Annotated[float, doc("When it ends.")]
    bytes: Annotated[int | None, doc("Of a collective: bytes handed in.")] = None
    bucket: Annotated[int | None, doc("Of a collective: DDP's bucket.")] = None


@dataclass(frozen=True, slots=True)
class GanttStep:
    """One step across ranks. Of many ranks some are shown, of many bars of a lane the 40 longest."""

    step: Annotated[int, doc("The step.")]
    why: Annotated[
        Literal["finding", "typical", "late"],
        doc("`finding`: a finding shows in it; `typical`: it takes as long as most; `late`: some rank was the latest."),
    ]
    about: Annotated[list[int], doc("The ranks whose finding shows in it.")]
    duration: Annotated[float, doc("From the first shown rank's beginning to the last one's end.")]
    aligned: Annotated[
        bool, doc("Whether the ranks' clocks can be compared; if not, each rank's times count from its own beginning.")
    ]
    ranks: Annotated[list[int], doc("The ranks that are shown, at most 16.")]
    bars: Annotated[list[GanttBar], doc("What they did.")]
    left_out: Annotated[int, doc("Bars that are not here because their lane has too many.")]


@dataclass(frozen=True, slots=True)
class RankLoading:
    """A rank's input pipeline."""

    rank: Annotated[int, doc("The rank.")]
    wait: Annotated[
        float | None, doc("Time in the loader's `__next__` per steady step, start-up of workers apart: the mean.")
    ]
    share_of_step: Annotated[
        float | None, doc("Time in loaders, start-up of workers included, over the mean steady step; 0 to 1.")
    ]
    startup: Annotated[float | None, doc("Time in the loader's `__iter__` and its first `__next__`, whole run.")]
    num_workers: Annotated[int | None, doc("Of the loader that was waited for longest.")]
    pin_memory: Annotated[bool | None, doc("Of the same loader.")]


@dataclass(frozen=True, slots=True)
class DataLoading:
    """Whether the input pipeline keeps up."""

    basis: Annotated[Basis, BASIS]
    steps_used: Annotated[int, STEPS_USED]
    verdict: Annotated[
        Literal["keeps_up", "stalls", "undecided"],
        doc("`stalls`: on some rank data takes more than a tenth of the step."),
    ]
    per_rank: Annotated[list[RankLoading], doc("Rank by rank.")]


@dataclass(frozen=True, slots=True)
class IdleBecause:
    """What a device stood idle for, per steady step: each piece belongs to the first that applies."""

    data: Annotated[float | None, doc("The host was in a loader.")]
    collective: Annotated[float | None, doc("The host waited for other ranks.")]
    sync: Annotated[float | None, doc("The host waited for the device, in a synchronisation or a copy.")]
    launched: Annotated[float | None, doc("Work was launched and had not begun: it takes some us, or waits for other.")]
    host_slow_to_launch: Annotated[float | None, doc("Nothing was launched: the host ran Python or operators.")]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How a rank uses a device, per steady step in its windows: busy + idle = step."""

    rank: Annotated[int, doc("The rank.")]
    device: Annotated[int | None, doc("The device's number on its host.")]
    steps_used: Annotated[int, STEPS_USED]
    step: Annotated[float | None, doc("Mean duration of these steps; without steps the window's.")]
    busy: Annotated[float | None, doc("A kernel, a copy or a fill runs; a kernel that waits for other ranks, too.")]
    idle: Annotated[float | None, doc("Nothing runs.")]
    idle_because: Annotated[IdleBecause, doc("What it stood idle for; these add up to `idle`.")]
    launches: Annotated[float | None, doc("Launches of kernels, copies and fills that began in a step.")]
    queue_median: Annotated[
        float | None,
        doc("Launches that were issued and had not begun when one began: the median. About 0: the host is too slow."),
    ]
    queue_p10: Annotated[float | None, doc("The same: the 10th percentile.")]


@dataclass(frozen=True, slots=True)
class SyncWait:
    """A place where the host waited, per rank: on a CPU in the steady steps of the run, on a device in its windows'."""

    kind: Annotated[
        Literal["collective_wait", "end_of_backward", "barrier", "stream", "device", "event", "copy", "item"],
        doc("What was waited for."),
    ]
    rank: Annotated[int, doc("The rank.")]
    count: Annotated[int, doc("How often, in all these steps together.")]
    wait: Annotated[float | None, doc("Wait per steady step.")]
    top_callers: Annotated[
        list[str],
        doc(
            "Operators, annotations or zones around it and, where stacks were recorded, the line of Python: those that "
            "waited longest."
        ),
    ]
    basis: Annotated[Basis, BASIS] = "zones"
    steps_used: Annotated[int, STEPS_USED] = 0
    device_busy: Annotated[
        float | None, doc("The part of `wait` in which the device worked: the host waited since the device is busy.")
    ] = None
    device_idle: Annotated[
        float | None,
        doc(
            "What the wait cost the device, per steady step: from when it ran dry in the wait to its next work, since "
            "the host waited instead of launching ahead."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator in the window, on all threads of the host: the mean over ranks. Of many the 200 with most `self`."""

    name: Annotated[str, doc("Name.")]
    calls: Annotated[float, doc("Calls per step; those that begin in it.")]
    self: Annotated[float | None, doc("Time of its own per step: without the operators that it calls on its thread.")]
    inclusive: Annotated[
        float | None,
        doc(
            "Time with the operators that it calls, per step; a call inside one of the same name does not count again."
        ),
    ]
    spread: Annotated[float | None, doc("`self` of the largest rank minus that of the smallest.")]
    slowest_rank: Annotated[int | None, doc("The rank with the largest `self`.")] = None
    per: Annotated[Literal["step", "window"], PER] = "step"


@dataclass(frozen=True, slots=True)
class Kernel:
    """What devices did, by name: kernels, copies and fills; the mean over ranks. Of many the 200 with most `total`."""

    name: Annotated[str, doc("Name.")]
    kind: Annotated[Literal["kernel", "copy", "fill"], doc("What it is.")]
    collective: Annotated[str | None, doc("Kind of the collective that it carries out; null: it computes.")]
    calls: Annotated[float, doc("How many per step; those that the host launched in it.")]
    total: Annotated[float, doc("Their durations per step, added; those side by side count each.")]
    spread: Annotated[float | None, doc("`total` of the largest rank minus that of the smallest.")]
    slowest_rank: Annotated[int | None, doc("The rank with the largest `total`.")] = None
    per: Annotated[Literal["step", "window"], PER] = "step"


@dataclass(frozen=True, slots=True)
class ZoneMemory:
    """The peak in one kind of zone."""

    zone: Annotated[str, doc("Kind of the innermost zone of the training thread; of the script's own zones the name.")]
    peak_bytes: Annotated[int, doc("The most that was held at an allocation or release in it.")]


@dataclass(frozen=True, slots=True)
class Memory:
    """A rank's memory on one device, where it was recorded."""

    rank: Annotated[int, doc("The rank.")]
    device: Annotated[
        str,
        doc(
            "`host`: the process's resident memory over the whole run, without data workers; else what torch's "
            "allocator held in the windows: `cpu` (since recording began), `device 0`, ..."
        ),
    ]
    zone: Annotated[str | None, doc("The zone of the peak; null: outside of all zones, or the whole run.")]
    peak_bytes: Annotated[int | None, doc("The peak.")]
    reserved_bytes: Annotated[int | None, doc("The most that the allocator had reserved; null: it reserves none.")] = (
        None
    )
    zones: Annotated[list[ZoneMemory], doc("The peak zone by zone.")] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something worth doing, with the figures it stands on."""

    id: Annotated[str, doc("Kind of the finding.")]
    severity: Annotated[Literal["info", "warning", "critical"], doc("How much it costs.")]
    ranks: Annotated[list[int], doc("Ranks to look at.")]
    steps: Annotated[list[int], doc("Steps to look at.")]
    observation: Annotated[str, doc("What was seen.")]
    hypothesis: Annotated[str, doc("What probably causes it.")]
    next_check: Annotated[str, doc("What to try or look at next.")]
    evidence: Annotated[dict[str, float], doc("The figures it stands on, by name.")]
    saves: Annotated[
        float | None, doc("What fixing it would save per step, at most: the estimate that findings are ordered by.")
    ] = None


@dataclass(frozen=True, slots=True)
class NotObserved:
    """A figure that could not be had."""

    what: Annotated[str, doc("Path of the field in this report, or the thing itself.")]
    ranks: Annotated[list[int] | None, doc("For which ranks; null: for all.")]
    reason: Annotated[str, doc("Why.")]


@dataclass(frozen=True, slots=True)
class Overhead:
    """What distprof itself cost."""

    zones_ms_per_step: Annotated[
        float | None, doc("Recording of zones and collectives per step, timed by the ranks themselves: the mean.")
    ]
    window_ratio: Annotated[float | None, doc("Median step inside the window over the median outside.")]
    export_s: Annotated[float | None, doc("Seconds to close and export the windows: the slowest rank.")]
    trace_bytes: Annotated[int | None, doc("Bytes of all Kineto traces on disk.")]
    how: Annotated[str, doc("How these were measured.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole report."""

    schema: Annotated[Literal["distprof.report.v1"], doc("Version of this shape.")] = SCHEMA
    run: Annotated[RunInfo, doc("Which run this is.")]
    conditions: Annotated[Conditions, doc("Under which conditions the figures hold.")]
    ranks: Annotated[
        list[RankRow],
        doc("One row for each rank of the world, present or not; of very many that left nothing one for all."),
    ]
    windows: Annotated[list[Window], doc("Kineto windows.")]
    groups: Annotated[list[Group], doc("Process groups.")]
    clock: Annotated[Clock, doc("How the ranks' clocks were aligned.")]
    steps: Annotated[Steps, doc("What a step is and how long it takes.")]
    totals: Annotated[list[Total], doc("Unions over the whole window.")]
    breakdown: Annotated[list[BreakdownRow], doc("The steady step, cut into parts that add up to it.")]
    communication: Annotated[Communication, doc("Communication per steady step.")]
    stragglers: Annotated[Stragglers, doc("Who the others waited for.")]
    data_loading: Annotated[DataLoading, doc("Whether the input pipeline keeps up.")]
    sync_waits: Annotated[list[SyncWait] | None, doc("Where the host waited.")]
    device_use: Annotated[list[DeviceUse] | None, doc("How busy devices were, and what they stood idle for.")] = None
    operators: Annotated[list[Operator] | None, doc("Operators in the window.")]
    kernels: Annotated[list[Kernel] | None, doc("What devices did in the window, by name.")] = None
    memory: Annotated[list[Memory] | None, doc("Memory peaks.")]
    findings: Annotated[list[Finding], doc("What to do, ordered by what fixing it would save; at most seven.")]
    not_observed: Annotated[list[NotObserved], doc("What could not be had, and why.")]
    overhead: Annotated[Overhead, doc("What distprof itself cost.")]
    lateness: Annotated[Lateness | None, doc("Who was late when; null: not observed.")] = None
    gantt: Annotated[list[GanttStep], doc("Some steps across ranks, at most 6: those of findings first.")] = field(
        default_factory=list
    )


def to_json(result: Result) -> bytes:
    """`report.json`'s bytes, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2)


def from_json(data: bytes) -> Result:
    """Read a `report.json` back, validated.

    Raises:
        msgspec.ValidationError: the data has another shape; the message names the place.
    """
    return msgspec.json.decode(data, type=Result)


def json_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of `report.json`."""
    return msgspec.json.schema(Result)
