"""Playing a world: what happens when, in true time, and what of it can be seen.

Ranks run their programs until they block on a collective. gloo's rules decide when that is over: each group has two
workers per rank which take its collectives in the order of creation; an all-reduce ends a transfer after its last
participant started; a broadcast goes down a binomial tree, whose senders wait for their receivers.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.worlds.world import Collective, Compute, Idle, Segment, World, Zone

MS = 1_000_000
BEGIN = 1_790_857_000_000_000_000  # true time at which rank 0 starts, Unix ns
_WORKERS = 2
_ENQUEUE = 5_000, 15_000  # of a collective's operator, before and after the flight recorder's entry
_WAKE = 10_000  # until a worker begins, or a blocked thread goes on
_OPENING = 2 * MS

_OPERATORS = {
    "backward": (
        ("autograd::engine::evaluate_function: MmBackward0", False),
        ("MmBackward0", False),
        ("aten::mm", True),
    ),
    "optimizer": (("aten::_foreach_add_", True),),
}
_FORWARD = (("aten::linear", True), ("aten::addmm", False))
_ANNOTATIONS = {
    "data_loading": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "forward": "DistributedDataParallel.forward",
    "optimizer": "Optimizer.step#SGD.step",
}
_ENQUEUES = {"all_reduce": "c10d::allreduce_", "broadcast": "c10d::broadcast_", "all_gather": "c10d::allgather_"}


@dataclass(frozen=True, slots=True)
class Span:
    """A zone of the training thread."""

    kind: str
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event that Kineto records. `leaf`: an outermost operator that computes."""

    cat: str
    name: str
    thread: int
    start: int
    end: int
    leaf: bool = False
    finished: bool = True


@dataclass(slots=True)
class Work:
    """A collective on one rank. `zone`: kind of the innermost zone around its creation."""

    what: Collective
    seq: int
    created: int
    zone: str | None
    started: int | None = None
    ended: int | None = None
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A Kineto window and what it recorded."""

    start: int
    end: int
    events: list[Event]


class Group:
    """A process group: matches the works of its members and says when they start and end."""

    def __init__(self, world: World, members: list[int], jitter: random.Random) -> None:
        self.members = members
        self._world = world
        self._jitter = jitter
        self._works: dict[int, list[Work]] = {rank: [] for rank in members}
        self._over = dict.fromkeys(members, 0)
        self._free = {rank: [0] * _WORKERS for rank in members}
        self._transfers: list[int] = []
        self._first_open = 0

    def add(self, rank: int, what: Collective, created: int, zone: str | None) -> Work:
        """A member creates its next collective.

        Raises:
            ValueError: another member created another one at this place.
        """
        works = self._works[rank]
        work = Work(what, len(works) + 1, created, zone)
        works.append(work)
        if len(self._transfers) < work.seq:
            ms = what.transfer
            if ms is None:
                ms = self._world.latency + (what.bytes or 0) / self._world.bytes_per_ms
            self._transfers.append(_vary(ms, self._world.jitter, self._jitter))
        for other in self.members:
            theirs = self._works[other][work.seq - 1 : work.seq]
            if theirs and theirs[0].what.kind != what.kind:
                raise ValueError(f"rank {rank} creates {what}, rank {other} {theirs[0].what}")
        self._settle()
        return work

    def _settle(self) -> None:
        """Find all starts and ends that follow from what is known."""
        for place in range(self._first_open, len(self._transfers)):
            works = {rank: works[place] for rank, works in self._works.items() if len(works) > place}
            for rank, work in works.items():
                if work.started is None and self._over[rank] == place:
                    free = self._free[rank]
                    work.worker = free.index(min(free))
                    work.started = max(work.created, free[work.worker]) + _WAKE
            for rank, work in works.items():
                if work.started is not None and work.ended is None:
                    work.ended = self._end(rank, works, place)
                    if work.ended is not None:
                        self._free[rank][work.worker] = work.ended
                        self._over[rank] += 1
            if place == self._first_open and all(over > place for over in self._over.values()):
                self._first_open += 1

    def _end(self, rank: int, works: dict[int, Work], place: int) -> int | None:
        """The end on a rank: a transfer after the start of those that it needs."""
        needed = self._needed(rank, works[rank].what)
        starts = [works[other].started for other in needed if other in works]
        if len(starts) < len(needed) or None in starts:
            return None
        mean = self._world.ends_apart
        apart = round(self._jitter.expovariate(1) * mean * MS) if mean else 0
        return max(start for start in starts if start is not None) + self._transfers[place] + apart

    def _needed(self, rank: int, what: Collective) -> list[int]:
        """Whose starts the end on a rank comes after."""
        root = what.root or 0
        if what.kind == "broadcast":
            return self._in_tree(rank, root)
        if what.kind == "scatter":
            return [rank, self.members[root]]
        if what.kind in ("reduce", "gather") and self.members[root] != rank:
            return [rank]
        return self.members

    def _in_tree(self, rank: int, root: int) -> list[int]:
        """A rank, those through whom a broadcast comes down to it from the root, and those it sends to."""
        powers = [1 << bit for bit in range(len(self.members).bit_length())]
        place = (self.members.index(rank) - root) % len(self.members)
        places = [place, *(place + power for power in powers if place < power < len(self.members) - place)]
        while place:
            place -= max(power for power in powers if power <= place)
            places.append(place)
        return [self.members[(place + root) % len(self.members)] for place in places]


@dataclass(slots=True)
class Rank:
    """What one rank did."""

    number: int
    zones: list[Span] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    first_zone: int | None = None

    @property
    def training_thread(self) -> int:
        """Its thread id in Kineto's traces."""
        return 1000 * (self.number + 1)

    def step_at(self, time: int) -> int | None:
        """The step that a time falls into."""
        if self.first_zone is None or time < self.first_zone:
            return None
        step = bisect.bisect_right(self.boundaries, time)
        return step if step < len(self.boundaries) else None


