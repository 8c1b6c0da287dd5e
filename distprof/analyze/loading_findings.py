"""What to do about an input pipeline that does not keep up."""

from __future__ import annotations

import numpy as np

from distprof.analyze.data_loading import STALL_SHARE, loader_settings
from distprof.analyze.hosts import cpus_per_rank
from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import Judged, validate
from distprof.analyze.parts import LOADING
from distprof.analyze.ranks import training_zones
from distprof.analyze.steady import pairs, steady_steps, times_of_steps
from distprof.result import Finding, RankLoading
from distprof.trace import intervals
from distprof.trace.tables import Tables

_LISTED_STEPS = 5
_FIRST_TRY = 4  # workers, where there were none
_PREFETCH = 2  # torch's default


def of_loading(inputs: Inputs, judged: Judged) -> list[Finding]:
    """One finding for all ranks that stall and are not blamed for it as stragglers already."""
    blamed = {row.rank for row in judged.stragglers.ranks if row.cause == "data_loading"}
    stalled = {
        row.rank: (row, row.wait, row.share_of_step)
        for row in judged.data_loading.per_rank
        if row.wait is not None and row.share_of_step is not None
        if row.share_of_step > STALL_SHARE and row.rank not in blamed
    }
    if judged.data_loading.verdict != "stalls" or not stalled:
        return []
    worst, wait, share = max(stalled.values(), key=lambda found: found[2])
    # The slowest rank's loader is what the step waits for.
    saves = max(wait, share * judged.step) if judged.step is not None else wait
    starting = saves - wait > wait
    hypothesis, check = _advice(inputs.tables, worst, starting=starting)
    others = f" ({len(stalled) - 1} others stall, too)" if len(stalled) > 1 else ""
    what = "starts data workers and waits for them" if starting else "waits for data"
    return [
        Finding(
            id="data_loading.starting" if starting else "data_loading.stalls",
            severity="critical" if judged.severity(saves) == "critical" else "warning",
            ranks=[worst.rank, *sorted(set(stalled) - {worst.rank})],
            steps=_longest(inputs.tables, worst.rank),
            observation=f"rank {worst.rank} {what} {saves if starting else wait:.1f} ms in each step, {share:.0%} of it"
            + others,
            hypothesis=hypothesis,
            next_check=check,
            evidence={"data_loading.wait": wait, "data_loading.share_of_step": share},
            saves=saves,
        )
    ]


def _longest(tables: Tables, rank: int) -> list[int]:
    """The steady steps with the most time in loaders, ascending."""
    numbers = steady_steps(tables)
    steps = times_of_steps(tables, rank, numbers)
    zones = training_zones(tables, rank, *LOADING)
    waited = intervals.covered(intervals.union(pairs(zones, "start", "end")), steps[:, 0], steps[:, 1])
    longest = np.argsort(-waited, kind="stable")[:_LISTED_STEPS]
    return sorted(numbers[index] for index in longest if waited[index] > 0)


def _advice(tables: Tables, row: RankLoading, *, starting: bool) -> tuple[str, str]:
    """The hypothesis, and the setting to try, by the loader's settings as captured."""
    settings = loader_settings(tables, row.rank)
    workers: int | None = settings.get("num_workers", row.num_workers)
    if workers is None:
        hypothesis = "the loader does not prepare batches as fast as they are used"
        return hypothesis, validate(tables, f"loader.num_workers={_FIRST_TRY}")
    if starting and workers and not settings.get("persistent_workers", False):
        hypothesis = f"its {workers} workers are started anew in each epoch, since persistent_workers is off"
        return hypothesis, validate(tables, "loader.persistent_workers=true")
    room = _room(tables, row.rank)
    if workers == 0:
        hypothesis = "the training thread loads each batch itself, since num_workers is 0"
        return hypothesis, validate(
            tables, f"loader.num_workers={_FIRST_TRY if room is None else min(_FIRST_TRY, room)}"
        )
    if room is None or 2 * workers <= room:
        hypothesis = f"its {workers} workers do not prepare batches as fast as they are used"
        return hypothesis, validate(tables, f"loader.num_workers={2 * workers}")
    prefetch = settings.get("prefetch_factor") or _PREFETCH
    hypothesis = (
        f"its {workers} workers have {room} CPUs per rank: what they do, or the disk, is too slow, or comes in bursts"
    )
    return hypothesis, validate(tables, f"loader.prefetch_factor={2 * prefetch}")


def _room(tables: Tables, rank: int) -> int | None:
    """Whole CPUs of the rank's host for each of its ranks, at least one; None where that was not recorded."""
    cpus = cpus_per_rank(tables).get(rank)
    return None if cpus is None else max(1, int(cpus))
