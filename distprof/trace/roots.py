"""Roots of collectives, where a recording tells them: whom a broadcast comes from, whom a reduce goes to.

The flight recorder does not tell them. Traces do where shapes were recorded, with the inputs of torch's operators, and
where newer versions of torch describe the collectives of a device. And of DDP's own broadcasts the root is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from distprof.result import Group
from distprof.trace.intervals import innermost
from distprof.trace.kinds import FROM_ROOT, TO_ROOT, kind_of
from distprof.trace.recordings import DdpFacts

# Operators of torch that were called with a root: when, and its place among the members of the group.
TOLD: dict[str, Any] = {"start": pl.Int64, "end": pl.Int64, "kind": pl.String, "root": pl.Int64}

ROOTED = (*FROM_ROOT, *TO_ROOT)
# Which of the inputs of `c10d::broadcast_` and the others is the root.
_INPUT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
_BUFFERS = "broadcast of buffers"  # the zone around it
_MOST_DIGITS = 9


def root_of_inputs(operator: str, inputs: bytes | msgspec.Raw) -> int | None:
    """The root among a group's members that one of torch's operators was called with; None where that is not told.

    Args:
        inputs: its `Concrete Inputs` in a trace, as JSON.
    """
    place = _INPUT.get(kind_of(operator))
    if place is None:
        return None
    try:
        told = msgspec.json.decode(inputs, type=list[str])
    except (msgspec.MsgspecError, RecursionError):
        return None
    root = told[place] if place < len(told) else ""
    return int(root) if root.isascii() and root.isdigit() and len(root) <= _MOST_DIGITS else None


def root_of_record(collective: object, rank: object) -> int | None:
    """The same by `record_param_comms`, whose `Rank` is the root's for collectives that have one."""
    rooted = isinstance(collective, str) and kind_of(collective) in ROOTED
    return rank if rooted and type(rank) is int and 0 <= rank < 10**_MOST_DIGITS else None


def told_roots(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """TOLD of one trace's FILE_EVENTS and CALLS."""
    rooted = calls.drop_nulls("root").select("row", "root")
    told = events.with_row_index("row").join(rooted, on="row").filter(pl.col("cat") == "cpu_op")
    kinds = told["name"].map_elements(kind_of, return_dtype=pl.String)
    operators = told.with_columns(kind=kinds).filter(pl.col("kind").is_in(ROOTED)).sort("start")
    return operators.select(pl.col(name).cast(dtype) for name, dtype in TOLD.items())


def roots_of(
    entries: pl.DataFrame,
    told: pl.DataFrame,
    training: pl.DataFrame,
    models: Sequence[DdpFacts],
    groups: Sequence[Group],
) -> pl.Series:
    """The root of each of one rank's collectives, null where it is not known.

    Args:
        entries: ENTRIES with their kinds and the ids of their groups, in the order of `record`.
        told: TOLD of the rank's windows.
        training: ZONES of its training thread.
        models: its DDP instances.
    """
    place = _told(entries, told)
    if models:
        place = place.fill_null(_of_ddp(entries, training))
    members = {group.id: group.members for group in groups}
    ranks = [
        members[group][root] if root is not None and root < len(members[group]) else None
        for group, root in zip(entries["group"], place, strict=True)
    ]
    return pl.Series(ranks, dtype=pl.Int32)


def _told(entries: pl.DataFrame, told: pl.DataFrame) -> pl.Series:
    """By the operator that an entry was created in."""
    row = innermost(told["start"].to_numpy(), told["end"].to_numpy() + 1, entries["created"].to_numpy())
    rows = pl.Series(row).replace(-1, None).cast(pl.UInt32)
    same = told["kind"].gather(rows) == entries["kind"]
    return pl.select(pl.when(same).then(told["root"].gather(rows))).to_series()


def _of_ddp(entries: pl.DataFrame, training: pl.DataFrame) -> pl.Series:
    """DDP's broadcasts of its buffers: they come from a group's first member.

    Before them forward creates nothing else, unless ranks have different numbers of batches: then they first look for a
    root that is still there.
    """
    forward = training.filter(pl.col("kind").is_in(("forward", "evaluation"))).sort("start", "end")
    buffers = training.filter(pl.col("name") == _BUFFERS).sort("start", "end")
    created, kind = entries["created"].to_numpy(), entries["kind"].to_numpy()
    of_forward = innermost(forward["start"].to_numpy(), forward["end"].to_numpy(), created)
    of_buffers = innermost(buffers["start"].to_numpy(), buffers["end"].to_numpy(), created)
    others = np.sort(created[kind != "broadcast"])
    begin = np.append(forward["start"].to_numpy(), 0)[of_forward]
    first = np.searchsorted(others, begin) == np.searchsorted(others, created)
    own = (kind == "broadcast") & (of_forward >= 0) & (of_buffers >= 0) & first
    return pl.select(pl.when(pl.Series(own)).then(pl.lit(0, pl.Int64))).to_series()