@dataclass(frozen=True, slots=True)
class Played:
    """A world that has been played."""

    world: World
    ranks: list[Rank]


def play(world: World) -> Played:
    """Play a world to its end.

    Raises:
        ValueError: ranks wait for each other for ever, or create different collectives.
    """
    jitter = random.Random(world.seed)
    groups = {name: Group(world, world.members(name), jitter) for name in world.group_names()}
    players = [_Player(world, rank, groups) for rank in range(world.ranks)]
    lives = {player.rank.number: player.live() for player in players}
    blocked: dict[int, Work] = {}
    while lives:
        before = sum(len(player.rank.works) for player in players), len(blocked)
        for number in [number for number in lives if number not in blocked or blocked[number].ended is not None]:
            blocked.pop(number, None)
            for work in lives[number]:
                if work.ended is None:
                    blocked[number] = work
                    break
            else:
                del lives[number]
        if lives and before == (sum(len(player.rank.works) for player in players), len(blocked)):
            raise ValueError(f"ranks {sorted(blocked)} wait for ever: {blocked}")
    for player in players:
        player.add_worker_events()
    return Played(world, [player.rank for player in players])


def _vary(ms: float, jitter: float, source: random.Random) -> int:
    return round(ms * MS * max(0.2, 1.0 + jitter * source.gauss(0.0, 1.0)))


