"""The attempts of a run that a timeline shows: the one that was read, and the others on its clock as far as that can
be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distprof.clock.align import align
from distprof.clock.shift import Correction, Corrections, corrections
from distprof.result import Clock, Finding, Result
from distprof.trace.load import Run, load_others

# Who reads one clock: the ranks of a host since it was booted.
_Host = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlacedAttempt:
    """An attempt to be drawn.

    Attributes:
        run: its recordings, on the clocks of the ranks' hosts.
        clocks: what brings them on the timeline's clock.
        hosts: what they are called, as far as that is known.
        alone: ranks whose hosts' clocks nothing compares with the others': their times stay as they are.
        comparable: whether arrivals of its ranks at collectives can be compared.
        findings: what was found about it.
    """

    run: Run
    clocks: Corrections
    hosts: Mapping[int, str]
    alone: frozenset[int]
    comparable: bool
    findings: Sequence[Finding] = ()

    @property
    def is_one_of_several(self) -> bool:
        """Whether its number is worth telling."""
        return len(self.run.attempts) > 1


def placed_attempts(run: Run, result: Result) -> list[PlacedAttempt]:
    """The attempt that was read and analysed, then the others that left recordings, in their order."""
    by = corrections(result.clock)
    hosts = {row.rank: row.host for row in result.ranks if row.host}
    read = PlacedAttempt(run, by, hosts, _alone(result.clock), result.clock.verdict != "unaligned", result.findings)
    known = {
        host: by.of(rank)
        for rank in run.tables.ranks
        if rank not in read.alone and (host := _host(run, rank)) is not None
    }
    return [read, *(_beside(other, known) for other in load_others(run))]


def _alone(clock: Clock) -> frozenset[int]:
    return frozenset(row.rank for row in clock.ranks if row.offset_us is None)


def _host(run: Run, rank: int) -> _Host | None:
    facts = run.tables.facts.get(rank, {})
    host, boot = facts.get("host"), facts.get("boot_id")
    return (host, boot) if isinstance(host, str) and isinstance(boot, str) else None


def _beside(run: Run, known: Mapping[_Host, Correction]) -> PlacedAttempt:
    """An attempt on the clock of another one.

    Args:
        known: the clocks of that one's hosts. A host that is not among them is brought there by the attempt's own
            alignment with one that is.
    """
    clock, _ = align(run.tables, recorded=run.manifest is not None)
    own, unknown = corrections(clock), _alone(clock)
    hosts = {rank: host for rank in run.tables.ranks if (host := _host(run, rank)) is not None}
    start = int(run.tables.zones["start"].min() or 0)  # type: ignore[arg-type]
    behind = {
        rank: _at(known[host], start) - _at(own.of(rank), start)
        for rank, host in hosts.items()
        if host in known and rank not in unknown
    }
    on_host: dict[int, Correction] = {}
    on_device: dict[int, Correction] = {}
    for rank in run.tables.ranks:
        later = behind.get(rank, next(iter(behind.values()), None))
        if hosts.get(rank) in known:
            on_host[rank] = known[hosts[rank]]
        elif rank not in unknown and later is not None:
            on_host[rank] = _later(own.of(rank), later)
        if rank in own.devices and rank in on_host and later is not None:
            on_device[rank] = _later(own.devices[rank], later)
    names = {
        rank: host for rank in run.tables.ranks if isinstance(host := run.tables.facts.get(rank, {}).get("host"), str)
    }
    alone = frozenset(run.tables.ranks) - on_host.keys()
    comparable = not alone or clock.verdict == "same_host"
    return PlacedAttempt(run, Corrections(on_host, on_device), names, alone, comparable)


def _at(correction: Correction, time: int) -> int:
    return int(correction(np.array([time], dtype=np.int64))[0])


def _later(correction: Correction, by: int) -> Correction:
    """A correction that leads to times so many ns later."""
    return replace(correction, offset_ns=correction.offset_ns - by, origin_ns=correction.origin_ns + by)
