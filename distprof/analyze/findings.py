"""Findings: what to do about it, each with the figures it stands on; the costliest first."""

from __future__ import annotations

from distprof.analyze.data_loading import STALL_SHARE
from distprof.result import Cause, DataLoading, Finding, Steps, Straggler, Stragglers

_HYPOTHESES: dict[Cause, str] = {
    "data_loading": "its input is slower than the other ranks': its disk, its share of the data, or too few workers",
    "forward": "its forward does more, or slower, work than the other ranks'",
    "backward": "its backward does more, or slower, work than the other ranks' before the gradients are reduced",
    "optimizer": "its optimizer step does more than the other ranks'",
    "gc": "Python's garbage collector stops it more often or for longer than the other ranks",
    "host": "Python code between the recorded zones runs on this rank only, such as logging or checkpointing",
    "zone": "the script's own zone does more on this rank",
}
_CHECKS: dict[Cause, str] = {
    "data_loading": "time the dataset's __getitem__ on that rank's host, or give the loader more num_workers",
    "gc": "call gc.freeze() after set-up, or gc.disable() and collect on all ranks at the same step",
    "host": "look at that rank between its zones in the timeline; mark suspects with distprof.zone()",
}
_ANY_CHECK = "look at these steps of that rank and of a peer side by side in the timeline"
_CRITICAL_SHARE = 0.25
_HIDDEN_SHARE = 0.1  # of its delay: a straggler that imposes less wait is hidden behind another one


def findings(steps: Steps, stragglers: Stragglers, data_loading: DataLoading) -> list[Finding]:
    """Turn what the other sections say into things to do."""
    step = steps.steady.median
    found = [(row.delay, _of_straggler(row, step)) for row in stragglers.ranks]
    blamed = {row.rank for row in stragglers.ranks if row.cause == "data_loading"}
    slow = [row for row in data_loading.per_rank if row.wait is not None and row.rank not in blamed]
    if data_loading.verdict == "stalls" and slow:
        worst = max(slow, key=lambda row: row.share_of_step or 0.0)
        if worst.wait is not None and worst.share_of_step is not None and worst.share_of_step > STALL_SHARE:
            found.append((worst.wait, _of_loading(worst.rank, worst.wait, worst.share_of_step, worst.num_workers)))
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])]


def _severity(cost: float, step: float | None) -> str:
    return "critical" if step is not None and cost > _CRITICAL_SHARE * step else "warning"


def _of_straggler(row: Straggler, step: float | None) -> Finding:
    where = row.cause.replace("_", " ") + (f" ({row.zone})" if row.zone and row.zone != row.cause else "")
    evidence = {"stragglers.delay": row.delay, "stragglers.last_arrivals": float(row.last_arrivals)}
    if step is not None:
        evidence["steps.steady.median"] = step
    if row.imposed_wait is not None:
        evidence["stragglers.imposed_wait"] = row.imposed_wait
    hidden = row.imposed_wait is not None and row.imposed_wait < _HIDDEN_SHARE * row.delay
    return Finding(
        id=f"straggler.{row.cause}",
        severity=_severity(row.delay, step),  # type: ignore[arg-type]
        ranks=[row.rank],
        steps=row.steps[:5],
        observation=f"rank {row.rank} takes {row.delay:.1f} ms longer than its peers in each step, mostly in {where}, "
        + ("but comes before a rank that is later still" if hidden else "and the others wait for it"),
        hypothesis=_HYPOTHESES.get(row.cause, "something that only this rank does"),
        next_check=_CHECKS.get(row.cause, _ANY_CHECK),
        evidence=evidence,
    )


def _of_loading(rank: int, wait: float, share: float, workers: int | None) -> Finding:
    return Finding(
        id="data_loading.stalls",
        severity="critical" if share > _CRITICAL_SHARE else "warning",
        ranks=[rank],
        steps=[],
        observation=f"rank {rank} waits {wait:.1f} ms for data in each step, {share:.0%} of it",
        hypothesis="the loader does not prepare batches as fast as they are used",
        next_check=f"raise num_workers (now {workers}) until the share falls"
        if workers is not None
        else "raise num_workers until the share falls",
        evidence={"data_loading.wait": wait, "data_loading.share_of_step": share},
    )
