"""What to do about ranks that the others wait for."""

from __future__ import annotations

from distprof.analyze.habits import garbage_collection
from distprof.analyze.hidden import holds_up, later_still
from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import VIEW_RUN, Judged
from distprof.result import Cause, Finding, Straggler

_HYPOTHESES: dict[Cause, str] = {
    "data_loading": "its input is slower than the other ranks': its disk, its share of the data, or too few workers",
    "forward": "its forward does more, or slower, work than the other ranks'",
    "backward": "its backward does more, or slower, work than the other ranks' before the gradients are reduced",
    "optimizer": "its optimizer step does more than the other ranks'",
    "gc": "Python's garbage collector stops it more often or for longer than the other ranks",
    "host": "Python code between the recorded zones runs on this rank only, such as logging or checkpointing",
    "zone": "the script's own zone does more on this rank",
    "uneven_work": "its batches hold more elements than the other ranks' and take it as much longer",
    "host_to_device": "its copies to the device are larger or slower than the other ranks'",
    "device": "its device does more, or slower, work than the other ranks'",
}
_CHECKS: dict[Cause, str] = {
    "data_loading": "time the dataset's __getitem__ on that rank's host, or give the loader more num_workers",
    "gc": "call gc.freeze() after set-up, or gc.disable() and collect on all ranks at the same step",
    "host": f"look at that rank between its zones ({VIEW_RUN}); mark suspects with distprof.zone()",
    "uneven_work": "share out elements and not samples: a sampler that gives all ranks batches of equal size",
}
_ANY_CHECK = f"look at these steps of that rank and of a peer side by side ({VIEW_RUN})"


def of_stragglers(inputs: Inputs, judged: Judged) -> list[Finding]:
    """One finding for each; garbage collection that stops now this rank, now that one, has a finding of its own."""
    told = bool(garbage_collection(inputs, judged))
    return [_of(row, judged) for row in judged.stragglers.ranks if not (told and row.cause == "gc")]


def _of(row: Straggler, judged: Judged) -> Finding:
    where = row.cause.replace("_", " ") + (f" ({row.zone})" if row.zone and row.zone != row.cause else "")
    when = "each step" if row.pattern == "persistent" else f"{len(row.steps)} of the steps"
    figures = {
        "stragglers.delay": row.delay,
        "stragglers.last_arrivals": float(row.last_arrivals) if row.of_collectives else None,
        "steps.steady.median": judged.step,
        "stragglers.imposed_wait": row.imposed_wait,
        "stragglers.saved_if_fixed": row.saved_if_fixed,
    }
    waited = {
        True: "and the others wait for it",
        False: "but the others hardly wait for it",
        None: "and how long the others wait for it was not observed",
    }[holds_up(row)]
    if later_still(row, judged.stragglers.ranks) is not None:
        waited = "but comes before a rank that is later still"
    saves = row.delay if row.saved_if_fixed is None else row.saved_if_fixed
    return Finding(
        id=f"straggler.{row.cause}",
        severity="critical" if judged.severity(saves) == "critical" else "warning",
        ranks=[row.rank],
        steps=row.steps[:5],
        observation=f"rank {row.rank} takes {row.delay:.1f} ms longer than its peers in {when}, mostly in {where}, "
        + waited,
        hypothesis=_HYPOTHESES[row.cause],
        next_check=_CHECKS.get(row.cause, _ANY_CHECK),
        evidence={name: figure for name, figure in figures.items() if figure is not None},
        saves=saves,
    )
