"""Latency and bandwidth of a group's all-reduces, told apart by the sizes that were seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from distprof.analyze.distributions import line_of_positives
from distprof.analyze.steady import MS
from distprof.result import NotObserved, TransferModel

# Sizes that span less cannot tell latency and bandwidth apart; medians of fewer calls are no medians.
_SPAN = 4
_FEWEST_CALLS = 3
# A busy machine scatters single calls; what counts is how well the medians are known.
_LARGEST_ERROR = 0.35
_OF_MEDIAN = 1.4826 * 1.2533  # the standard error of a median, from the median deviation and the number of values
_LEAST_GROWTH = 0.05
_PER_GBPS = 1e6  # bytes per ms


def transfer_models(matched: pl.DataFrame, steady: Sequence[int]) -> tuple[list[TransferModel], list[NotObserved]]:
    """Fit transfer = latency + bytes / bandwidth to each group's all-reduces in steady steps; `matched` is
    `waits.match`'s.

    A transfer is counted from when the backend began with it on the last rank: before that it stood in the queue behind
    others.
    """
    timed = matched.filter(
        (pl.col("kind") == "all_reduce")
        & (pl.col("bytes") > 0)
        & pl.col("step").is_in(list(steady))
        & pl.all_horizontal(pl.col("started", "ended", "binds_until").is_not_null())
    )
    calls = (
        timed.group_by("group", "seq")
        .agg(
            pl.col("bytes").first(),
            ((pl.col("ended") - pl.col("started").max()) / MS).median().alias("took"),
            all_members=pl.len() == pl.col("members").first(),
        )
        .filter(pl.col("all_members") & (pl.col("took") > 0))
    )
    models, reasons = [], []
    for group in sorted(matched.filter(pl.col("kind") == "all_reduce")["group"].unique()):
        of_group = pl.col("group") == group
        fitted = _fit(group, calls.filter(of_group), _at_once(timed.filter(of_group)))
        if isinstance(fitted, str):
            reasons.append(NotObserved("communication.transfer_models", None, f"group {group}: {fitted}"))
        else:
            models.append(fitted)
    return models, reasons


def _at_once(timed: pl.DataFrame) -> int:
    """How many transfers a rank has under way at once, at most."""
    if not len(timed):
        return 0
    one = timed.filter(pl.col("rank") == timed["rank"].min()).sort("started")
    ended = np.searchsorted(np.sort(one["ended"].to_numpy()), one["started"].to_numpy(), side="right")
    return int((np.arange(1, len(one) + 1) - ended).max())


def _fit(group: int, calls: pl.DataFrame, at_once: int) -> TransferModel | str:
    """The model of a group, or why there is none."""
    sizes = (
        calls.group_by("bytes")
        .agg(pl.len().alias("calls"), pl.col("took").median())
        .filter(pl.col("calls") >= _FEWEST_CALLS)
        .sort("bytes")
    )
    if not len(sizes):
        return f"no size of all-reduce was seen {_FEWEST_CALLS} times in steady steps of a window on all members"
    size, took = sizes["bytes"].to_numpy(), sizes["took"].to_numpy()
    if size[-1] < _SPAN * size[0]:
        return f"its all-reduces span less than {_SPAN} times in size: latency and bandwidth cannot be told apart"
    # Both are times, hence not negative; relative errors count, since a small one's are small.
    latency, per_byte = line_of_positives(size, took)
    if size[-1] * per_byte < _LEAST_GROWTH * latency or per_byte <= 0:
        return "its all-reduces take hardly longer the larger they are: only their latency shows"
    off = (
        calls.join(sizes.select("bytes", "calls"), on="bytes")
        .with_columns(off=((latency + pl.col("bytes") * per_byte) / pl.col("took") - 1).abs())
        .with_columns(of_median=_OF_MEDIAN * pl.col("off").median().over("bytes") / pl.col("calls").sqrt())
    )
    uncertain = float(off.select(pl.col("of_median").max()).item())
    if uncertain > _LARGEST_ERROR:
        return f"latency and bandwidth explain the median transfers only to {uncertain:.0%}"
    return TransferModel(
        group=group,
        latency=float(latency),
        algbw_gbps=float(1 / (per_byte * _PER_GBPS)),
        at_once=at_once,
        calls=int(sizes["calls"].sum()),
        smallest_bytes=int(size[0]),
        largest_bytes=int(size[-1]),
        error=float(off.select(pl.col("off").median()).item()),
    )


def predicted(model: TransferModel, size: float) -> float:
    """Transfer of so many bytes, in ms."""
    return model.latency + size / (model.algbw_gbps * _PER_GBPS)