class _Player:
    """One rank's training thread."""

    def __init__(self, world: World, number: int, groups: dict[str, Group]) -> None:
        self.rank = Rank(number)
        self._world = world
        self._groups = groups
        self._jitter = random.Random(f"{world.seed} {number}")
        self._now = BEGIN + number * 50_000
        self._kinds: list[str] = []
        self._last_end: dict[str, int] = {}
        self._unawaited: list[Work] = []
        self._opened: int | None = None
        self._events: list[Event] = []

    def live(self) -> Iterator[Work]:
        """Run the whole training; yields each collective that the thread blocks on and goes on when that is over."""
        world, number = self._world, self.rank.number
        self.rank.begin = self._now
        yield from self._run([Collective("broadcast", bytes=10_000, waits="inside")])
        yield from self._run([Zone("loader_start", "DataLoader#0", (Idle(5.0),))])
        for step in range(world.steps):
            self._open_and_close(step)
            program = world.program(number, step)
            begin = self._now
            yield from self._run(program)
            kind = "step" if world.source == "user" else world.source
            self.rank.boundaries.append(self._last_end[kind])
            if self._opened is not None:
                self._event("user_annotation", f"ProfilerStep#{step}", begin, self._now)
        self._open_and_close(world.steps)
        yield from self._run([Zone("loader_end", "DataLoader#0", (Idle(0.5),))])
        self.rank.end = self._now

    def _open_and_close(self, step: int) -> None:
        """What happens to the windows between the step before and this one."""
        for first, stop in self._world.windows:
            if self._opened is not None and step in (stop, self._world.steps):
                self.rank.windows.append(Window(self._opened, self._now, self._events))
                self._opened, self._events = None, []
                self._pass(self._world.export, "window export")
            if step == first and step < self._world.steps:
                self._pass(_OPENING / MS, "window open")
                self._opened = self._now
                self._now += _WAKE

    def _pass(self, ms: float, own: str) -> None:
        start = self._now
        self._now += round(ms * MS)
        self._record("own", own, start)

    def _record(self, kind: str, name: str, start: int) -> None:
        """A zone ends now."""
        self.rank.zones.append(Span(kind, name, start, self._now))
        self._last_end[kind] = self._now
        self.rank.first_zone = min(start, self.rank.first_zone or start)

    def _run(self, segments: Sequence[Segment]) -> Iterator[Work]:
        for segment in segments:
            start = self._now
            if isinstance(segment, Compute):
                self._now += self._duration(segment)
                for name, leaf in self._operators():
                    self._event("cpu_op", name, start, self._now, leaf=leaf)
            elif isinstance(segment, Idle):
                self._now += self._duration(segment)
            elif isinstance(segment, Zone):
                self._kinds.append(segment.kind)
                yield from self._run(segment.body)
                self._kinds.pop()
                self._record(segment.kind, segment.name, start)
                if segment.kind in _ANNOTATIONS:
                    self._event("user_annotation", _ANNOTATIONS[segment.kind], start, self._now)
            elif isinstance(segment, Collective):
                work = self._create(segment)
                if segment.waits == "later":
                    self._unawaited.append(work)
                else:
                    yield from self._block([work], zone=segment.waits == "zone")
            else:
                yield from self._block(self._unawaited, zone=segment.zone)
                self._unawaited = []

    def _duration(self, segment: Compute | Idle) -> int:
        return _vary(segment.ms, 0.0 if segment.exact else self._world.jitter, self._jitter)

    def _operators(self) -> tuple[tuple[str, bool], ...]:
        """Operators of a computation, the outer ones first, and whether they are leaves."""
        return next((_OPERATORS[kind] for kind in reversed(self._kinds) if kind in _OPERATORS), _FORWARD)

    def _create(self, collective: Collective) -> Work:
        start = self._now
        created = start + _ENQUEUE[0]
        self._now = created + _ENQUEUE[1]
        zone = self._kinds[-1] if self._kinds else None
        work = self._groups[collective.group].add(self.rank.number, collective, created, zone)
        self.rank.works.append(work)
        if "backward" in self._kinds:
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            self._event("cpu_op", name, start, self._now)
        self._event("cpu_op", _ENQUEUES.get(collective.kind, f"c10d::{collective.kind}_"), start, self._now)
        return work

    def _block(self, works: Sequence[Work], *, zone: bool) -> Iterator[Work]:
        start = self._now
        for work in works:
            yield work
            assert work.ended is not None
            self._now = max(self._now, work.ended + _WAKE)
        if zone:
            self._record("wait", "Work.wait", start)

    def _event(self, cat: str, name: str, start: int, end: int, *, leaf: bool = False) -> None:
        if self._opened is not None and start >= self._opened:
            self._events.append(Event(cat, name, self.rank.training_thread, start, end, leaf))

    def add_worker_events(self) -> None:
        """Add the spans of gloo's workers to the windows."""
        names = [name for name in self._groups if self.rank.number in self._groups[name].members]
        for window in self.rank.windows:
            for work in self.rank.works:
                if work.started is not None and window.start <= work.started < window.end:
                    thread = self.rank.training_thread + 10 + _WORKERS * names.index(work.what.group) + work.worker
                    finished = work.ended is not None and work.ended <= window.end
                    end = work.ended if work.ended is not None and finished else window.end
                    name = f"gloo:{work.what.kind}"
                    event = Event("user_annotation", name, thread, work.started, end, finished=finished)
                    window.events.append(event)
