"""What ranks send each other point to point, as stages of a pipeline do.

Recordings hold little of it. Of a device the kernels are known; gloo's flight recorder leaves it out, so that on a CPU
a window has its spans, and the zones only that a rank waited and no collective was there to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from distprof.analyze.parts import RankParts
from distprof.analyze.ranks import of_rank
from distprof.analyze.steady import times_of_steps
from distprof.trace.kinds import POINT_TO_POINT, SEND_RECV, UNKNOWN
from distprof.trace.tables import Tables

_KINDS = (*POINT_TO_POINT, SEND_RECV)  # what only sends and receives may be an all-to-all: nobody knows
_SPANS = rf"^gloo:({'|'.join(POINT_TO_POINT)})\b"


def exchanges(tables: Tables, steps: list[int], parts: Mapping[int, RankParts]) -> dict[int, str]:
    """Ranks that seem to send or receive in at least half of these steps, and what they do first in most of them: send
    or receive, or `UNKNOWN`."""
    spans = tables.events.filter(pl.col("cat") == "user_annotation").filter(pl.col("name").str.contains(_SPANS))
    told = pl.concat(
        [
            tables.kernels.filter(pl.col("collective").is_in(_KINDS)).select(
                "rank", kind="collective", start=pl.coalesce("launched", "start")
            ),
            spans.select("rank", "start", kind=pl.col("name").str.extract(_SPANS)).select("rank", "kind", "start"),
        ]
    )
    found = ((rank, _first(tables, steps, rank, of_rank(told, rank), parts[rank])) for rank in tables.ranks)
    return {rank: kind for rank, kind in found if kind is not None}


def _first(tables: Tables, steps: list[int], rank: int, told: pl.DataFrame, parts: RankParts) -> str | None:
    waits = pl.DataFrame({"start": parts.unknown[:, 0]}).select(kind=pl.lit(UNKNOWN), start="start")
    seen = pl.concat([told.select("kind", "start"), waits]).sort("start")
    edges = np.searchsorted(seen["start"].to_numpy(), times_of_steps(tables, rank, steps))
    first = seen["kind"].gather(edges[edges[:, 0] < edges[:, 1], 0])
    if not len(first) or 2 * len(first) < len(edges):
        return None
    return next((kind for kind in POINT_TO_POINT if 2 * (first == kind).sum() > len(first)), UNKNOWN)
