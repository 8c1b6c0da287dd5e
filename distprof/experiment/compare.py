"""What is different between two recorded runs, part by part; and whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from distprof.report.parts import PARTS
from distprof.result import NotObserved, Result, doc


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in both runs; milliseconds per step unless the name says otherwise. null: not observed."""

    what: Annotated[str, doc("Path of the field in a report; of `breakdown` the mean over ranks.")]
    label: Annotated[str, doc("The same in words.")]
    before: Annotated[float | None, doc("In the first run.")]
    after: Annotated[float | None, doc("In the second run.")]
    before_low: Annotated[float | None, doc("In the first run: of steps the 10th percentile, else the lowest rank's.")]
    before_high: Annotated[float | None, doc("The 90th percentile, or the highest rank's.")]
    after_low: Annotated[float | None, doc("The same in the second run.")]
    after_high: Annotated[float | None, doc("The same in the second run.")]
    basis: Annotated[str | None, doc("What the figures were computed from, where it is not the same in both.")] = None

    @property
    def ratio(self) -> float | None:
        """after / before."""
        return self.after / self.before if self.before and self.after is not None else None

    @property
    def apart(self) -> bool:
        """Whether the two ranges have nothing in common."""
        edges = (self.before_low, self.before_high, self.after_low, self.after_high)
        if None in edges:
            return False
        return self.before_low > self.after_high or self.after_low > self.before_high  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs and what is different."""

    before: Annotated[Result, doc("The first run's report.")]
    after: Annotated[Result, doc("The second run's report.")]
    changes: Annotated[list[Change], doc("What is different.")]
    conditions: Annotated[list[str], doc("Conditions that are different.")]

    @property
    def not_observed(self) -> list[NotObserved]:
        """Figures that one of them lacks, by their path in this comparison."""
        return [
            NotObserved(f"{name}.{row.what}", row.ranks, row.reason)
            for name, result in (("before", self.before), ("after", self.after))
            for row in result.not_observed
        ]


# Differences that leave nothing to be compared.
_MUST_AGREE: tuple[tuple[str, Callable[[Result], Any]], ...] = (
    ("ranks", lambda result: result.run.world_size),
    ("device", lambda result: result.run.device),
    ("batch shapes", lambda result: result.conditions.batch_shapes),
    ("samples per step", lambda result: _rounded(result.conditions.samples_per_step)),
)
_MAY_DIFFER: tuple[tuple[str, Callable[[Result], Any]], ...] = (
    ("hosts", lambda result: result.run.nnodes),
    ("backend", lambda result: result.run.backend),
    ("torch", lambda result: result.run.torch),
    ("autocast", lambda result: result.conditions.autocast),
    ("compiled", lambda result: result.conditions.compiled),
    ("step boundary", lambda result: result.steps.source),
)


def incomparable(before: Result, after: Result) -> list[str]:
    """Why the two runs cannot be compared, in words; empty: they can."""
    return list(_differences(_MUST_AGREE, before, after))


def compare(before: Result, after: Result) -> Comparison:
    """Hold two runs against each other."""
    different = [*incomparable(before, after), *_differences(_MAY_DIFFER, before, after)]
    for name in ("loader", "ddp"):
        rows = [getattr(result.conditions, name) or [] for result in (before, after)]
        different += _settings(name, *rows)
    changes = [_steps(before, after), *_parts(before, after), *_communication(before, after)]
    shown = [change for change in changes if change.before is not None or change.after is not None]
    return Comparison(before, after, shown, different)


def _differences(fields: Sequence[tuple[str, Callable[[Result], Any]]], before: Result, after: Result) -> Iterator[str]:
    for name, of in fields:
        one, other = of(before), of(after)
        if one is not None and other is not None and one != other:
            yield f"{name}: {_shown(one)} and {_shown(other)}"


def _settings(name: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    """Settings of objects of the same name that differ; bytes of buckets follow from these."""
    of_after = {row["name"]: row for row in after if isinstance(row.get("name"), str)}
    for row in before:
        other = of_after.get(row["name"], {}) if isinstance(row.get("name"), str) else {}
        for key, value in row.items():
            if key in other and key not in ("ranks", "bucket_bytes") and other[key] != value:
                yield f"{name} {row['name']}, {key}: {_shown(value)} and {_shown(other[key])}"


def _steps(before: Result, after: Result) -> Change:
    one, other = before.steps.steady, after.steps.steady
    edges = (one.p10, one.p90, other.p10, other.p90)
    return Change("steps.steady.median", "steady step, median", one.median, other.median, *edges)


def _parts(before: Result, after: Result) -> Iterator[Change]:
    bases = {row.basis for result in (before, after) for row in result.breakdown}
    basis = f"of {' and '.join(sorted(bases))}" if len(bases) > 1 else None
    for part in PARTS:
        one, other = ([part.of(row) for row in result.breakdown] for result in (before, after))
        yield _over_ranks(f"breakdown.{part.field}", part.label, one, other, basis)


def _communication(before: Result, after: Result) -> Iterator[Change]:
    one, other = before.communication, after.communication
    basis = f"of {one.basis} and {other.basis}" if one.basis != other.basis else None
    for field, label in (("total", "communication, all"), ("exposed", "communication, exposed")):
        of_ranks = [[getattr(row, field) for row in side.per_rank] for side in (one, other)]
        yield _over_ranks(f"communication.{field}", label, of_ranks[0], of_ranks[1], basis)


def _over_ranks(
    what: str, label: str, before: list[float | None], after: list[float | None], basis: str | None
) -> Change:
    figures: list[tuple[float | None, float | None, float | None]] = []
    for rows in (before, after):
        told = [value for value in rows if value is not None]
        figures.append((sum(told) / len(told), min(told), max(told)) if told else (None, None, None))
    (one, low, high), (other, other_low, other_high) = figures
    return Change(what, label, one, other, low, high, other_low, other_high, basis)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
