"""What the ends of collectives tell of the clocks, if a symmetric collective ends on all its members at one moment."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.clock.evidence import Evidence
from distprof.clock.hull import MOST_DRIFT, Floats

_FEWEST = 2  # a single collective would agree with any offset
_FEWEST_FOR_DRIFT = 9  # three in each third
_WITHIN = 0.9  # of the ends the error holds for
_ROUNDED_NS = 1_000.0
_CONFIDENT = 3.0  # standard errors by which a drift must differ from none


@dataclass(frozen=True, slots=True)
class Line:
    """A clock's deviation as the ends have it, over ns since its first record.

    Attributes:
        at_start, at_end: at its first and its last record, in ns.
        error: what nine of ten ends stay within; where the clock goes on before the first or after the last of them,
            also what the drift may add by then. In ns.
    """

    at_start: float
    at_end: float
    error: float


def lines(evidence: Evidence, reference: int, without: Container[int] = ()) -> dict[int, Line]:
    """A line for each clock that ended with clocks whose lines are known, beginning with the reference's.

    Args:
        without: clocks that get none.
    """
    spans = _spans(evidence)
    ends = _since_first(evidence)
    found = {reference: Line(0.0, 0.0, 0.0)}
    while True:
        known = corrected(evidence, found)
        moments = known.group_by("meeting").agg(pl.col("moment").median(), pl.col("error").median())
        open_ = ends.filter(~pl.col("clock").is_in(list(found))).join(moments, on="meeting")
        news = {
            int(clock): _line(own["time"].to_numpy(), own["moment"].to_numpy(), own["error"].to_numpy(), spans[clock])
            for (clock,), own in open_.partition_by("clock", as_dict=True).items()
            if clock not in without and own["meeting"].n_unique() >= _FEWEST
        }
        if not news:
            return found
        found |= news


def corrected(evidence: Evidence, found: Mapping[int, Line]) -> pl.DataFrame:
    """The ends on the clocks whose lines are known, on the reference's clock.

    Returns:
        `meeting`, `rank`, `moment` (ns since the reference's first record), `error` (that of the line, ns).
    """
    spans = _spans(evidence)
    clocks = pl.DataFrame(
        [
            (clock, line.at_start, (line.at_end - line.at_start) / max(spans[clock], 1.0), line.error)
            for clock, line in found.items()
        ],
        schema={"clock": pl.Int32, "ahead": pl.Float64, "drift": pl.Float64, "error": pl.Float64},
        orient="row",
    )
    moment = pl.col("time") - pl.col("ahead") - pl.col("drift") * pl.col("time")
    return _since_first(evidence).join(clocks, on="clock").select("meeting", "rank", moment=moment, error="error")


def _spans(evidence: Evidence) -> Floats:
    spans: Floats = (evidence.spans[:, 1] - evidence.spans[:, 0]).astype(np.float64)
    return spans


def _since_first(evidence: Evidence) -> pl.DataFrame:
    """The ends in ns since the first record of their clock."""
    first = pl.Series(evidence.spans[:, 0]).gather(evidence.ends["clock"])
    return evidence.ends.with_columns(time=(pl.col("time") - first).cast(pl.Float64))


def _line(time: Floats, moment: Floats, error: Floats, span: float) -> Line:
    """The line through ends at `time` of a clock, which were at `moment` of the reference give or take `error`.

    Medians make it, since single ends may come late. Its drift is that between the first and the last third of the
    ends; one that their scatter explains is none.
    """
    ahead = time - moment
    slope, uncertain = 0.0, MOST_DRIFT
    if len(time) >= _FEWEST_FOR_DRIFT:
        third = len(time) // 3
        order = np.argsort(time)
        first, last = order[:third], order[-third:]
        run = max(float(np.median(time[last]) - np.median(time[first])), 1.0)
        rise = float(np.median(ahead[last]) - np.median(ahead[first]))
        rest = ahead - rise / run * time
        deviation = max(1.4826 * float(np.median(np.abs(rest - np.median(rest)))), _ROUNDED_NS)
        # The standard error of a median is 1.2533 of a mean's.
        chance = _CONFIDENT * 1.2533 * deviation * (2 / third) ** 0.5 / run
        slope, uncertain = (rise / run, chance) if chance < abs(rise / run) else (0.0, chance + abs(rise / run))
    start = float(np.median(ahead - slope * time))
    scatter = float(np.quantile(np.abs(ahead - start - slope * time), _WITHIN))
    beyond = max(float(time.min()), span - float(time.max()), 0.0)
    off = scatter + float(np.median(error)) + min(uncertain, MOST_DRIFT) * beyond
    return Line(start, start + slope * float(span), float(off))
