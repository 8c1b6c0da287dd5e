"""The table of collectives: what the flight recorders of all ranks say, put into its place in each rank's run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from distprof.result import Group
from distprof.trace.buckets import GRADIENT_DTYPES, Bucket, number_buckets
from distprof.trace.carried_out import join_kernels
from distprof.trace.gloo import join_spans
from distprof.trace.intervals import Times, innermost
from distprof.trace.kernels import CARRIED_OUT
from distprof.trace.kinds import KINDS
from distprof.trace.recordings import DdpFacts, Facts
from distprof.trace.roots import TOLD, roots_of
from distprof.trace.steps import outermost_backwards
from distprof.trace.tables import COLLECTIVES, empty

_REDUCTIONS = ("all_reduce", "reduce_scatter")


def with_kinds(entries: pl.DataFrame) -> pl.DataFrame:
    """ENTRIES with a column `kind`: `gloo:all_reduce` and `nccl:all_reduce_coalesced` are both an `all_reduce`."""
    operation = pl.col("op").str.strip_prefix("gloo:").str.replace(r"^(nccl|ucc|mpi|xccl):", "")
    return entries.with_columns(kind=operation.replace(KINDS))


def reductions(entries: pl.DataFrame) -> pl.DataFrame:
    """`rank` and `created` of the collectives with which gradients are reduced."""
    return entries.filter(pl.col("kind").is_in(_REDUCTIONS)).select("rank", "created")


def build_collectives(
    *,
    entries: pl.DataFrame,
    zones: pl.DataFrame,
    steps: pl.DataFrame,
    events: pl.DataFrame,
    windows: pl.DataFrame,
    facts: Mapping[int, Facts],
    told: Mapping[int, pl.DataFrame] = MappingProxyType({}),
    carried_out: Mapping[int, pl.DataFrame] = MappingProxyType({}),
) -> tuple[pl.DataFrame, list[Group]]:
    """Put each collective into its group, step and zone, number DDP's buckets, and join gloo's spans and kernels.

    Point-to-point operations are left out: they are numbered apart and belong to two ranks only.

    Args:
        entries: ENTRIES of all ranks, with their kinds.
        zones, steps, windows: tables of all ranks.
        events: KINETO_EVENTS of all ranks.
        facts: of each rank.
        told: rank -> TOLD of its windows, where these tell roots.
        carried_out: rank -> CARRIED_OUT of its windows, where these hold kernels.

    Returns:
        A COLLECTIVES table, and the process groups that its ids refer to.
    """
    entries = _with_generations(entries)
    groups, ids = _groups(entries, facts)
    key = ["rank", "group_name", "generation"]
    named = entries.rename({"group": "group_name"}).join(ids, on=key, how="left")
    parts = [
        _of_rank(
            entries=of_rank.sort("record"),
            training=zones.filter((pl.col("rank") == rank) & (pl.col("thread") == 0)),
            steps=steps.filter(pl.col("rank") == rank),
            events=events.filter(pl.col("rank") == rank),
            windows=windows.filter(pl.col("rank") == rank),
            models=facts[rank].ddp,
            told=told.get(rank, empty(TOLD)),
            carried_out=carried_out.get(rank, empty(CARRIED_OUT)),
            groups=groups,
        )
        for (rank,), of_rank in named.partition_by("rank", as_dict=True).items()
    ]
    table = pl.concat([empty(COLLECTIVES), *parts])
    return table.sort("rank", "created", "group", "seq"), groups


def _of_rank(
    *,
    entries: pl.DataFrame,
    training: pl.DataFrame,
    steps: pl.DataFrame,
    events: pl.DataFrame,
    windows: pl.DataFrame,
    models: list[DdpFacts],
    told: pl.DataFrame,
    carried_out: pl.DataFrame,
    groups: list[Group],
) -> pl.DataFrame:
    # Of a device's collectives the recorder tells when the host noticed that they had begun and were over. Kernels do.
    told_at = entries.select("started", "ended")
    told_at = told_at.clear(len(entries)) if len(carried_out) else told_at
    started, ended = told_at["started"].to_list(), told_at["ended"].to_list()
    for index, start, end in windows.select("window", "start", "end").iter_rows():
        of_window = events.filter(pl.col("window") == index)
        for entry, span in join_spans(entries, of_window, start, end).items():
            begin, over, finished = of_window.select("start", "end", "finished").row(span)
            started[entry] = begin
            ended[entry] = over if finished else None
    for entry, kernel in join_kernels(entries, carried_out).items():
        started[entry], ended[entry] = carried_out.select("started", "ended").row(kernel)
    created = entries["created"].to_numpy()
    zone = innermost(training["start"].to_numpy(), training["end"].to_numpy(), created)
    step = innermost(steps["start"].to_numpy(), steps["end"].to_numpy(), created)
    buckets = _buckets(entries, training, models)
    return (
        entries.with_columns(
            started=pl.Series(started, dtype=pl.Int64),
            ended=pl.Series(ended, dtype=pl.Int64),
            zone=_gather(training["kind"], zone),
            step=_gather(steps["step"], step),
            model=pl.Series([bucket and bucket[0] for bucket in buckets], dtype=pl.String),
            bucket=pl.Series([bucket and bucket[1] for bucket in buckets], dtype=pl.Int32),
            root=roots_of(entries, told, training, models, groups),
        )
        .filter(~pl.col("p2p"))
        .select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items())
    )


def _gather(values: pl.Series, rows: Times) -> pl.Series:
    return values.gather(pl.Series(rows).replace(-1, None).cast(pl.UInt32))


def _buckets(entries: pl.DataFrame, training: pl.DataFrame, models: list[DdpFacts]) -> list[Bucket | None]:
    found: list[Bucket | None] = [None] * len(entries)
    start, end = outermost_backwards(training)
    if not models or not len(start):
        return found
    gradients = (
        entries.with_row_index("row")
        .with_columns(backward=pl.Series(innermost(start, end, entries["created"].to_numpy())))
        .filter((pl.col("kind") == "all_reduce") & pl.col("dtype").is_in(GRADIENT_DTYPES) & (pl.col("backward") >= 0))
    )
    known: dict[tuple[tuple[int | None, ...], tuple[int, ...]], list[Bucket | None]] = {}
    by_backward = gradients.group_by("backward", maintain_order=True).agg("row", "bytes", "group")
    for rows, sizes, groups in by_backward.select("row", "bytes", "group").iter_rows():
        sequence = tuple(sizes), tuple(groups)
        if sequence not in known:
            known[sequence] = number_buckets(*sequence, models)
        for row, bucket in zip(rows, known[sequence], strict=True):
            found[row] = bucket
    return found


def _with_generations(entries: pl.DataFrame) -> pl.DataFrame:
    """Entries with a column `generation`, from 0 for each rank and group.

    After `destroy_process_group` a new group gets the old one's name, and counts from 1 again: it begins where a number
    comes that its rank and group have had. A number that is lower than the one before may only have been overtaken by
    another thread's; and NCCL's collectives that are coalesced share a number.
    """
    ordered = entries.sort("rank", "record")
    generations = [0] * len(ordered)
    numbered = ordered.with_row_index("row").with_columns(gloo=pl.col("op").str.starts_with("gloo:"))
    again = (pl.len().over("rank", "group", "seq", "p2p") > 1) & ~pl.col("p2p")
    reused = numbered.filter(again.any().over("rank", "group"))
    for own in reused.partition_by("rank", "group"):
        generation, last, seen = 0, None, set[int]()
        for row, seq, p2p, gloo in own.select("row", "seq", "p2p", "gloo").iter_rows():
            if not p2p:
                if seq in seen and (gloo or seq != last):
                    generation += 1
                    seen.clear()
                seen.add(seq)
                last = seq
            generations[row] = generation
    return ordered.with_columns(generation=pl.Series(generations, dtype=pl.Int32))


def _groups(entries: pl.DataFrame, facts: Mapping[int, Facts]) -> tuple[list[Group], pl.DataFrame]:
    """All process groups, each once; and each rank's names for them in the order in which it made them (`made`)."""
    groups: dict[tuple[str, tuple[int, ...], int], Group] = {}
    ids: dict[tuple[int, str, int], int] = {}

    def add(name: str, desc: str | None, members: list[int], generation: int = 0) -> int:
        if generation:
            desc = f"{desc + ', ' if desc else ''}generation {generation + 1}: made anew under the same name"
        group = Group(id=len(groups), name=name, desc=desc, members=sorted(members))
        return groups.setdefault((name, tuple(group.members), generation), group).id

    for rank, of_rank in sorted(facts.items()):
        for told in of_rank.groups:
            ids[rank, told.name, 0] = add(told.name, told.desc, told.ranks)
    used = entries.select("generation", "rank", "group").unique().sort("generation", "rank", "group").rows()
    # Facts may be lost, or older than a group: then another member's facts tell, or else those that used the name.
    nameless = [(rank, name) for generation, rank, name in used if not generation and (rank, name, 0) not in ids]
    for rank, name in nameless:
        known = [group for group in groups.values() if group.name == name and rank in group.members]
        members = [other for other, its_name in nameless if its_name == name]
        ids[rank, name, 0] = known[0].id if known else add(name, None, members)
    first = list(groups.values())
    for generation, rank, name in used:
        if generation:
            group = first[ids[rank, name, 0]]
            ids[rank, name, generation] = add(name, group.desc, group.members, generation)
    rows = [(*key, number, made) for made, (key, number) in enumerate(ids.items())]
    schema = {
        "rank": pl.Int32,
        "group_name": pl.String,
        "generation": pl.Int32,
        "group": pl.Int32,
        "made": pl.Int32,
    }
    return list(groups.values()), pl.DataFrame(rows, schema=schema, orient="row")
