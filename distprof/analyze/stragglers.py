"""Who the others waited for, where that rank lost the time, and how much.

A rank is a straggler if its own time per step (net of waits) exceeds its peers' in most steps by more than the
noise. So the culprit is found and not the victim: a victim's long backward is wait, which is not its own time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.own_time import HOST, OwnTime
from distprof.analyze.steady import FEWEST_STEPS, MS, times_of_steps
from distprof.analyze.waits import SYMMETRIC
from distprof.result import Cause, NotObserved, Straggler, Stragglers
from distprof.trace import intervals

SMALLEST_SHARE = 0.05  # of the step: below that nobody is named, however steady it is
MOST_STEPS = 0.6  # of the steps must show the delay for it to be persistent
_SIGMAS = 3.0
_LISTED_STEPS = 100

Floats = npt.NDArray[np.float64]

_CAUSES: dict[str, Cause] = {
    "data_loading": "data_loading",
    "loader_start": "data_loading",
    "loader_end": "data_loading",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "gc": "gc",
    "zone": "zone",
    "host": "host",
}


def stragglers(inputs: Inputs) -> tuple[Stragglers, list[NotObserved]]:
    """Judge every rank against its peers."""
    tables, own = inputs.tables, inputs.own
    missing = sorted(set(range(tables.world_size)) - set(own.ranks))
    reason = _why_undecided(inputs)
    if reason is not None:
        return _section("undecided", reason, own), []
    if tables.world_size == 1:
        return _section("none", "there is one rank, and nobody waits for it", own), []

    delays = _delays(inputs)
    noise = _noise(inputs, delays)
    medians = np.median(delays, axis=1)
    named = [
        index
        for index in range(len(own.ranks))
        if medians[index] > noise and np.mean(delays[index] > noise / 2) >= MOST_STEPS
    ]
    named.sort(key=lambda index: -medians[index])
    rows = [_describe(inputs, delays, index, noise) for index in named]
    ms = noise / MS
    if rows:
        why = f"own time per step exceeds the peers' by more than {ms:.1f} ms in most of {len(own.steps)} steps"
        section = _section("straggler", why, own, noise=ms, rows=rows)
    elif missing:
        why = f"rank {', '.join(map(str, missing))} left no recording and may be the one the others waited for"
        section = _section("undecided", why, own, noise=ms)
    else:
        why = f"no rank's own time per step exceeds its peers' by more than {ms:.1f} ms in {len(own.steps)} steps"
        section = _section("none", why, own, noise=ms)
    unreplayed = [NotObserved("stragglers.ranks.saved_if_fixed", named, "no replay in this version")] if rows else []
    return section, unreplayed


def _why_undecided(inputs: Inputs) -> str | None:
    tables, own = inputs.tables, inputs.own
    if not own.ranks:
        return "no rank left a recording"
    if tables.step_source == "none":
        return "no step boundary was found"
    if len(own.steps) < FEWEST_STEPS:
        return f"{len(own.steps)} steps are steady on all ranks, and {FEWEST_STEPS} are needed"
    if tables.world_size > 1 and inputs.clock.verdict == "unaligned":
        return "the ranks' clocks are not aligned"
    if len(own.ranks) > 1 and not _synchronisations(inputs).height:
        return "no collective was seen in which all ranks wait for each other"
    return None


def _section(
    verdict: str, why: str, own: OwnTime, *, noise: float | None = None, rows: list[Straggler] | None = None
) -> Stragglers:
    return Stragglers(
        basis="zones",
        steps_used=len(own.steps),
        verdict=verdict,  # type: ignore[arg-type]
        why=why,
        noise=noise,
        ranks=rows or [],
    )


def _peers(inputs: Inputs) -> list[list[int]]:
    """For each rank the indices of the others with its role: the same kinds of collectives, groups of the same size."""
    ranks = inputs.own.ranks
    roles: dict[int, set[tuple[str, int]]] = {rank: set() for rank in ranks}
    for rank, kind, members in inputs.matched.select("rank", "kind", "members").unique().iter_rows():
        roles[rank].add((kind, members))
    return [[j for j, other in enumerate(ranks) if other != rank and roles[other] == roles[rank]] for rank in ranks]


def _against_peers(values: npt.NDArray[np.int64], peers: list[list[int]]) -> Floats:
    """Each rank's values less the (lower) median of its peers'; shape (R, S). A rank without peers has no delay."""
    result = np.zeros(values.shape, dtype=np.float64)
    for index, others in enumerate(peers):
        if others:
            ordered = np.sort(values[others], axis=0)
            result[index] = values[index] - ordered[(len(others) - 1) // 2]
    return result


def _delays(inputs: Inputs) -> Floats:
    total = inputs.own.own.sum(axis=2) - inputs.own.of_kind("own")
    return _against_peers(total, _peers(inputs))


def _noise(inputs: Inputs, delays: Floats) -> float:
    """The larger of a share of the step and three standard errors of the noisiest rank's median delay; ns."""
    used = inputs.tables.steps.filter(pl.col("step").is_in(inputs.own.steps))
    step = float((used["end"] - used["start"]).median() or 0)  # type: ignore[arg-type]
    deviation = 1.4826 * np.median(np.abs(delays - np.median(delays, axis=1, keepdims=True)), axis=1)
    error = 1.2533 * float(deviation.max()) / np.sqrt(delays.shape[1])
    return max(SMALLEST_SHARE * step, _SIGMAS * float(error))


