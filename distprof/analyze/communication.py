"""How much communication there is, how much of it blocks, per rank, kind and DDP bucket."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from distprof.analyze.inputs import Inputs
from distprof.analyze.parts import RankParts
from distprof.analyze.steady import MS, steady_steps, times_of_steps
from distprof.analyze.waits import SYMMETRIC, RankWaits
from distprof.result import Bucket, CollectiveKind, Communication, NotObserved, RankCommunication
from distprof.trace import intervals
from distprof.trace.intervals import Intervals
from distprof.trace.tables import Tables

_KNOWN = (*SYMMETRIC, "broadcast", "reduce", "gather", "scatter", "send", "recv")
_CLEAR_MAJORITY = 0.5
# Bus bandwidth is what each link carries: algorithm bandwidth times this factor of n ranks (as nccl-tests define it).
_BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: float(n - 1),
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


def communication(inputs: Inputs) -> tuple[Communication, list[NotObserved]]:
    """Communication per steady step: of the window's steps where each rank has some, else what the whole run tells."""
    tables, matched, waits, parts = inputs.tables, inputs.matched, inputs.waits, inputs.parts
    in_window = bool(tables.ranks) and all(len(parts[rank].steps) for rank in tables.ranks)
    steady = steady_steps(tables)
    per_rank, used = [], 0
    for rank in tables.ranks:
        steps = parts[rank].steps if in_window else times_of_steps(tables, rank, steady)
        used = len(steps)
        per_rank.append(_of_rank(parts[rank], waits[rank], steps, rank, in_window))
    logical = matched.unique(["group", "seq", "kind"])
    known = logical.filter(pl.col("kind").is_in(_KNOWN))
    section = Communication(
        basis="window" if in_window else "zones",
        steps_used=used,
        collectives=logical.height,
        matched=logical.filter(pl.col("seen") == pl.col("members")).height,
        unmatched=logical.filter(pl.col("seen") != pl.col("members")).height,
        unclassified=logical.height - known.height,
        total=_mean([row.total for row in per_rank]),
        exposed=_mean([row.exposed for row in per_rank]),
        overlapped=_difference(_mean([row.total for row in per_rank]), _mean([row.exposed for row in per_rank])),
        wait=_mean([row.wait for row in per_rank]),
        transfer=_mean([row.transfer for row in per_rank]),
        per_rank=per_rank,
        by_kind=_by_kind(matched),
        buckets=_buckets(tables, matched, steady),
    )
    return section, _missing(tables, section, in_window)


def _of_rank(parts: RankParts, waits: RankWaits, steps: Intervals, rank: int, in_window: bool) -> RankCommunication:
    def per_step(a: Intervals) -> float | None:
        return float(intervals.covered(a, steps[:, 0], steps[:, 1]).mean()) / MS if len(steps) else None

    total = per_step(parts.collectives) if in_window else None
    exposed = None
    if in_window:
        cut = intervals.assign(steps[:, 0], steps[:, 1], [parts.data, parts.compute, parts.wait, parts.transfer])
        exposed = float(cut[:, 2:4].sum(axis=1).mean()) / MS
    wait = per_step(waits.waits)
    return RankCommunication(rank=rank, total=total, exposed=exposed, wait=wait, transfer=_difference(total, wait))


def _wait() -> pl.Expr:
    return (pl.col("binds_until") - pl.col("created")) / MS


def _transfer() -> pl.Expr:
    # An end before the last participant's creation cannot be; clocks of one host differ by less than a rounding.
    return ((pl.col("ended") - pl.col("binds_until")) / MS).clip(lower_bound=0.0)


def _by_kind(matched: pl.DataFrame) -> list[CollectiveKind]:
    table = (
        matched.group_by("kind", "group", "bytes")
        .agg(
            pl.struct("group", "seq").n_unique().alias("count"),
            pl.col("members").first(),
            _wait().mean().alias("wait"),
            _transfer().mean().alias("transfer"),
        )
        .sort(["kind", "group", "bytes"])
    )
    rows = []
    for row in table.iter_rows(named=True):
        transfer, size = row["transfer"], row["bytes"]
        algbw = size / (transfer * 1e6) if transfer and size else None
        factor = _BUS_FACTOR.get(row["kind"])
        rows.append(
            CollectiveKind(
                kind=row["kind"],
                group=row["group"],
                bytes=size,
                count=row["count"],
                wait=row["wait"],
                transfer=transfer,
                algbw_gbps=algbw,
                busbw_gbps=algbw * factor(row["members"]) if algbw is not None and factor else None,
            )
        )
    return rows


def _buckets(tables: Tables, matched: pl.DataFrame, steady: list[int]) -> list[Bucket]:
    reduced = matched.filter(pl.col("bucket").is_not_null() & pl.col("step").is_in(steady))
    table = (
        reduced.group_by("model", "bucket", "group", "bytes")
        .agg(
            pl.col("seq").n_unique().alias("count"),
            _wait().mean().alias("wait"),
            _transfer().mean().alias("transfer"),
            pl.col("last_rank").drop_nulls().mode().first().alias("last_rank"),
            (pl.col("last_rank") == pl.col("last_rank").drop_nulls().mode().first()).mean().alias("last_share"),
        )
        .sort("model", "bucket", "bytes")
    )
    params = {row["name"]: row["params"] for facts in tables.facts.values() for row in facts.get("ddp", ())}
    rows = []
    for row in table.iter_rows(named=True):
        names = params.get(row["model"])
        clear = row["last_share"] is not None and row["last_share"] >= _CLEAR_MAJORITY
        rows.append(
            Bucket(
                **{key: row[key] for key in ("model", "bucket", "group", "bytes", "count", "wait", "transfer")},
                params=names[row["bucket"]] if names and row["bucket"] < len(names) else None,
                last_rank=row["last_rank"] if clear else None,
                last_share=row["last_share"] if clear else None,
            )
        )
    return rows


def _missing(tables: Tables, section: Communication, in_window: bool) -> list[NotObserved]:
    missing = []
    if tables.world_size > 1 and not section.collectives:
        missing.append(NotObserved("communication", None, "the flight recorder holds no collective of this run"))
    if not in_window:
        reason = "ends of collectives are seen in a Kineto window only, and not every rank has a steady step inside one"
        missing += [
            NotObserved(f"communication.{name}", None, reason)
            for name in ("total", "exposed", "overlapped", "transfer")
        ]
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
