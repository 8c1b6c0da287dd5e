"""How well lanes of different ranks fit as one group's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.trace.alignment import (
    FEWEST,
    Ahead,
    Sequence,
    ahead_by,
    align,
    between,
    median,
    pairs,
    sequence_of,
    speaks_against,
)
from distprof.trace.intervals import Times


@dataclass(frozen=True, slots=True)
class Likeness:
    """How well two lanes fit, by the collectives that would be partners.

    Attributes:
        apart: one's ends less the other's, in ns.
        least, most: between these must lie what the one's clock is ahead, in ns, since ends come after all starts.
        share: of the shorter lane's collectives.
    """

    apart: Times
    least: Times
    most: Times
    share: float

    @property
    def offset(self) -> float:
        """What the one's clock is ahead if all of them end together."""
        return median(self.apart) if len(self.apart) else 0.0

    @property
    def spread(self) -> float:
        """How far the ends are from that, in the median."""
        return median(np.abs(self.apart - self.offset)) if len(self.apart) else 0.0

    @property
    def ahead(self) -> Ahead | None:
        """The one's clock; None where no clock allows all of them."""
        return ahead_by(self.apart, self.least, self.most)

    def impossible(self, clock: Ahead) -> int:
        """How many of them cannot be partners by a known clock."""
        return int(np.count_nonzero(speaks_against(self.least, self.most, clock)))


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's collectives of one lane, ready to be compared with many others.

    Attributes:
        sequences: those of each window and family. The long ones come first: what they tell of the clock holds for
            the short ones.
        ends: of all of them.
    """

    sequences: dict[tuple[int, str], Sequence]
    ends: Times

    def __len__(self) -> int:
        return len(self.ends)


def lane_of(occurrences: pl.DataFrame, kinds: Mapping[str, int]) -> Lane:
    """Make a lane of its OCCURRENCES; `kinds` numbers those of all lanes that are compared."""
    parts = occurrences.with_row_index("row").partition_by("window", "family", as_dict=True).items()
    ordered = sorted(parts, key=lambda part: len(part[1]), reverse=True)
    sequences = {(window, family): sequence_of(own, kinds) for (window, family), own in ordered}
    return Lane(sequences, np.concatenate([sequence.end for sequence in sequences.values()]))


def compare(own: Lane, other: Lane, clock: Ahead | None = None) -> Likeness:
    """Align two ranks' lanes as if they were one group's, by what is known of the one's clock."""
    nothing = np.empty(0, dtype=np.int64)
    found = [(nothing, nothing, nothing)]
    for key, a in own.sequences.items():
        b = other.sequences.get(key)
        if b is None:
            continue
        places, _ = align(a, b, clock)
        i, j = pairs(places, b)
        found.append((a.end[i] - b.end[j], *between(a, i, b, j)))
        if clock is None and len(i) >= FEWEST:
            clock = ahead_by(*found[-1])
    apart, least, most = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Likeness(apart, least, most, share=len(apart) / max(1, min(len(own), len(other))))
