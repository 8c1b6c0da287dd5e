"""How much communication there is, how much of it blocks, per rank, kind and DDP bucket."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.analyze.bandwidth import bandwidths
from distprof.analyze.device_parts import UNBOUND_DEVICE, steps_known
from distprof.analyze.distributions import binomial_tail
from distprof.analyze.gradients import gradient_overlap
from distprof.analyze.inputs import NO_WORK, Inputs
from distprof.analyze.parts import ENDLESS
from distprof.analyze.steady import MS, NO_STEP, on_device, prefer, steady_steps, times_of_steps
from distprof.analyze.transfer_models import transfer_models
from distprof.analyze.waits import SYMMETRIC, UNBOUND
from distprof.result import Bucket, CollectiveKind, Communication, GradientOverlap, NotObserved, RankCommunication
from distprof.trace import intervals
from distprof.trace.intervals import Intervals, Times
from distprof.trace.tables import Tables

_KNOWN = (*SYMMETRIC, "broadcast", "reduce", "gather", "scatter", "send", "recv")
_CHANCE = 0.01
_CLEAR_MAJORITY = 2 / 3  # of two ranks one is the last in half of the steps anyway
_NO_WINDOW = (
    "ends of collectives are seen in a Kineto window only, and the ranks have no steady step inside one in common"
)
_NO_COMMON_WINDOW = "the ranks whose windows hold work of a device have no steady step inside one in common"
_NO_WAIT = "it is not known who binds some of these, not all members' recordings hold them, or no steady step does"
_NO_TRANSFER = f"{_NO_WAIT}; or no Kineto window shows their end"


def communication(inputs: Inputs) -> tuple[Communication, list[NotObserved]]:
    """Communication per steady step: of the window's steps that all ranks have, else what the whole run tells."""
    tables, parts = inputs.tables, inputs.parts
    device = on_device(tables)
    # Of a device's collectives the windows tell, on ranks that have one.
    matched = inputs.compared if device else inputs.matched
    windowed = sorted(inputs.devices) if device else inputs.own.ranks
    steady = steady_steps(tables)
    in_windows = [step for step in steady if windowed and all(step in parts[rank].steps for rank in windowed)]
    known = steps_known(tables, inputs.devices) if device else inputs.bound
    used, bound = prefer(in_windows or steady, known if in_windows or not device else set())
    per_rank = [
        of_device(inputs, rank, used if in_windows else [], known=bound)
        if device
        else _of_rank(inputs, rank, used, in_window=bool(in_windows), bound=bound)
        for rank in inputs.own.ranks
    ]
    logical = matched.unique(["group", "seq", "kind"])
    recorded = tables.world_size == 1 or logical.height > 0
    total, exposed, wait, transfer = (
        _mean([getattr(row, name) for row in per_rank]) for name in ("total", "exposed", "wait", "transfer")
    )

    overlap = gradient_overlap(inputs, used, bound=bound) if in_windows else _NO_WINDOW
    models, no_model = transfer_models(matched, steady)

    def count(which: pl.Expr) -> int | None:
        return logical.filter(which).height if recorded else None

    section = Communication(
        basis="window" if in_windows else "zones",
        steps_used=len(used),
        collectives=count(pl.lit(True)),
        matched=count(pl.col("seen") == pl.col("members")),
        unmatched=count(pl.col("seen") < pl.col("recorded")),
        unclassified=count(~pl.col("kind").is_in(_KNOWN)),
        total=total,
        exposed=exposed,
        overlapped=_difference(total, exposed),
        wait=wait,
        transfer=transfer,
        per_rank=per_rank,
        by_kind=by_kind(matched, pl.col("step").is_in(steady)),
        buckets=_buckets(tables, matched, steady),
        gradients=overlap if isinstance(overlap, GradientOverlap) else None,
        transfer_models=models,
    )
    missing = _missing(inputs, section, bound=bound)
    if section.collectives is not None:
        missing += [*_missing_overlap(overlap), *no_model]
    return section, missing


def _of_rank(inputs: Inputs, rank: int, used: list[int], *, in_window: bool, bound: bool) -> RankCommunication:
    parts = inputs.parts[rank]
    steps = times_of_steps(inputs.tables, rank, used)
    in_flight = parts.in_flight(steps) if in_window else None

    def mean(ns: Times) -> float | None:
        return float(ns.mean()) / MS if len(ns) else None

    def covered(part: Intervals) -> Times:
        return intervals.covered(part, steps[:, 0], steps[:, 1])

    total = None if in_flight is None else mean(in_flight)
    wait = mean(covered(inputs.waits[rank].pending)) if bound else None
    return RankCommunication(
        rank=rank,
        total=total,
        exposed=None if in_flight is None else mean(covered(parts.exposed)),
        wait=wait,
        transfer=_difference(total, wait),
    )


def of_device(inputs: Inputs, rank: int, used: list[int], *, known: bool) -> RankCommunication:
    """A rank's communication by its device's kernels, in steps of its windows.

    Args:
        known: whether it is known in them who waited for whom.
    """
    parts = inputs.devices.get(rank)
    steps = times_of_steps(inputs.tables, rank, used)
    if parts is None or not len(steps) or not (len(parts.comm) or inputs.tables.world_size == 1):
        return RankCommunication(rank, total=None, exposed=None, wait=None, transfer=None)

    def mean(a: Intervals) -> float:
        return float(intervals.covered(a, steps[:, 0], steps[:, 1]).mean()) / MS

    total = mean(parts.comm)
    wait = mean(parts.wait) if known else None
    return RankCommunication(
        rank=rank,
        total=total,
        exposed=mean(intervals.subtract(parts.comm, parts.compute)),
        wait=wait,
        transfer=_difference(total, wait),
    )


