"""What the launches of a sweep say: what beats the baseline, what may be the fastest, what to take, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from distprof.experiment.core import Experiment
from distprof.experiment.settings import Point
from distprof.experiment.several import Several
from distprof.experiment.statistics import FEWEST_REPEATS, Ratio
from distprof.experiment.sweep.points import BASELINE, values_of
from distprof.experiment.sweep.result import Explanation, HostFound, Knee, PointFound, Sweep
from distprof.experiment.trial import Trial, hosts_of, mean
from distprof.experiment.validate import PartChange, Training, median, notes_of, part_changes, per_unit, trained
from distprof.report.words import count
from distprof.result import NotObserved

_WORKERS = "loader.num_workers"
# Of the fastest's time, what a point may take and be recommended in its place, since it is cheaper: where repeats vary
# much, much cannot be told from the fastest that is no match for it.
_NEAR = 1.05


@dataclass(frozen=True, slots=True)
class Measured:
    """A point and its launches.

    Attributes:
        point: the point.
        trials: launches that were measured, one for each repeat.
        beside: the baseline's launches that they are held against, of the same repeats.
        failures: launches that were not.
        explained: the launch that explains it.
    """

    point: Point
    trials: list[Trial]
    beside: list[Trial]
    failures: list[Trial]
    explained: Trial | None

    @property
    def usable(self) -> bool:
        """Whether it can be compared."""
        return bool(self.trials) and not self.failures


@dataclass(frozen=True, slots=True)
class About:
    """What a sweep's result says beside what was found; see `Sweep`."""

    command: list[str]
    script: str
    steps: int
    warmup: int
    profiled: bool
    explain: bool


def together(experiment: Experiment, explained: Mapping[str, Trial]) -> list[Measured]:
    """The points of one experiment, by the repeats in which all that did not fail were measured."""
    sound = [point.name for point in experiment.points if experiment.of(point.name)]
    sound = [name for name in sound if not experiment.failures(name)]
    rows = dict(zip(sound, experiment.together(*sound), strict=True)) if sound else {}
    beside = rows.get(BASELINE, [])
    return [
        Measured(
            point,
            rows.get(point.name, []),
            beside if point.name in rows else [],
            experiment.failures(point.name),
            explained.get(point.name),
        )
        for point in experiment.points
    ]


def judge(measured: Sequence[Measured], order: Literal["together", "apart"], about: About) -> Sweep:
    """The result.

    Args:
        measured: the baseline first.
        order: how the repeats were taken.
        about: the rest of the result.
    """
    usable = [each for each in measured if each.usable]
    per, times = per_unit([each.trials for each in usable])
    baseline = next((index for index, each in enumerate(usable) if each.point.name == BASELINE), None)
    several = None
    if baseline is not None and len(usable) > 1:
        several = Several.together(times) if order == "together" else Several.apart(_ratios(usable, per), baseline)
    places = {each.point.name: index for index, each in enumerate(usable)}
    best = usable[several.fastest()].point.name if several is not None else None
    may_be_best = {usable[index].point.name for index in several.may_be_fastest()} if several is not None else set()
    ratios: dict[str, Ratio] = {}
    to_best: dict[str, Ratio] = {}
    if several is not None and baseline is not None:
        ratios = {name: several.ratio(baseline, index) for name, index in places.items()}
        to_best = {name: several.ratio(places[best or ""], index) for name, index in places.items()}
    of_baseline = next((each.trials for each in measured if each.point.name == BASELINE), [])
    points = [
        PointFound(
            name=each.point.name,
            values=values_of(each.point.masked()),
            arguments=each.point.masked().arguments or [],
            step=median([trial.step or 0.0 for trial in each.trials]),
            samples_per_s=median([rate for trial in each.trials if (rate := trial.samples_per_s) is not None]),
            steps=[trial.step or 0.0 for trial in each.trials],
            ratio=ratios.get(each.point.name),
            to_best=to_best.get(each.point.name),
            may_be_best=each.point.name in may_be_best,
            training=_trained(each.beside or of_baseline, each.trials),
            failure=each.failures[-1].failure if each.failures else None,
            tail=each.failures[-1].tail if each.failures else [],
            log=each.failures[-1].log if each.failures else None,
            explanation=_explanation(each.explained, about),
            hosts=hosts_of([*each.trials, *each.failures]),
        )
        for each in measured
    ]
    repeats = min((len(each.trials) for each in usable), default=0)
    recommended = _recommended(points, repeats)
    chosen = next((each for each in measured if each.point.name == recommended), None)
    comparisons = several.comparisons if several is not None else 0
    verdict, why = _verdict(points, recommended, repeats, comparisons, order)
    return Sweep(
        command=about.command,
        script=about.script,
        world_size=next((trial.world_size for each in usable for trial in each.trials), None),
        order=order,
        verdict=verdict,
        why=why,
        per=per,
        recommended=recommended,
        best=best,
        points=points,
        knees=_knees(points, recommended) if repeats >= FEWEST_REPEATS else [],
        because=part_changes(chosen.beside, chosen.trials) if chosen is not None else [],
        swept=swept(points),
        repeats=repeats,
        comparisons=comparisons,
        steps=about.steps,
        warmup=about.warmup,
        notes=notes_of([trial for each in measured for trial in each.trials]),
        not_observed=_not_observed(points, about),
        hosts=_hosts(points, of_baseline),
    )


