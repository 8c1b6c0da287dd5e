"""Who the others waited for, where that rank lost the time, and how much.

A rank is a straggler if its own time per step (net of waits) exceeds what is usual for its role in most steps, and in
the median by more than the noise. So the culprit is found and not the victim: a victim's long backward is wait, which
is not its own time.

What is usual is decided once for the whole run and not step by step. In each step the median over a role's ranks is
taken out of them all, as what they have in common; the median over steps of what is left is a rank's *level*. Usual is
the lower median of the levels, which is what at least half of the ranks do. Of eight ranks, then, up to four
culprits are all seen as late, and of two ranks the slower one; should most ranks be slow, slow is what is usual. Levels
are medians over many steps and hardly differ among healthy ranks, so taking a low one of them as usual makes nobody
late; a low one of each single step's times would, as in each step somebody is fast by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import stdtrit

from distprof.analyze.inputs import Inputs
from distprof.analyze.own_time import HOST, OwnTime
from distprof.analyze.steady import FEWEST_STEPS, MS, on_device, prefer, times_of_steps
from distprof.analyze.waits import UNBOUND, waits_for
from distprof.result import Cause, NotObserved, Straggler, Stragglers
from distprof.trace import intervals

SMALLEST_SHARE = 0.05  # of the step: below that nobody is named, however steady it is
MOST_STEPS = 0.6  # of the steps must show the delay for it to be persistent
_CONFIDENCE = 0.99865  # of three standard deviations
_LISTED_STEPS = 100

Floats = npt.NDArray[np.float64]

# Kinds of zones that own time can be lost in. What is lost in distprof's own work is nobody's.
_CAUSES: dict[str, Cause] = {
    "data_loading": "data_loading",
    "loader_first": "data_loading",
    "loader_start": "data_loading",
    "loader_end": "data_loading",
    "forward": "forward",
    "evaluation": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "checkpoint": "host",
    "gc": "gc",
    "zone": "zone",
    "host": "host",
}


def stragglers(inputs: Inputs) -> tuple[Stragglers, list[NotObserved]]:
    """Judge every rank against its peers."""
    tables, own = inputs.tables, inputs.own
    reason = _why_undecided(inputs)
    if reason is not None:
        return _section("undecided", reason, own), []
    if tables.world_size == 1:
        return _section("none", "there is one rank, and nobody waits for it", own), []

    roles = _roles(inputs)
    delays = _against_usual(own.of_kind(*_CAUSES), roles)
    noise = _noise(inputs, delays, roles)
    medians = np.median(delays, axis=1)
    named = [
        index
        for index in range(len(own.ranks))
        if medians[index] > noise and np.mean(delays[index] > noise / 2) >= MOST_STEPS
    ]
    named.sort(key=lambda index: -medians[index])
    rows = [_describe(inputs, delays, roles, index, noise) for index in named]
    ms = noise / MS
    missing = sorted(set(range(tables.world_size)) - set(own.ranks))
    if rows:
        why = f"own time per step exceeds the peers' by more than {ms:.1f} ms in most of {len(own.steps)} steps"
        if missing:
            why += f"; {_ranks(missing)} left no recording of steps and may be another"
        return _section("straggler", why, own, noise=ms, rows=rows), [*_missing(rows), _UNSEEN]
    if missing:
        why = f"{_ranks(missing)} left no recording of steps and may be who the others waited for"
        return _section("undecided", why, own, noise=ms), []
    alone = [own.ranks[members[0]] for members in roles if len(members) == 1]
    if alone:
        why = f"{_ranks(alone)} had other collectives than all others, so that there is nobody to compare with"
        return _section("undecided", why, own, noise=ms), []
    why = f"no rank's own time per step exceeds its peers' by more than {ms:.1f} ms in {len(own.steps)} steps"
    return _section("none", why, own, noise=ms), [_UNSEEN]


_UNSEEN = NotObserved(
    "stragglers.ranks.pattern",
    None,
    "delays in fewer than most steps, or of ranks taking turns, are not looked for yet",
)


def _missing(rows: list[Straggler]) -> list[NotObserved]:
    missing = [NotObserved("stragglers.ranks.saved_if_fixed", [row.rank for row in rows], "no replay in this version")]
    unbound = [row.rank for row in rows if row.imposed_wait is None]
    if unbound:
        missing.append(NotObserved("stragglers.ranks.imposed_wait", unbound, UNBOUND))
    return missing


def _why_undecided(inputs: Inputs) -> str | None:
    tables, own = inputs.tables, inputs.own
    if not tables.ranks:
        return "no rank left a recording"
    if tables.step_source == "none":
        return "no step boundary was found"
    if len(own.steps) < FEWEST_STEPS:
        return f"too few steps: {len(own.steps)} steady on all ranks, and {FEWEST_STEPS} are needed"
    if on_device(tables):
        return "the ranks train on a device, and the host's times do not tell who was waited for"
    if tables.world_size > 1 and inputs.clock.verdict == "unaligned":
        return "the ranks' clocks are not aligned"
    if tables.world_size > 1 and not _binding(inputs).height:
        return "no collective was seen in which ranks wait for each other"
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


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _in_steps(inputs: Inputs) -> pl.DataFrame:
    """The collectives of the steps that are judged."""
    return inputs.matched.filter(pl.col("step").is_in(inputs.own.steps))


def _binding(inputs: Inputs) -> pl.DataFrame:
    return _in_steps(inputs).filter(pl.col("binds"))


def _roles(inputs: Inputs) -> list[list[int]]:
    """Ranks by their role, as indices: those with the same kinds of collectives in groups of the same size.

    A group of one rank is none.
    """
    done: dict[int, set[tuple[str, int]]] = defaultdict(set)
    with_others = _in_steps(inputs).filter(pl.col("members") > 1)
    for rank, kind, members in with_others.select("rank", "kind", "members").unique().iter_rows():
        done[rank].add((kind, members))
    roles: dict[frozenset[tuple[str, int]], list[int]] = {}
    for index, rank in enumerate(inputs.own.ranks):
        roles.setdefault(frozenset(done[rank]), []).append(index)
    return list(roles.values())


def _against_usual(values: npt.NDArray[np.int64], roles: list[list[int]]) -> Floats:
    """Each rank's values less what is usual for its role, see the module; both of shape (R, S)."""
    result = np.zeros(values.shape, dtype=np.float64)
    for members in roles:
        excess = values[members] - np.median(values[members], axis=0)
        levels = np.sort(np.median(excess, axis=1))
        result[members] = excess - levels[(len(levels) - 1) // 2]
    return result


def _noise(inputs: Inputs, delays: Floats, roles: list[list[int]]) -> float:
    """The larger of a share of the step, and what a healthy rank's delay may be by chance; in ns.

    By chance is three standard errors of the median difference between the noisiest rank and the usual one, by
    Student's distribution: a spread that was seen in few steps may be far too small.
    """
    used = inputs.tables.steps.filter(pl.col("step").is_in(inputs.own.steps))
    step = float((used["end"] - used["start"]).median() or 0)  # type: ignore[arg-type]
    steps = delays.shape[1]
    errors = [0.0]
    for members in roles:
        usual = min(members, key=lambda index: abs(np.median(delays[index])))
        differences = delays[members] - delays[usual]
        deviation = 1.4826 * np.median(np.abs(differences - np.median(differences, axis=1, keepdims=True)), axis=1)
        errors.append(1.2533 * float(deviation.max()) / steps**0.5)
    return max(SMALLEST_SHARE * step, float(stdtrit(steps - 1, _CONFIDENCE)) * max(errors))


def _describe(inputs: Inputs, delays: Floats, roles: list[list[int]], index: int, noise: float) -> Straggler:
    own = inputs.own
    rank = own.ranks[index]
    cause, zone = _cause(own, roles, index)
    late = [step for step, delay in zip(own.steps, delays[index], strict=True) if delay > noise]
    arrivals = _last_arrivals(inputs)
    last = arrivals.filter(pl.col("last_rank") == rank)
    groups = last.group_by("group").len().sort("len", "group", descending=[True, False])["group"]
    return Straggler(
        rank=rank,
        cause=cause,
        zone=zone,
        pattern="persistent",
        steps=late[:_LISTED_STEPS],
        group=int(groups[0]) if len(groups) else None,
        via=[],
        delay=float(np.median(delays[index])) / MS,
        imposed_wait=_imposed_wait(inputs, rank),
        last_arrivals=last.height,
        of_collectives=arrivals.height,
        saved_if_fixed=None,
        confidence="same_clock",
    )


def _cause(own: OwnTime, roles: list[list[int]], index: int) -> tuple[Cause, str | None]:
    """The cause that most of the rank's delay has, and the name of the zone that most of that was lost in.

    Each of the user's zones is a cause by itself; other zones of one kind are one.
    """
    zones_of: dict[tuple[Cause, str], list[int]] = {}
    for zone, (kind, name) in enumerate(own.zones):
        if kind in _CAUSES:
            zones_of.setdefault((_CAUSES[kind], name if kind == "zone" else ""), []).append(zone)

    def delays(zones: Sequence[int]) -> Floats:
        of_rank: Floats = _against_usual(own.own[:, :, zones].sum(axis=2), roles)[index]
        return of_rank

    cause, zones = max(zones_of.items(), key=lambda item: float(np.median(delays(item[1]))))
    # The mean, since a zone's name may change in the course of the run.
    worst = max(zones, key=lambda zone: float(np.mean(delays([zone]))))
    return cause[0], None if own.zones[worst] == HOST else own.zones[worst][1]


def _imposed_wait(inputs: Inputs, culprit: int) -> float | None:
    """Wait per step that each other rank had for `culprit`, united, in ms: the mean over these ranks."""
    used, bound = prefer(inputs.own.steps, inputs.bound)
    per_rank = []
    for rank in inputs.own.ranks:
        if rank == culprit:
            continue
        steps = times_of_steps(inputs.tables, rank, used)
        waited = waits_for(inputs.matched, inputs.waits[rank], rank, culprit)
        per_rank.append(float(np.mean(intervals.covered(waited, steps[:, 0], steps[:, 1]))))
    return float(np.mean(per_rank)) / MS if bound else None


def _last_arrivals(inputs: Inputs) -> pl.DataFrame:
    """Who was the last to arrive: `group`, `step`, `last_rank`, one row for each step in which a group met.

    Of a group's collectives in a step the one counts that its members waited for the longest in all. So one delay is
    one late arrival, whether one collective or eight asynchronous ones follow it.
    """
    return (
        _binding(inputs)
        .drop_nulls("binds_until")
        .with_columns(wait=pl.col("binds_until") - pl.col("created"))
        .group_by("group", "seq", "kind")
        .agg(pl.col("step").min(), pl.col("last_rank").sort_by("wait").last(), pl.col("wait").sum())
        .sort("wait", "seq")
        .group_by("group", "step")
        .agg(pl.col("last_rank").last())
        .sort("group", "step")
    )
