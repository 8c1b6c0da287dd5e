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


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clocks of the ranks were aligned."""

    method: Annotated[str, doc("How, in words.")]
    verdict: Annotated[
        Literal["aligned", "same_host", "unaligned"],
        doc("`same_host`: all ranks read one host's clock; `unaligned`: lateness between ranks is undecided."),
    ]
    reference_rank: Annotated[int | None, doc("The rank whose clock the others are held against.")]
    ranks: Annotated[list[ClockRow], doc("One row per rank.")]


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

    On a CPU, by the training thread: data_wait + h2d + compute + comm_wait + comm_transfer + other.
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
    sync_wait: Annotated[float | None, doc("Device only: idle while the host waits for it or for another device.")]
    idle: Annotated[float | None, doc("Device only: idle without a known reason.")]
    other: Annotated[float | None, doc("Python between operators, garbage collection.")]


@dataclass(frozen=True, slots=True)
class RankCommunication:
    """A rank's communication per steady step."""

    rank: Annotated[int, doc("The rank.")]
    total: Annotated[float | None, doc("Union of its collectives from created to ended.")]
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
    wait: Annotated[float | None, doc("Wait per call in steady steps.")]
    transfer: Annotated[float | None, doc("Transfer per call in steady steps.")]
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


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others waited for."""

    rank: Annotated[int, doc("The culprit.")]
    cause: Annotated[Cause, doc("Kind of the zone that its extra time was lost in; `host`: between zones.")]
    zone: Annotated[str | None, doc("That zone's name.")]
    pattern: Annotated[
        Literal["persistent", "intermittent", "rotating"], doc("In most steps, in some, or taking turns.")
    ]
    steps: Annotated[list[int], doc("Steps in which it was late, at most the first 100.")]
    group: Annotated[int | None, doc("Group whose collectives it held up, by id.")]
    via: Annotated[list[int], doc("Ranks through which the delay reached the others.")]
    delay: Annotated[
        float, doc("Its extra own time per step against its peers, net of waits: the median over steady steps.")
    ]
    imposed_wait: Annotated[
        float | None, doc("Wait that each other rank had in front of it, per step: mean over these ranks.")
    ]
    last_arrivals: Annotated[int, doc("Synchronisations at which it was the last to arrive.")]
    of_collectives: Annotated[int, doc("Synchronisations that were judged: one per step and group.")]
    saved_if_fixed: Annotated[float | None, doc("Time per step that a replay without its extra would save.")]
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
class SyncWait:
    """A place where the host waited, per rank; over the steady steps of the whole run."""

    kind: Annotated[
        Literal["collective_wait", "end_of_backward", "barrier", "stream", "device", "event", "copy", "item"],
        doc("What was waited for."),
    ]
    rank: Annotated[int, doc("The rank.")]
    count: Annotated[int, doc("How often.")]
    wait: Annotated[float | None, doc("Wait per steady step.")]
    top_callers: Annotated[list[str], doc("Operators or annotations around it.")]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator in the window."""

    name: Annotated[str, doc("Name.")]
    calls: Annotated[int, doc("Calls per step.")]
    self: Annotated[float | None, doc("Time of its own per step.")]
    inclusive: Annotated[float | None, doc("Time with its children per step.")]
    spread: Annotated[float | None, doc("Largest minus smallest rank.")]


@dataclass(frozen=True, slots=True)
class Memory:
    """A rank's memory, where it was recorded."""

    rank: Annotated[int, doc("The rank.")]
    zone: Annotated[str | None, doc("The zone of the peak.")]
    peak_bytes: Annotated[int | None, doc("The peak.")]


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
    ranks: Annotated[list[RankRow], doc("One row for each rank of the world, present or not.")]
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
    operators: Annotated[list[Operator] | None, doc("Operators in the window.")]
    memory: Annotated[list[Memory] | None, doc("Memory peaks.")]
    findings: Annotated[list[Finding], doc("What to do, ordered by what fixing it would save.")]
    not_observed: Annotated[list[NotObserved], doc("What could not be had, and why.")]
    overhead: Annotated[Overhead, doc("What distprof itself cost.")]


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
