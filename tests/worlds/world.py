"""What a world is: ranks on hosts, groups, and per rank and step a script of what the training thread does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

MODEL = "DistributedDataParallel#0"


@dataclass(frozen=True, slots=True)
class Compute:
    """Operators run on the training thread. `exact` durations have no jitter."""

    ms: float
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """The training thread runs Python, or sleeps: no operator."""

    ms: float
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone around other segments; kinds as in ZONES, of which `step` marks a moment."""

    kind: str
    name: str
    body: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective is created.

    Attributes:
        group: "0" is all ranks; "1", "2", ... are `World.groups`.
        transfer: ms from the last participant's start to the end; None: by `bytes` and the world's bandwidth.
        waits: `later`: goes on, and a following `Await` blocks for it; `inside`: blocks at once without a zone, as C++
            does; `zone`: blocks at once in a `wait` zone, as Python's `Work.wait` does.
        model, bucket: it is this DDP bucket.
        root: a place among the group's members, which the recording tells; None: the first, and only of the
            buffers that forward broadcasts is that known.
    """

    kind: str = "all_reduce"
    group: str = "0"
    bytes: int | None = 4096
    dtype: str | None = "Float"
    transfer: float | None = None
    waits: Literal["later", "inside", "zone"] = "zone"
    model: str | None = None
    bucket: int | None = None
    root: int | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Blocks until all collectives are over that nobody has waited for; `zone`: in a `wait` zone."""

    zone: bool = False


Segment = Compute | Idle | Zone | Collective | Await


@dataclass(frozen=True, slots=True)
class Delay:
    """Extra time of one rank.

    Attributes:
        kind: where: in `data_loading`, `forward`, `optimizer` or `zone:NAME` at their beginning; in `backward` before
            the bucket `bucket`; as `host` time between zones, before the zone of kind `before`; as a `gc` zone in
            `forward`.
        steps: all, or these.
        computes: it is spent in operators; otherwise it is a sleep.
    """

    rank: int
    kind: str
    ms: float
    steps: Literal["all"] | Collection[int] = "all"
    bucket: int = 0
    before: str = "optimizer"
    computes: bool = False

    def applies(self, rank: int, step: int) -> bool:
        """Whether it hits this rank in this step."""
        return rank == self.rank and (self.steps == "all" or step in self.steps)

    def plant(self, program: Sequence[Segment]) -> tuple[Segment, ...]:
        """The program with the delay in its first fitting place.

        Raises:
            ValueError: there is no such place.
        """
        delay: Segment = Compute(self.ms, exact=True) if self.computes else Idle(self.ms, exact=True)
        if self.kind == "gc":
            delay = Zone("gc", "generation 2", (delay,))
        planted, done = self._plant(tuple(program), delay)
        if not done:
            raise ValueError(f"the step has no place for {self}")
        return planted

    def _plant(self, program: tuple[Segment, ...], delay: Segment) -> tuple[tuple[Segment, ...], bool]:
        for index, segment in enumerate(program):
            before, after = program[:index], program[index + 1 :]
            if self._is_after(segment):
                return (*before, delay, segment, *after), True
            if isinstance(segment, Zone):
                if self._is_around(segment):
                    return (*before, replace(segment, body=(delay, *segment.body)), *after), True
                body, done = self._plant(segment.body, delay)
                if done:
                    return (*before, replace(segment, body=body), *after), True
        return program, False

    def _is_after(self, segment: Segment) -> bool:
        """Whether the delay comes directly before `segment`."""
        if self.kind == "backward":
            return isinstance(segment, Collective) and segment.bucket == self.bucket
        return self.kind == "host" and isinstance(segment, Zone) and segment.kind == self.before

    def _is_around(self, zone: Zone) -> bool:
        """Whether the delay is the first thing in `zone`."""
        if self.kind.startswith("zone:"):
            return zone.kind == "zone" and zone.name == self.kind.removeprefix("zone:")
        return zone.kind == ("forward" if self.kind == "gc" else self.kind) and zone.kind != "backward"


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock against true time; `set_at` ms after the beginning it is set by `set_by` ms."""

    offset_ms: float = 0.0
    drift_ppm: float = 0.0
    set_by: float = 0.0
    set_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Probes:
    """Probes of the clocks: ranks of other hosts than rank 0's ask that.

    Attributes:
        every: ms from one to the next.
        there, back: ms that a request, and a reply, takes at least.
        delay: what it takes beyond that, in ms: the mean.
        served: ms from a request's coming to its reply's going.
    """

    every: float = 50.0
    there: float = 0.05
    back: float = 0.05
    delay: float = 0.1
    served: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A training. Durations are ms; `script` gives the program of a rank's step, by default a DDP step.

    Attributes:
        groups: members of process groups beside the one of all ranks.
        data_loading, forward, backward, optimizer: computing in these zones; `backward` is spread evenly over the
            buckets, each of which comes after its piece. optimizer None: there is none.
        after_buckets: what backward still computes after the last bucket. DDP fills its buckets in the order in which
            gradients come, so that hardly anything is left to do.
        host: Python between two zones.
        buckets: bytes of DDP's buckets in the order of reduction; none: no DDP.
        first_buckets: what they are in the first backward, before the rebuild.
        broadcast_buffers: forward begins with a broadcast from rank 0.
        unused_parameters: DDP looks for them, and so reduces integers after the last bucket.
        micro_steps: backward passes per step; only the last reduces.
        source: what ends a step: the last zone of this kind (`user`: a mark that the step ends with).
        delays: planted ones.
        jitter: relative standard deviation of every duration that is not exact.
        ranks_per_host, clocks: host h has `clocks[h]`; None: one host.
        probes: None: there are none.
        one_boot: all ranks say that they ran on one host, whatever clocks they read.
        windows: Kineto windows as (first step, first step that is not in it).
        export: what closing and exporting a window takes.
        latency, bytes_per_ms: of every collective.
        ends_apart: ms by which a collective's ends lie apart: the mean by which each is later than it could be.
        missing: ranks that take part and leave no recordings.
        accidents: how likely one is on a rank in a step, for scripts that have them.
        bursts: of them, per rank and step, in which another program shares the rank's core; for the same scripts.
        elements: of a rank's batch in a step, of which each sample has 100; None: the loaders tell nothing.
    """

    ranks: int = 4
    steps: int = 20
    groups: Sequence[Sequence[int]] = ()
    data_loading: float = 2.0
    forward: float = 10.0
    backward: float = 20.0
    after_buckets: float = 0.1
    optimizer: float | None = 2.0
    host: float = 0.3
    buckets: Sequence[int] = (2_000_000, 4_000_000, 1_000_000)
    first_buckets: Sequence[int] | None = None
    broadcast_buffers: bool = False
    unused_parameters: bool = False
    micro_steps: int = 1
    source: Literal["user", "optimizer", "backward"] = "optimizer"
    delays: Sequence[Delay] = ()
    jitter: float = 0.02
    seed: int = 0
    ranks_per_host: int | None = None
    clocks: Sequence[Clock] = ()
    probes: Probes | None = None
    one_boot: bool = False
    windows: Sequence[tuple[int, int]] = ((5, 10),)
    export: float = 30.0
    latency: float = 0.1
    bytes_per_ms: int = 1_000_000
    ends_apart: float = 0.0
    missing: Collection[int] = ()
    accidents: float = 0.0
    bursts: float = 0.0
    elements: Callable[[int, int], int] | None = None
    script: Callable[[World, int, int], Sequence[Segment]] = field(default_factory=lambda: ddp_step)

    def program(self, rank: int, step: int) -> tuple[Segment, ...]:
        """What a rank does in a step, delays included."""
        program = tuple(self.script(self, rank, step))
        for delay in self.delays:
            if delay.applies(rank, step):
                program = delay.plant(program)
        return program

    def host_of(self, rank: int) -> int:
        """Number of the rank's host."""
        return rank // self.ranks_per_host if self.ranks_per_host else 0

    def clock_of(self, rank: int) -> Clock:
        """The clock of the rank's host."""
        host = self.host_of(rank)
        return self.clocks[host] if host < len(self.clocks) else Clock()

    def members(self, group: str) -> list[int]:
        """Members of a process group."""
        return list(range(self.ranks)) if group == "0" else sorted(self.groups[int(group) - 1])

    def group_names(self) -> list[str]:
        """Names of all process groups, in the order in which they were made."""
        return [str(number) for number in range(len(self.groups) + 1)]