def _trained(baseline: list[Trial], candidate: list[Trial]) -> Training:
    """Whether two points come to the same parameters, host by host: other processors may round differently."""
    told = {
        trained(
            [trial for trial in baseline if trial.host == host], [trial for trial in candidate if trial.host == host]
        )
        for host in {trial.host for trial in candidate}
    }
    kinds: tuple[Training, ...] = ("not_repeatable", "changed", "unknown", "same")
    return next((kind for kind in kinds if kind in told), "unknown")


def _hosts(points: Sequence[PointFound], baseline: Sequence[Trial]) -> list[HostFound]:
    rows = []
    for host in sorted({host for point in points for host in point.hosts}):
        there = [trial.step or 0.0 for trial in baseline if trial.host == host]
        names = [point.name for point in points if host in point.hosts and point.name != BASELINE]
        rows.append(HostFound(host, names, median(there), len(there)))
    return rows


def _ratios(usable: Sequence[Measured], per: str) -> list[list[float]]:
    """Each point's time over that of the baseline beside it."""
    rows = []
    for each in usable:
        if each.point.name == BASELINE:
            rows.append([1.0] * len(each.trials))
            continue
        sizes = [
            mean([trial.samples_per_step or 0.0 for trial in trials]) or 1.0 for trials in (each.beside, each.trials)
        ]
        scale = sizes[0] / sizes[1] if per == "sample" else 1.0
        pairs = zip(each.beside, each.trials, strict=True)
        rows.append([scale * (trial.step or 0.0) / (other.step or 1.0) for other, trial in pairs])
    return rows


def swept(points: Sequence[PointFound]) -> list[str]:
    """What points differ by, in the order in which it was given."""
    candidates = [point for point in points if point.name != BASELINE]
    names = dict.fromkeys(name for point in candidates for name in point.values)
    return [name for name in names if len({repr(point.values.get(name)) for point in candidates}) > 1]


def _recommended(points: Sequence[PointFound], repeats: int) -> str | None:
    """The cheapest of those that beat the baseline, may be the fastest and come near to it."""
    if repeats < FEWEST_REPEATS:
        return None
    good = [point for point in points if _is_near(point) and point.ratio and point.ratio.verdict == "faster"]

    def cost(point: PointFound) -> tuple[float, int, float]:
        workers = point.values.get(_WORKERS)
        return (
            float(workers) if isinstance(workers, int | float) else 0.0,
            len(point.values),
            point.ratio.estimate if point.ratio else 1.0,
        )

    return min(good, key=cost).name if good else None


