"""Whether DDP's buckets fit the latency and the bandwidth that were measured, and the size that would."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import Judged, validate
from distprof.analyze.steady import MS, on_device, steady_steps
from distprof.analyze.transfer_models import predicted
from distprof.result import Bucket, Communication, Finding, TransferModel

_SIZES_MB = (1, 2, 5, 10, 25, 50, 100, 250, 500)
_MB = 1024 * 1024
_WORTH_SHARE = 0.02  # of the step: what is less is not worth a run
_EXPOSED_SHARE = 0.05
_EXPOSED_CRITICAL = 0.25
_FEW_BUCKETS = 2
_MANY_BUCKETS = 8
_TINY_BYTES = 256 * 1024
_DEFAULT_MB = 25  # torch's
_PIECES = 8  # so many buckets leave an eighth of the gradients to be reduced after backward

Floats = npt.NDArray[np.float64]


def of_buckets(inputs: Inputs, judged: Judged) -> list[Finding]:
    """For each DDP model whose buckets are too small or too large; else whether communication is exposed anyway."""
    found = []
    # When a device has a bucket's gradients is not when its host hands the bucket on.
    told = [] if on_device(inputs.tables) else judged.communication.transfer_models
    models = {model.group: model for model in told}
    for name in sorted({bucket.model for bucket in judged.communication.buckets}):
        buckets = [bucket for bucket in judged.communication.buckets if bucket.model == name]
        model = models.get(buckets[0].group)
        if model is None or len({bucket.bucket for bucket in buckets}) < len(buckets):
            continue
        finding = _resized(inputs, judged, buckets, model)
        if finding is not None:
            found.append(finding)
    return found or _exposed(inputs, judged)


def _resized(inputs: Inputs, judged: Judged, buckets: Sequence[Bucket], model: TransferModel) -> Finding | None:
    """A finding where another size of bucket would end a step's reductions earlier, as the model predicts."""
    sizes = np.array([bucket.bytes for bucket in buckets], dtype=np.float64)
    ready = _ready(inputs, buckets[0].model)
    if len(ready) != len(sizes):
        return None
    now = reduced_at(sizes, ready, model)
    ends = {cap: reduced_at(*_cut(sizes, ready, cap * _MB), model) for cap in _SIZES_MB}
    best = min(ends, key=lambda cap: ends[cap])
    saves = now - ends[best]
    if judged.share(saves) < _WORTH_SHARE:
        return None
    small = best * _MB > float(np.median(sizes))
    latency = len(sizes) * model.latency
    cost = (
        f"their latency alone is {latency:.1f} ms per step"
        if small
        else f"the last of them ends {now - float(ready[-1]):.1f} ms after its gradients are there"
    )
    return Finding(
        id="buckets.too_small" if small else "buckets.too_large",
        severity=judged.severity(saves),
        ranks=[],
        steps=[],
        observation=f"DDP reduces {float(sizes.sum()) / _MB:.1f} MiB of gradients in {len(sizes)} "
        f"bucket{'s' if len(sizes) != 1 else ''} ({buckets[0].model}), and {cost}",
        hypothesis=f"buckets are too {'small' if small else 'large'} for {model.latency:.2f} ms of latency and "
        f"{model.algbw_gbps:.2f} GB/s: with {best} MiB backward's reductions would end {saves:.1f} ms earlier",
        next_check=validate(inputs.tables, f"ddp.bucket_cap_mb={best}"),
        evidence={
            "communication.transfer_models.latency": model.latency,
            "communication.transfer_models.algbw_gbps": model.algbw_gbps,
            "communication.buckets.count": float(len(sizes)),
            "communication.buckets.bytes": float(sizes.sum()),
        },
        saves=saves,
    )


def _ready(inputs: Inputs, model: str) -> Floats:
    """When each bucket is created, in ms after its backward began: medians over ranks and steady steps."""
    created = inputs.matched.filter(
        (pl.col("model") == model) & pl.col("step").is_in(steady_steps(inputs.tables)) & pl.col("bucket").is_not_null()
    )
    backward = inputs.tables.zones.filter((pl.col("kind") == "backward") & (pl.col("thread") == 0))
    begun = backward.select("rank", created="start", begun="start").sort("created")
    joined = created.sort("created").join_asof(
        begun, on="created", by="rank", strategy="backward", check_sortedness=False
    )
    after = joined.drop_nulls("begun").group_by("bucket").agg(((pl.col("created") - pl.col("begun")) / MS).median())
    return after.sort("bucket")["created"].to_numpy()


