"""Who the others waited for, where that rank lost the time, and how much.

A rank is late if its own time per step (net of waits) exceeds what is usual for its role by more than the noise: in
most steps, in some, or in turn with other ranks. So the culprit is found and not the victim: a victim's long backward
is wait, which is not its own time; nor is it what a rank waited for in another group before it came late to this one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.analyze import blame
from distprof.analyze.evidence import Evidence, of_run
from distprof.analyze.hosts import cpus_per_rank
from distprof.analyze.inputs import Inputs
from distprof.analyze.lateness import Floats, Lateness, lateness
from distprof.analyze.listed import ranks
from distprof.analyze.patterns import FEWEST_LATE, Late, for_a_while, in_a_row, in_proportion, late_ranks
from distprof.analyze.replay import Replayed, replay
from distprof.analyze.roles import Roles, roles
from distprof.analyze.steady import FEWEST_STEPS, MS, on_device, prefer, times_of_steps
from distprof.analyze.waits import ONE, UNBOUND, waits_for
from distprof.clock.compare import Confidence, confidence
from distprof.result import NotObserved, Straggler, Stragglers
from distprof.trace import intervals

_LISTED_STEPS = 100
_A_WHILE = "in all places in proportion, as on a core that other programs use for a while"
_CROWDED = "the host has fewer than two CPUs for each rank and its threads, which take them from each other"
_TO_ITSELF = 2  # CPUs: as long as a rank's other threads share one, nothing takes that of its training from it
_NO_PEERS = "they may do other work, as stages of a pipeline"
_NOTHING = 0.1  # of its delay a rank costs the others, if that is no delay to them
_SENT = "ranks also send each other data point to point, and who waited for whom in that is not known"
_FEW_STEPS = 10  # in which half of them may be late by chance


def stragglers(inputs: Inputs) -> tuple[Stragglers, list[NotObserved]]:
    """Judge every rank of a run against its peers."""
    return judge(of_run(inputs))


def judge(evidence: Evidence) -> tuple[Stragglers, list[NotObserved]]:
    """Judge every rank against its peers."""
    tables, own = evidence.tables, evidence.own
    missing = sorted(set(range(tables.world_size)) - set(own.ranks or tables.ranks))
    reason = _why_undecided(evidence)
    if reason is not None:
        if missing and tables.ranks:
            reason += f"; {ranks(missing)} left no recording of steps and may be who the others waited for"
        return _section(evidence, "undecided", reason), []
    if tables.world_size == 1:
        return _section(evidence, "none", "there is one rank, and nobody waits for it"), []

    found, peers = _lateness(evidence)
    cpus = cpus_per_rank(tables)
    crowded = np.array([cpus.get(rank, _TO_ITSELF) < _TO_ITSELF for rank in own.ranks], dtype=np.bool_)
    culprits = _with_one_reason(
        [
            _Culprit.of(evidence, found, late, peers.members)
            for late in late_ranks(found, peers.members, evidence.step, crowded)
        ]
    )
    # More elements in a batch make everything longer as well.
    slower = [each for each in culprits if each.lost.cause != "uneven_work"]
    shared = [each for each in slower if for_a_while(found, each.late, evidence.step)]
    culprits = [each for each in culprits if each not in shared]
    named = [culprit for culprit in culprits if culprit.stands_on is not None]
    steps = len(own.steps)
    if named:
        why = _why(found, named, steps)
        if missing:
            why += f"; {ranks(missing)} left no recording of steps and may be another"
        section, unseen = _told(evidence, found, named, why)
        if not peers.certain and all(_costs_nothing(evidence, row) for row in section.ranks):
            late = ranks(sorted(row.rank for row in section.ranks))
            why = f"{late} took longer than others that call the same collectives, and nobody waited: {_NO_PEERS}"
            return _section(evidence, "undecided", why, found), []
        return section, unseen
    if shared:
        late = ranks(sorted(each.rank for each in shared))
        most = max(int(each.late.steps.sum()) for each in shared)
        why = f"{late} took longer in up to {most} of {steps} steps, but {_A_WHILE}"
        return _section(evidence, "undecided", why, found), []
    if culprits:
        late = ranks(sorted(culprit.rank for culprit in culprits))
        why = f"the delay of {late} is less than what the clocks of the ranks may be wrong by"
        return _section(evidence, "undecided", why, found), []
    if missing:
        why = f"{ranks(missing)} left no recording of steps and may be who the others waited for"
        return _section(evidence, "undecided", why, found), []
    if alone := [own.ranks[place] for place in peers.alone]:
        why = (
            f"{ranks(alone)} share{'' if len(alone) > 1 else 's'} no work with any other rank that the recordings "
            "show, as stages of a pipeline: there is nobody to compare with"
        )
        return _section(evidence, "undecided", why, found), []
    if alone := [own.ranks[members[0]] for members in peers.members if len(members) == 1]:
        why = f"{ranks(alone)} had other collectives than all others, so that there is nobody to compare with"
        return _section(evidence, "undecided", why, found), []
    ms = found.noise / MS
    longer = (np.median(found.delays, axis=1) > found.noise) & (found.holds_up > found.noise)
    by_chance = [own.ranks[index] for index in np.flatnonzero(longer)]
    if by_chance and steps < _FEW_STEPS:
        why = f"{ranks(by_chance)} took longer than the peers, but not in most of {steps} steps by more than chance"
        return _section(evidence, "undecided", why, found), []
    if found.noise > evidence.step:
        why = f"{steps} steps tell too little: by chance a rank may take {ms:.1f} ms longer in them, more than a step"
        return _section(evidence, "undecided", why, found), []
    why = f"no rank's own time per step exceeds its peers' by more than {ms:.1f} ms in {steps} steps"
    if once := [own.ranks[index] for index in np.flatnonzero(in_a_row(found))]:
        why += f"; {ranks(once)} took longer in several steps in a row, which may have happened once"
    elif some := [own.ranks[late.index] for late in late_ranks(found, peers.members, evidence.step)]:
        why += f"; {ranks(some)} took longer in some of them, by amounts that differ: {_CROWDED}"
    return _section(evidence, "none", why, found), []


def extra_time(inputs: Inputs) -> Floats:
    """Own time of each rank in each steady step less what is usual for its role, in ns; shape (R, S)."""
    return _lateness(of_run(inputs))[0].delays


def _lateness(evidence: Evidence) -> tuple[Lateness, Roles]:
    """How late the ranks were, and which of them have one role."""
    own, peers = evidence.own, roles(evidence)
    places = list(blame.places(own).values())
    times = np.stack([own.own[:, :, zones].sum(axis=2) for zones in places], axis=2).astype(np.float64)
    return lateness(times, peers.members, evidence.step), peers


@dataclass(frozen=True, slots=True, eq=False)
class _Culprit:
    """A late rank. `delay` is in ns, in the steps that count; `cost` is the same over all steps; `extra` in each."""

    late: Late
    rank: int
    role: list[int]
    lost: blame.Lost
    delay: float
    cost: float
    extra: Floats
    stands_on: Confidence | None

    @classmethod
    def of(cls, evidence: Evidence, found: Lateness, late: Late, peers: list[list[int]]) -> _Culprit:
        own = evidence.own
        role = next(members for members in peers if late.index in members)
        lost = blame.where_lost(own, role, late)
        persistent = late.pattern == "persistent"
        delays = found.delays[late.index] if persistent else np.maximum(lost.extra, 0.0)
        delay = float(np.median(delays[late.counted]))
        # In most steps: the same extra in each. What is beyond it in one of them is noise.
        extra = np.full(len(delays), delay) if persistent else np.where(late.steps, delays, 0.0)
        if blame.uneven_work(own, evidence.tables.batches, role, late, lost):
            lost = replace(lost, cause="uneven_work")
        return cls(
            late=late,
            rank=own.ranks[late.index],
            role=role,
            lost=lost,
            delay=delay,
            cost=float(extra.mean()),
            extra=extra,
            stands_on=confidence(evidence.clock, delay, own.ranks, device=evidence.device),
        )


def _with_one_reason(culprits: list[_Culprit]) -> list[_Culprit]:
    """Ranks that seem to take turns, and each for a reason of its own, are late by themselves."""
    turning = [each for each in culprits if each.late.pattern == "rotating"]
    if len({each.lost.cause for each in turning}) <= 1:
        return culprits
    others = [each for each in culprits if each not in turning]
    often = [each for each in turning if each.late.steps.sum() >= FEWEST_LATE]
    return others + [replace(each, late=replace(each.late, pattern="intermittent")) for each in often]


def _told(evidence: Evidence, found: Lateness, named: list[_Culprit], why: str) -> tuple[Stragglers, list[NotObserved]]:
    """The section that names them, the costliest first, with what would be had they lost no time."""
    own = evidence.own
    named = sorted(named, key=lambda culprit: -culprit.cost)
    kept = {each.late.index: blame.kept(own, each.role, each.late, each.extra) for each in named}
    known = all(step in evidence.bound for step in own.steps) and not evidence.exchanges
    unknown = _SENT if evidence.exchanges else UNBOUND
    replayed = None
    if known:
        changes = [*({index: share} for index, share in kept.items()), kept]
        replayed = replay(evidence.tables, own, evidence.waits, evidence.matched, changes)
    rows = [_row(evidence, each, replayed, number) for number, each in enumerate(named)]
    section = _section(evidence, "straggler", why, found)
    saved = None if replayed is None else _per_step(evidence, replayed, len(named))
    missing = []
    if unbound := [row.rank for row in rows if row.imposed_wait is None]:
        missing.append(NotObserved("stragglers.ranks.imposed_wait", unbound, unknown))
    if replayed is None:
        unplayed = [row.rank for row in rows]
        missing.append(NotObserved("stragglers.ranks.saved_if_fixed", unplayed, unknown))
        missing.append(NotObserved("stragglers.saved_if_all_fixed", None, unknown))
    return replace(section, ranks=rows, saved_if_all_fixed=saved), missing


def _row(evidence: Evidence, culprit: _Culprit, replayed: Replayed | None, number: int) -> Straggler:
    own, late, rank = evidence.own, culprit.late, culprit.rank
    steps = [step for step, is_late in zip(own.steps, late.steps.tolist(), strict=True) if is_late]
    counted = [step for step, counts in zip(own.steps, late.counted.tolist(), strict=True) if counts]
    matched, via = evidence.matched, list[int]()
    if replayed is not None:
        handed = blame.handed_on(replayed, number, rank, culprit.delay)
        via = blame.through(handed, counted)
        taken = handed.select(*ONE, "last_rank", culprit=pl.lit(rank, pl.Int32))
        matched = matched.join(taken, on=[*ONE, "last_rank"], how="left").with_columns(
            last_rank=pl.coalesce("culprit", "last_rank")
        )
    imposed = _imposed_waits(evidence, matched, rank, counted)
    arrivals = _last_arrivals(evidence)
    last = arrivals.filter(pl.col("last_rank") == rank)
    groups = last.group_by("group").len().sort("len", "group", descending=[True, False])["group"]
    return Straggler(
        rank=rank,
        cause=culprit.lost.cause,
        zone=culprit.lost.zone,
        pattern=late.pattern,
        steps=steps[:_LISTED_STEPS],
        group=int(groups[0]) if len(groups) else None,
        via=via,
        delay=culprit.delay / MS,
        imposed_wait=None if evidence.exchanges or not imposed else float(np.mean(imposed)) / MS,
        last_arrivals=last.height,
        of_collectives=arrivals.height,
        saved_if_fixed=None if replayed is None else _per_step(evidence, replayed, number),
        confidence=culprit.stands_on,  # type: ignore[arg-type]
    )


def _per_step(evidence: Evidence, replayed: Replayed, change: int) -> float:
    """What a change saves, in ms per step."""
    return max(0.0, float(replayed.saved[change])) / len(evidence.own.steps) / MS


def _why(found: Lateness, named: list[_Culprit], steps: int) -> str:
    parts = []
    if any(culprit.late.pattern == "persistent" for culprit in named):
        parts.append(f"by more than {found.noise / MS:.1f} ms in most of {steps} steps")
    if any(culprit.late.pattern != "persistent" for culprit in named):
        parts.append(
            f"by more than {found.noise_of_a_step / MS:.1f} ms in some of {steps} steps, more often than chance"
        )
    why = f"own time per step exceeds the peers' {' and '.join(parts)}"
    persistent = [each for each in named if each.late.pattern == "persistent" and each.lost.cause != "uneven_work"]
    if slower := sorted(each.rank for each in persistent if in_proportion(found, each.late)):
        why += f"; {ranks(slower)} took longer in all places in proportion, as on a slower or shared processor"
    return why


def _why_undecided(evidence: Evidence) -> str | None:
    tables, own = evidence.tables, evidence.own
    if not tables.ranks:
        return "no rank left a recording"
    if tables.step_source == "none":
        return "no step boundary was found"
    if len(own.steps) == 1:
        return f"one step only: 1 is steady on all ranks, and {FEWEST_STEPS} are needed"
    if len(own.steps) < FEWEST_STEPS:
        inside = " and inside the windows" if evidence.basis == "window" else ""
        return f"too few steps: {len(own.steps)} steady{inside} on all ranks, and {FEWEST_STEPS} are needed"
    if on_device(tables) and not evidence.device:
        return (
            "the ranks train on a device and no window holds its kernels; the host's times do not tell who was waited "
            "for"
        )
    if evidence.unknown is not None:
        return evidence.unknown
    if tables.world_size > 1 and evidence.clock.verdict == "unaligned":
        return "the ranks' clocks are not aligned"
    if tables.world_size > 1 and not evidence.calls.filter("binds").height:
        return "no collective was seen in which ranks wait for each other"
    return None


def _section(evidence: Evidence, verdict: str, why: str, found: Lateness | None = None) -> Stragglers:
    return Stragglers(
        basis=evidence.basis,
        steps_used=len(evidence.own.steps),
        verdict=verdict,  # type: ignore[arg-type]
        why=why,
        noise=None if found is None else found.noise / MS,
        noise_of_a_step=None if found is None else found.noise_of_a_step / MS,
        ranks=[],
    )


def _imposed_waits(evidence: Evidence, matched: pl.DataFrame, culprit: int, counted: list[int]) -> list[float]:
    """Wait in each of the steps that count that each other rank had for `culprit`, united, in ns: each one's mean.

    None are known where it is not known who waited for whom.
    """
    used, bound = prefer(counted, evidence.bound)
    per_rank = []
    for rank in evidence.own.ranks:
        if rank == culprit:
            continue
        steps = times_of_steps(evidence.tables, rank, used)
        waited = waits_for(matched, evidence.waits[rank], rank, culprit)
        per_rank.append(float(np.mean(intervals.covered(waited, steps[:, 0], steps[:, 1]))))
    return per_rank if bound else []


def _costs_nothing(evidence: Evidence, row: Straggler) -> bool:
    """Whether nobody is known to wait for a rank, and nothing would be saved without what it takes longer."""
    if row.imposed_wait is not None:
        return max(row.imposed_wait, row.saved_if_fixed or 0.0) < _NOTHING * row.delay
    imposed = _imposed_waits(evidence, evidence.matched, row.rank, row.steps)
    return bool(imposed) and max(imposed) / MS < _NOTHING * row.delay


def _last_arrivals(evidence: Evidence) -> pl.DataFrame:
    """Who was the last to arrive: `group`, `step`, `last_rank`, one row for each step in which a group met.

    Of a group's collectives in a step the one counts that its members waited for the longest in all. So one delay is
    one late arrival, whether one collective or eight asynchronous ones follow it.
    """
    return (
        evidence.calls.filter("binds")
        .drop_nulls("binds_until")
        .with_columns(wait=pl.col("binds_until") - pl.col("arrived"))
        .group_by("group", "seq", "kind")
        .agg(pl.col("step").min(), pl.col("last_rank").sort_by("wait").last(), pl.col("wait").sum())
        .sort("wait", "seq")
        .group_by("group", "step", maintain_order=True)
        .agg(pl.col("last_rank").last())
        .sort("group", "step")
    )
