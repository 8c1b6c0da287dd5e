"""Traces of one run: windows, attempts and runs in one folder told apart, and different jobs refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from distprof.run.manifest import RunDirectoryError
from distprof.trace.kineto import Trace
from distprof.trace.notes import Note

_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Owned:
    """A trace and its rank, and from when to when it was recorded (Unix ns)."""

    trace: Trace
    rank: int
    start: int
    end: int

    @property
    def process(self) -> int | None:
        """Who recorded it, by process id."""
        processes = self.trace.processes
        return processes[0] if processes else None


@dataclass(slots=True)
class _Attempt:
    """Traces that one launch of a job left: one process per rank."""

    world_size: int | None
    ranks: dict[int, list[Owned]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(one.end for traces in self.ranks.values() for one in traces)

    @property
    def start(self) -> int:
        return min(one.start for traces in self.ranks.values() for one in traces)

    def takes(self, one: Owned) -> bool:
        """Whether a later trace can be of this attempt, too."""
        size = one.trace.header.world_size
        if None not in (size, self.world_size) and size != self.world_size:
            return False
        if one.start - self.end > _HOUR_NS:
            return False
        return one.rank not in self.ranks or self.ranks[one.rank][0].process == one.process

    def add(self, one: Owned) -> None:
        self.ranks.setdefault(one.rank, []).append(one)
        self.world_size = self.world_size or one.trace.header.world_size

    @property
    def is_complete(self) -> bool:
        return self.world_size is not None and len(self.ranks) == self.world_size


def select(traces: Sequence[Owned]) -> tuple[dict[int, list[Owned]], list[Note]]:
    """The traces of the last complete attempt, or else of the last one with the most ranks: rank -> its windows.

    Raises:
        RunDirectoryError: they are of different jobs.
    """
    notes: list[Note] = []
    attempts: list[_Attempt] = []
    for one in _without_copies(traces, notes):
        attempt = next((attempt for attempt in reversed(attempts) if attempt.takes(one)), None)
        if attempt is None:
            attempts.append(attempt := _Attempt(one.trace.header.world_size))
        attempt.add(one)
    most = max(len(attempt.ranks) for attempt in attempts)
    complete = [attempt for attempt in attempts if attempt.is_complete]
    chosen = (complete or [attempt for attempt in attempts if len(attempt.ranks) == most])[-1]
    for other in attempts:
        if other is not chosen:
            _check_same_job(chosen, other)
            text = (
                "an earlier attempt or run of the job"
                if other.start < chosen.start
                else "a later attempt, of fewer ranks"
            )
            notes += [
                Note(rank, one.trace.path, None, f"{text}: it is not in this report; give it by itself")
                for rank, own in sorted(other.ranks.items())
                for one in own
            ]
    return chosen.ranks, notes


def _check_same_job(a: _Attempt, b: _Attempt) -> None:
    one, other = (next(iter(attempt.ranks.values()))[0].trace.path for attempt in (a, b))
    shared = sorted(set(a.ranks) & set(b.ranks))
    if not shared:
        if a.world_size != b.world_size:
            why = f"world sizes {a.world_size} and {b.world_size}"
        else:
            why = "they were recorded more than an hour apart"
        raise RunDirectoryError(f"{one} and {other} are of different jobs ({why}): give the traces of one job")
    for rank in shared:
        for mine in a.ranks[rank]:
            for theirs in b.ranks[rank]:
                if mine.start < theirs.end and theirs.start < mine.end:
                    raise RunDirectoryError(
                        f"{mine.trace.path} and {theirs.trace.path} were recorded at one time by two processes that "
                        f"both were rank {rank}: they are of different jobs; give the traces of one job"
                    )


def _without_copies(traces: Sequence[Owned], notes: list[Note]) -> list[Owned]:
    """In the order of time; of two traces that one process recorded at one time, the one with more events."""
    kept: list[Owned] = []
    for one in sorted(traces, key=lambda one: (-len(one.trace.events), str(one.trace.path))):
        twin = next((other for other in kept if _is_twin(one, other)), None)
        if twin is None:
            kept.append(one)
        else:
            text = f"the same window of the same process stands in {twin.trace.path.name}: it was left out"
            notes.append(Note(one.rank, one.trace.path, None, text))
    return sorted(kept, key=lambda one: (one.start, one.rank))


def _is_twin(a: Owned, b: Owned) -> bool:
    return (a.rank, a.process) == (b.rank, b.process) and a.start < b.end and b.start < a.end


def windows_of(ranks: dict[int, list[Owned]]) -> dict[int, dict[int, Owned]]:
    """Number each rank's windows so that those of one time have one number: rank -> window -> trace."""
    reference = max(ranks.values(), key=len)
    middles = [(one.start + one.end) // 2 for one in reference]
    numbered: dict[int, dict[int, Owned]] = {}
    for rank, own in sorted(ranks.items()):
        free = list(range(len(middles)))
        numbered[rank] = {}
        for one in own:
            nearest = min(free, key=lambda number: abs(middles[number] - (one.start + one.end) // 2))
            free.remove(nearest)
            numbered[rank][nearest] = one
    return numbered