def data_loading(world: World) -> Zone:
    """A batch is fetched."""
    return Zone("data_loading", "DataLoader#0", (Idle(world.data_loading),))


def forward(world: World, step: int) -> Zone:
    """DDP's forward; in step 1 it tells the ranks of the rebuilt buckets."""
    body: list[Segment] = [Compute(world.forward)]
    if world.broadcast_buffers:
        body.insert(0, Zone("wait", "broadcast of buffers", (Collective("broadcast", bytes=1024, waits="inside"),)))
    if world.first_buckets is not None and step == 1:
        body = [Collective("broadcast", bytes=64, dtype="Int", waits="inside") for _ in range(2)] + body
    return Zone("forward", MODEL, tuple(body))


def backward(world: World, step: int, *, reduces: bool = True) -> Zone:
    """Backward; it ends when all buckets are reduced."""
    buckets = world.first_buckets if step == 0 and world.first_buckets is not None else world.buckets
    body: list[Segment] = []
    if reduces and buckets:
        for bucket, size in enumerate(buckets):
            body.append(Compute(world.backward / len(buckets)))
            body.append(Collective(bytes=size, waits="later", model=MODEL, bucket=bucket))
    else:
        body.append(Compute(world.backward))
    body.append(Compute(world.after_buckets))
    if reduces and world.unused_parameters:
        body.append(Collective(bytes=256, dtype="Int", waits="later"))
    return Zone("backward", "backward", (*body, Await()))


def optimizer(world: World) -> Zone:
    """The optimizer steps."""
    return Zone("optimizer", "SGD#0", (Compute(world.optimizer or 0.0),))


def ddp_step(world: World, rank: int, step: int) -> list[Segment]:
    """A step as DDP does it."""
    host = Idle(world.host)
    program: list[Segment] = []
    for micro_step in range(1, world.micro_steps + 1):
        last = micro_step == world.micro_steps
        program += [data_loading(world), host, forward(world, step), host, backward(world, step, reduces=last), host]
    if world.optimizer is not None:
        program += [optimizer(world), host]
    if world.source == "user":
        program.append(Zone("step", "distprof.step"))
    return program