def _cut(sizes: Floats, ready: Floats, cap: float) -> tuple[Floats, Floats]:
    """The same gradients in buckets of `cap` bytes, and when they would be there, interpolated between those seen."""
    total = float(sizes.sum())
    edges = np.append(np.arange(0.0, total, cap), total)
    there = np.interp(edges[1:], np.append(0.0, np.cumsum(sizes)), np.append(0.0, ready))
    return np.diff(edges), there


def reduced_at(sizes: Floats, ready: Floats, model: TransferModel) -> float:
    """When all of the buckets are reduced: ms after backward began. They queue for the links.

    Args:
        sizes: bytes of each.
        ready: when each can be reduced at the earliest, in ms, ascending.
    """
    free = [0.0] * max(1, model.at_once)
    for size, there in zip(sizes.tolist(), ready.tolist(), strict=True):
        heapq.heapreplace(free, max(free[0], there) + predicted(model, size))
    return max(free)


def _exposed(inputs: Inputs, judged: Judged) -> list[Finding]:
    """A finding where gradients' transfers block the training thread for long, and no size is known to help."""
    part: Communication = judged.communication
    overlap = part.gradients
    if overlap is None or overlap.exposed is None or overlap.wait is None or not overlap.total:
        return []
    exposed = overlap.exposed - overlap.wait
    hidden = overlap.saved_by_perfect_overlap or 0.0
    costs, saves = judged.outside(exposed), judged.outside(hidden)
    share = judged.share(costs)
    total_bytes = sum(bucket.bytes for bucket in part.buckets)
    few = len(part.buckets) <= _FEW_BUCKETS and judged.share(saves) > _EXPOSED_SHARE and total_bytes > 2 * _MB
    if not few and share < _EXPOSED_CRITICAL:
        return []
    count = len(part.buckets)
    seen = (
        f"transfers of gradients block the training thread for {exposed:.1f} ms per step in the window, "
        f"{share:.0%} of it"
    )
    evidence = {
        "communication.gradients.exposed": overlap.exposed,
        "communication.gradients.wait": overlap.wait,
        "communication.gradients.saved_by_perfect_overlap": hidden,
    }
    if few:
        cap = max(1, round(total_bytes / _PIECES / _MB))
        return [
            Finding(
                id="buckets.too_large",
                severity=judged.severity(saves),
                ranks=[],
                steps=[],
                observation=f"{seen}; {count} bucket{'s' if count > 1 else ''} of {total_bytes / _MB:.1f} MiB "
                "cannot overlap with the backward that fills them",
                hypothesis="buckets are too large: the first is reduced only when nearly all gradients are there",
                next_check=validate(inputs.tables, f"ddp.bucket_cap_mb={cap}"),
                evidence=evidence,
                saves=saves,
            )
        ]
    if count >= _MANY_BUCKETS and total_bytes / count < _TINY_BYTES:
        return [
            Finding(
                id="buckets.too_small",
                severity=judged.severity(costs),
                ranks=[],
                steps=[],
                observation=f"{seen}; they are {count} buckets of {total_bytes / count / 1024:.0f} KiB in the mean",
                hypothesis="buckets are too small: each costs its latency, however few bytes it carries",
                next_check=validate(inputs.tables, f"ddp.bucket_cap_mb={_DEFAULT_MB}"),
                evidence=evidence | {"communication.buckets.count": float(count)},
                saves=costs,
            )
        ]
    return [
        Finding(
            id="communication.exposed",
            severity=judged.severity(costs),
            ranks=[],
            steps=[],
            observation=seen,
            hypothesis="backward is too short to hide so many gradients: the links, or the cores that serve them, "
            "are slow",
            next_check="accumulate gradients over several backwards (no_sync), or reduce them in half precision "
            "(fp16_compress_hook), and `distprof compare` the runs",
            evidence=evidence,
            saves=costs,
        )
    ]
