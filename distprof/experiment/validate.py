"""Whether a candidate trains faster than the baseline: measured outside of the profiler, and not by luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from distprof.experiment.core import Experiment
from distprof.experiment.statistics import FEWEST_REPEATS, Ratio, Verdict, confidence_of_looks, ratio
from distprof.experiment.trial import Trial, mean
from distprof.report.words import count
from distprof.result import doc

BASELINE, CANDIDATE = "baseline", "candidate"
Training = Literal["same", "changed", "not_repeatable", "unknown"]
_FEWEST_FOR_TWO_LOOKS = 8
_SAME_SAMPLES = 1e-6


@dataclass(frozen=True, slots=True)
class Measured:
    """A point as it was measured."""

    point: Annotated[str, doc("As it was typed; empty: the training as it is.")]
    step: Annotated[float | None, doc("Milliseconds per step: the median over the repeats.")]
    samples_per_s: Annotated[float | None, doc("Samples per second of all ranks: the median over the repeats.")]
    steps: Annotated[list[float], doc("The mean step of each repeat.")]
    failure: Annotated[str | None, doc("Why a launch of it failed, if one did.")]
    tail: Annotated[list[str], doc("The end of that launch's output.")]


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the step in both, where both have it: milliseconds per step, the mean over the repeats."""

    part: Annotated[str, doc("A field of the report's breakdown, or `exposed`: exposed communication.")]
    baseline: Annotated[float, doc("In the baseline.")]
    candidate: Annotated[float, doc("In the candidate.")]


@dataclass(frozen=True, slots=True)
class Validation:
    """The answer."""

    verdict: Annotated[Verdict, doc("Of the candidate.")]
    why: Annotated[str, doc("What it stands on, or why there is none.")]
    per: Annotated[
        Literal["step", "sample"], doc("What `ratio` is about; `sample`: a step of the two has not as many samples.")
    ]
    ratio: Annotated[Ratio | None, doc("Time of the candidate over that of the baseline; null: nothing to compare.")]
    baseline: Annotated[Measured, doc("The baseline.")]
    candidate: Annotated[Measured, doc("The candidate.")]
    parts: Annotated[list[PartChange], doc("Where the difference is.")]
    training: Annotated[
        Training,
        doc(
            "Whether both come to the same parameters after the same steps; `not_repeatable`: one of them does not "
            "even from repeat to repeat."
        ),
    ]
    notes: Annotated[list[str], doc("What to know of the settings: why one has another effect than it seems.")]


def looks(repeats: int) -> list[int]:
    """After how many repeats the verdict is looked for: at the end, and of many repeats half-way, too."""
    return [repeats // 2, repeats] if repeats >= _FEWEST_FOR_TWO_LOOKS else [repeats]


def settled(experiment: Experiment, repeats: int, planned: int) -> bool:
    """Whether it makes no sense to go on after so many repeats of `planned`."""
    if experiment.failures(BASELINE) or experiment.failures(CANDIDATE):
        return True
    return repeats in looks(planned)[:-1] and judge(experiment, planned).verdict != "cannot_be_told"


def judge(experiment: Experiment, planned: int) -> Validation:
    """The verdict on what was measured so far, of `planned` repeats."""
    pairs = experiment.together(BASELINE, CANDIDATE)
    per, times = per_unit(pairs)
    found = ratio(times[0], times[1], confidence=confidence_of_looks(len(looks(planned))))
    verdict: Verdict = "cannot_be_told" if found is None else found.verdict
    return Validation(
        verdict=verdict,
        why=_why(experiment, found, verdict),
        per=per,
        ratio=found,
        baseline=_measured(experiment, BASELINE),
        candidate=_measured(experiment, CANDIDATE),
        parts=part_changes(*pairs),
        training=trained(experiment.of(BASELINE), experiment.of(CANDIDATE)),
        notes=notes_of(experiment.trials),
    )


def notes_of(trials: list[Trial]) -> list[str]:
    """What to know of the settings that were set."""
    rows = [row for trial in trials for row in trial.settings or () if row.why is not None]
    return sorted({f"{row.setting}={row.asked} ({row.target}): {row.why}" for row in rows})


def trained(baseline: list[Trial], candidate: list[Trial]) -> Training:
    """Whether two points come to the same parameters."""
    sums = [[trial.checksums for trial in trials] for trials in (baseline, candidate)]
    if not all(sums) or not all(told for of_point in sums for told in of_point):
        return "unknown"
    if any(told != of_point[0] for of_point in sums for told in of_point):
        return "not_repeatable"
    return "same" if sums[0][0] == sums[1][0] else "changed"


def per_unit(points: Sequence[list[Trial]]) -> tuple[Literal["step", "sample"], list[list[float]]]:
    """Times per step of each point's launches; per sample where steps have known and different numbers of them."""
    sizes = [mean([size for trial in trials if (size := trial.samples_per_step)]) for trials in points]
    times = [[trial.step or 0.0 for trial in trials] for trials in points]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not known or max(known) - min(known) <= _SAME_SAMPLES * min(known):
        return "step", times
    return "sample", [[time / size for time in row] for row, size in zip(times, known, strict=True)]


def _why(experiment: Experiment, found: Ratio | None, verdict: Verdict) -> str:
    for name in (BASELINE, CANDIDATE):
        if failures := experiment.failures(name):
            return f"a launch of the {name} failed: {failures[-1].failure}"
    if found is None:
        return "there is no repeat in which both were measured"
    if found.repeats < FEWEST_REPEATS:
        return f"of {count(found.repeats, 'repeat')} nothing can be concluded: it takes {FEWEST_REPEATS}"
    if verdict == "cannot_be_told":
        return (
            f"the interval of {found.repeats} repeats holds 1: the difference is not larger than what repeats differ by"
        )
    return f"the interval of {found.repeats} repeats, taken in turn, does not hold 1"


def _measured(experiment: Experiment, name: str) -> Measured:
    point = next(point for point in experiment.points if point.name == name)
    trials = experiment.of(name)
    failures = experiment.failures(name)
    rates = [rate for trial in trials if (rate := trial.samples_per_s) is not None]
    steps = [trial.step or 0.0 for trial in trials]
    return Measured(
        point=point.words(),
        step=median(steps),
        samples_per_s=median(rates),
        steps=steps,
        failure=failures[-1].failure if failures else None,
        tail=failures[-1].tail if failures else [],
    )


def median(values: list[float]) -> float | None:
    """The median; None of none."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return mean(ordered[middle : middle + 1] if len(ordered) % 2 else ordered[middle - 1 : middle + 1])


def part_changes(baseline: list[Trial], candidate: list[Trial]) -> list[PartChange]:
    """Parts of the step in both, where all launches of both have them."""

    def means(trials: list[Trial]) -> dict[str, float]:
        rows = [trial.parts | ({} if trial.exposed is None else {"exposed": trial.exposed}) for trial in trials]
        names = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
        return {name: sum(row[name] for row in rows) / len(rows) for name in names}

    before, after = means(baseline), means(candidate)
    return [PartChange(name, before[name], after[name]) for name in before if name in after]