def _describe(inputs: Inputs, delays: Floats, index: int, noise: float) -> Straggler:
    own = inputs.own
    rank = own.ranks[index]
    cause, zone = _cause(inputs, index)
    late = [step for step, delay in zip(own.steps, delays[index], strict=True) if delay > noise]
    syncs = _synchronisations(inputs)
    last = syncs.filter(pl.col("last_rank") == rank)
    groups = last["group"].value_counts(sort=True)["group"] if last.height else None
    return Straggler(
        rank=rank,
        cause=cause,
        zone=zone,
        pattern="persistent",
        steps=late[:_LISTED_STEPS],
        group=int(groups[0]) if groups is not None else None,
        via=[],
        delay=float(np.median(delays[index])) / MS,
        imposed_wait=_imposed_wait(inputs, rank),
        last_arrivals=last.height,
        of_collectives=syncs.height,
        saved_if_fixed=None,
        confidence="same_clock",
    )


def _cause(inputs: Inputs, index: int) -> tuple[Cause, str | None]:
    """The kind of zone in which the rank's own time exceeds its peers' the most, and the zone's name."""
    own, peers = inputs.own, _peers(inputs)
    best: tuple[float, Cause, str | None] = (-np.inf, "host", None)
    causes = {(_CAUSES[kind], name if kind == "zone" else "") for kind, name in own.zones if kind in _CAUSES}
    for cause, user_zone in sorted(causes):
        members = [
            z
            for z, (kind, name) in enumerate(own.zones)
            if _CAUSES.get(kind) == cause and (kind != "zone" or name == user_zone)
        ]
        excess = float(np.median(_against_peers(own.own[:, :, members].sum(axis=2), peers)[index]))
        if excess > best[0]:
            longest = max(members, key=lambda z: float(own.own[index, :, z].sum()))
            best = (excess, cause, own.zones[longest][1] if own.zones[longest] != HOST else None)
    return best[1], best[2]


def _imposed_wait(inputs: Inputs, culprit: int) -> float | None:
    """Wait per step that each other rank had for `culprit`, united, in ms: the mean over these ranks."""
    per_rank = []
    for rank in inputs.own.ranks:
        if rank == culprit:
            continue
        steps = times_of_steps(inputs.tables, rank, inputs.own.steps)
        waited = inputs.waits[rank].waits_for.get(culprit, intervals.EMPTY)
        per_rank.append(float(np.mean(intervals.covered(waited, steps[:, 0], steps[:, 1]))))
    return float(np.mean(per_rank)) / MS if per_rank else None


def _synchronisations(inputs: Inputs) -> pl.DataFrame:
    """The collectives at which ranks met, each once: the last of each step that its group waited for together.

    Asynchronous collectives of one backward are one synchronisation: a delay before the first of eight buckets is
    one delay and not eight.
    """
    bound = inputs.matched.filter(
        pl.col("step").is_in(inputs.own.steps) & pl.col("kind").is_in(SYMMETRIC) & pl.col("last_rank").is_not_null()
    )
    return (
        bound.sort("created")
        .group_by("group", "step", "zone", maintain_order=True)
        .agg(pl.col("seq").last(), pl.col("last_rank").last())
        .unique(["group", "step", "zone"], maintain_order=True)
    )