def _wait() -> pl.Expr:
    return (pl.col("binds_until") - pl.col("arrived")) / MS


def _transfer() -> pl.Expr:
    # An end before the last participant's arrival cannot be; one host's clock is rounded, devices' differ by some us.
    return ((pl.col("ended") - pl.col("binds_until")) / MS).clip(lower_bound=0.0)


def by_kind(matched: pl.DataFrame, timed: pl.Expr) -> list[CollectiveKind]:
    """All calls are counted; how long they take is told by those that are `timed`, as start-up would drown it."""
    table = (
        matched.group_by("kind", "group", "bytes")
        .agg(
            pl.col("seq").n_unique().alias("count"),
            pl.col("members").first(),
            _wait().filter(timed).mean().alias("wait"),
            _transfer().filter(timed).mean().alias("transfer"),
        )
        .sort(["kind", "group", "bytes"])
    )
    rows = []
    for row in table.iter_rows(named=True):
        transfer, size = row["transfer"], row["bytes"]
        algbw, busbw = bandwidths(row["kind"], row["members"], size, transfer)
        rows.append(
            CollectiveKind(
                kind=row["kind"],
                group=row["group"],
                bytes=size,
                count=row["count"],
                wait=row["wait"],
                transfer=transfer,
                algbw_gbps=algbw,
                busbw_gbps=busbw,
            )
        )
    return rows


def _buckets(tables: Tables, matched: pl.DataFrame, steady: list[int]) -> list[Bucket]:
    reduced = matched.filter(pl.col("bucket").is_not_null() & pl.col("step").is_in(steady))
    most_often = pl.col("last_rank").drop_nulls().mode().min()
    table = (
        reduced.group_by("model", "bucket", "group", "bytes")
        .agg(
            pl.col("seq").n_unique().alias("count"),
            _wait().mean().alias("wait"),
            _transfer().mean().alias("transfer"),
            most_often.alias("last_rank"),
            pl.col("members").first(),
            (pl.col("last_rank") == most_often).mean().alias("last_share"),
        )
        .sort("model", "bucket", "bytes")
    )
    params = {row["name"]: row["params"] for facts in tables.facts.values() for row in facts.get("ddp", ())}
    rows = []
    for row in table.iter_rows(named=True):
        names = params.get(row["model"])
        algbw, busbw = bandwidths("all_reduce", row["members"], row["bytes"], row["transfer"])
        clear = row["last_rank"] is not None and _more_than_chance(row["last_share"], row["count"], row["members"])
        rows.append(
            Bucket(
                **{key: row[key] for key in ("model", "bucket", "group", "bytes", "count", "wait", "transfer")},
                params=names[row["bucket"]] if names and row["bucket"] < len(names) else None,
                last_rank=row["last_rank"] if clear else None,
                last_share=row["last_share"] if clear else None,
                algbw_gbps=algbw,
                busbw_gbps=busbw,
            )
        )
    return rows


def _missing_overlap(overlap: GradientOverlap | str) -> list[NotObserved]:
    if isinstance(overlap, str):
        return [NotObserved("communication.gradients", None, overlap)]
    figures = ("wait", "saved_by_perfect_overlap")
    return [
        NotObserved(f"communication.gradients.{name}", None, UNBOUND)
        for name in figures
        if getattr(overlap, name) is None
    ]


def _more_than_chance(share: float, count: int, members: int) -> bool:
    """Whether a rank was the last in a clear majority of `count` reductions, and more often than ranks taking turns
    at random would make one of them."""
    by_chance = binomial_tail(round(share * count), count, 1 / members)
    return bool(share >= _CLEAR_MAJORITY and by_chance < _CHANCE)


def _missing(inputs: Inputs, section: Communication, *, bound: bool) -> list[NotObserved]:
    tables, missing = inputs.tables, []

    device = on_device(tables)

    def why_not(figure: str) -> str:
        if not section.steps_used:
            return NO_STEP
        if device and (section.basis == "zones" or len(inputs.devices) < len(section.per_rank)):
            return _NO_COMMON_WINDOW if inputs.devices and section.basis == "zones" else NO_WORK
        if figure in ("wait", "transfer") and not bound:
            return UNBOUND_DEVICE if device else UNBOUND
        return _NO_WINDOW if section.basis == "zones" else ENDLESS

    if section.collectives is None:
        missing.append(NotObserved("communication", None, "the flight recorder holds no collective of this run"))
    else:
        for name in ("total", "exposed", "overlapped", "wait", "transfer"):
            if getattr(section, name) is None:
                missing.append(NotObserved(f"communication.{name}", None, why_not(name)))
        for part in ("by_kind", "buckets"):
            for name, reason in (("wait", _NO_WAIT), ("transfer", _NO_TRANSFER)):
                if any(getattr(row, name) is None for row in getattr(section, part)):
                    missing.append(NotObserved(f"communication.{part}.{name}", None, reason))
    without = sorted(set(tables.ranks).difference(inputs.own.ranks))
    if without:
        missing.append(NotObserved("communication.per_rank", without, NO_STEP))
    if any(facts.get("ddp") for facts in tables.facts.values()) and not section.buckets:
        missing.append(NotObserved("communication.buckets", None, "no all-reduce could be told to be a DDP bucket's"))
    lost = {
        rank: facts["own_cost"]["lost_collectives"]
        for rank, facts in tables.facts.items()
        if (facts.get("own_cost") or {}).get("lost_collectives")
    }
    if lost:
        text = f"the flight recorder's ring overflowed and lost {sum(lost.values())} of them"
        missing.append(NotObserved("communication.collectives", sorted(lost), text))
    return missing


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(0.0, a - b)