def _is_near(point: PointFound) -> bool:
    return point.may_be_best and point.to_best is not None and point.to_best.estimate <= _NEAR


def _knees(points: Sequence[PointFound], recommended: str | None) -> list[Knee]:
    """Of each number among the settings, with everything else as the recommended point has it."""
    chosen = next((point for point in points if point.name == recommended), None)
    if chosen is None:
        return []
    knees = []
    for setting in swept(points):
        others = {name: value for name, value in chosen.values.items() if name != setting}
        row = []
        for point in points:
            value = point.values.get(setting)
            rest = {name: of_point for name, of_point in point.values.items() if name != setting}
            if isinstance(value, int | float) and not isinstance(value, bool) and rest == others and point.to_best:
                row.append((float(value), point))
        row.sort(key=lambda pair: pair[0])
        first = next(((value, point) for value, point in row if _is_near(point)), None)
        if first is not None and len(row) > 1:
            best = [value for value, point in row if point.may_be_best]
            knees.append(Knee(setting, first[0], first[1].name, [value for value, _ in row], best))
    return knees


def _verdict(
    points: Sequence[PointFound], recommended: str | None, repeats: int, comparisons: int, order: str
) -> tuple[Literal["faster", "cannot_be_told", "incomplete"], str]:
    if points[0].failure:
        return "incomplete", f"a launch of the baseline failed: {points[0].failure}"
    if comparisons == 0:
        failed = sum(point.failure is not None for point in points)
        return "incomplete", f"{count(failed, 'point')} failed, and no point was measured beside the baseline"
    if repeats < FEWEST_REPEATS:
        return "incomplete", f"of {count(repeats, 'repeat')} nothing can be concluded: it takes {FEWEST_REPEATS}"
    turn = "of all points" if order == "together" else "of each point and the baseline"
    basis = f"{repeats} repeats {turn}, taken in turn; intervals corrected for {count(comparisons, 'comparison')}"
    if recommended is None:
        slower = sum(point.ratio is not None and point.ratio.verdict == "slower" for point in points)
        told = f", {slower} of them slower" if slower else ""
        return "cannot_be_told", f"no point is faster than the baseline by more than repeats differ by{told} ({basis})"
    return "faster", f"the interval of its ratio to the baseline does not hold 1 ({basis})"


def _explanation(trial: Trial | None, about: About) -> Explanation | None:
    if trial is None or trial.failure is not None:
        return None
    return Explanation(
        run=trial.run,
        profiled=about.profiled,
        step=trial.step,
        parts=trial.parts,
        data_wait=trial.parts.get("data_wait"),
        exposed=trial.exposed,
        memory_bytes=trial.memory_bytes,
        first_step=trial.first_step,
        loader_start=trial.loader_start,
        findings=trial.findings,
        host=trial.host,
    )


def _not_observed(points: Sequence[PointFound], about: About) -> list[NotObserved]:
    rows = []
    if not about.explain:
        rows.append(NotObserved("points[].explanation", None, "explanations were switched off (measure.explain=false)"))
    for point in points:
        if point.failure is not None:
            rows.append(NotObserved(f"points[{point.name}]", None, f"a launch failed: {point.failure}"))
        elif not point.steps:
            rows.append(NotObserved(f"points[{point.name}].steps", None, "not measured in whole repeats yet"))
        elif point.explanation is None and about.explain:
            rows.append(NotObserved(f"points[{point.name}].explanation", None, "its profiled run failed or is missing"))
        elif point.explanation is not None and point.explanation.exposed is None:
            reason = "ranks train on a device, where the host's waits are not the device's: see its parts"
            rows.append(NotObserved(f"points[{point.name}].explanation.exposed", None, reason))
    return rows


def part_of(changes: Sequence[PartChange]) -> PartChange | None:
    """The part that explains most of what was gained."""
    gains = [change for change in changes if change.baseline > change.candidate]
    return max(gains, key=lambda change: change.baseline - change.candidate, default=None)
