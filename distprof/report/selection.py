"""What of a run a timeline shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.analyze.listed import some
from distprof.report import words

PARTS = ("steps", "zones", "collectives", "findings", "counters", "operators")
_ALWAYS = 2**62


class NothingSelectedError(ValueError):
    """The run has nothing of what was asked for; the message says what it has."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for; None: all.

    Attributes:
        steps: from the first of these to before the second; either may be None.
        parts: some of `PARTS`.
    """

    ranks: frozenset[int] | None = None
    steps: tuple[int | None, int | None] = (None, None)
    parts: frozenset[str] = frozenset(PARTS)

    @property
    def is_of_steps(self) -> bool:
        """Whether only some steps are shown."""
        return self.steps != (None, None)

    def ranks_of(self, ranks: Collection[int]) -> list[int]:
        """Those of the ranks that are shown.

        Args:
            ranks: all that left recordings.

        Raises:
            NothingSelectedError: one that was asked for left none.
        """
        absent = sorted((self.ranks or frozenset()) - set(ranks))
        if absent:
            here = some(sorted(ranks)) or "none"
            raise NothingSelectedError(f"there are no recordings of {words.ranks(absent)}; there are of {here}")
        return sorted(rank for rank in ranks if self.ranks is None or rank in self.ranks)

    @property
    def has_step(self) -> pl.Expr:
        """Whether a row's `step` is shown."""
        first, end = self.steps
        return (pl.col("step") >= (first or 0)) & (pl.col("step") < (_ALWAYS if end is None else end))

    def span_of(self, steps: pl.DataFrame) -> tuple[int, int]:
        """The time that is shown, in ns on the clock of `steps`: from the first rank's beginning of the steps that are
        asked for to the last rank's end of them.

        Raises:
            NothingSelectedError: there is no such step.
        """
        first, end = self.steps
        if not self.is_of_steps:
            return -_ALWAYS, _ALWAYS
        chosen = steps.filter(self.has_step)
        if not len(chosen):
            asked = f"{'' if first is None else first}:{'' if end is None else end}"
            have = some(sorted(steps["step"].unique())) or "none"
            raise NothingSelectedError(f"there is no step in {asked}; the run has {have}")
        begin, until = chosen.select(pl.col("start").min(), pl.col("end").max()).row(0)
        return begin, until


def touching(ranks: Sequence[int], span: tuple[int, int], start: str, end: str) -> pl.Expr:
    """Rows of these ranks that touch a span of time, by their columns `start` and `end`; one without an end is over
    where it starts."""
    return pl.col("rank").is_in(ranks) & (pl.coalesce(end, start) > span[0]) & (pl.col(start) < span[1])
