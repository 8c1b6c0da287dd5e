"""Joining the kernels of a Kineto window with the flight recorder's entries of the collectives that they carry out.

By the group's name and the sequence number, where the trace tells them; else by the call of torch that created both: an
entry is made while it lasts, and the kernel launched. What these leave open stays unjoined.
"""

from __future__ import annotations

import polars as pl

from distprof.trace.alignment import VAGUE
from distprof.trace.intervals import innermost

# Times of an event are rounded, older ones to us.
_TOLERANCE_NS = 1_000


def join_kernels(entries: pl.DataFrame, carried_out: pl.DataFrame) -> dict[int, int]:
    """Join one rank's entries with what its windows hold.

    Args:
        entries: its ENTRIES with their kinds, `group_name` and `generation`.
        carried_out: CARRIED_OUT of its windows.

    Returns:
        Row of `entries` -> row of `carried_out`.
    """
    if not len(carried_out):
        return {}
    made = entries.with_row_index("entry").filter(~pl.col("p2p"))
    done = carried_out.with_row_index("done").rename({"created": "called"})
    numbered = _numbered(made, done)
    made, done = made.join(numbered, on="entry", how="anti"), done.join(numbered, on="done", how="anti")
    return dict(pl.concat([numbered, _created_inside(made, done)]).iter_rows())


def _numbered(made: pl.DataFrame, done: pl.DataFrame) -> pl.DataFrame:
    key = ["group_name", "seq"]
    done = done.drop_nulls(["group", "seq"]).rename({"group": "group_name"})
    both = made.select("entry", "created", "kind", "generation", *key).join(
        done.select("done", "ended", *key, done_kind="kind"), on=key
    )
    # A new group of an old one's name counts anew; each kernel is of the last generation that had made it.
    both = both.filter(_same_kind() & (pl.col("created") <= pl.col("ended")))
    both = both.filter(pl.col("generation") == pl.col("generation").max().over("done"))
    return _one_to_one(both)


def _created_inside(made: pl.DataFrame, done: pl.DataFrame) -> pl.DataFrame:
    done = done.drop_nulls("returned").sort("called")
    call = innermost(
        done["called"].to_numpy() - _TOLERANCE_NS,
        done["returned"].to_numpy() + _TOLERANCE_NS,
        made["created"].to_numpy(),
    )
    calls = done.select("done", done_kind="kind", done_group="group", done_seq="seq").with_row_index("call")
    both = made.with_columns(call=pl.Series(call).replace(-1, None).cast(pl.UInt32)).join(calls, on="call")
    # A number that is told and was not found is another collective's.
    same_group = pl.col("done_group").is_null() | (pl.col("done_group") == pl.col("group_name"))
    same_seq = pl.col("done_seq").is_null() | pl.col("done_group").is_null() | (pl.col("done_seq") == pl.col("seq"))
    return _one_to_one(both.filter(_same_kind() & same_group & same_seq))


def _same_kind() -> pl.Expr:
    return (pl.col("kind") == pl.col("done_kind")) | pl.col("done_kind").is_in(VAGUE)


def _one_to_one(both: pl.DataFrame) -> pl.DataFrame:
    """Coalesced collectives share a number and a call: which of them is which is not told."""
    alone = (pl.len().over("entry") == 1) & (pl.len().over("done") == 1)
    return both.filter(alone).select("entry", "done")
