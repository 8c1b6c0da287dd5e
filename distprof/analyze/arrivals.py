"""Who arrived when at each collective, and who was the last, in traces that others recorded."""

from __future__ import annotations

import polars as pl

from distprof.trace.kinds import SYMMETRIC
from distprof.trace.tables import Tables


def arrivals(tables: Tables) -> pl.DataFrame:
    """`tables.collectives` with columns that compare the ranks.

    `arrived` is in ns, on one clock as far as the tables are; `members` counts the ranks of the group and `seen` those
    that recorded the collective. For a symmetric one that all of several members recorded there are `last_arrived`
    (ns), `last_rank` if it was the only one, `late_ns` by which it came after the `second_rank`, and `ends_apart` (ns
    from the first end to the last); else these are null.
    """
    sizes = pl.DataFrame(
        {"group": [group.id for group in tables.groups], "members": [len(group.members) for group in tables.groups]},
        schema={"group": pl.Int32, "members": pl.Int64},
    )
    one = ("group", "seq", "kind")
    arrived = pl.col("arrived")
    table = tables.collectives.join(sizes, on="group", how="left", maintain_order="left").with_columns(
        arrived=pl.coalesce(tables.arrival, "created"), seen=pl.col("rank").n_unique().over(one).cast(pl.Int64)
    )
    bound = pl.col("kind").is_in(SYMMETRIC) & (pl.col("seen") == pl.col("members")) & (pl.col("members") > 1)
    last = pl.col("rank").filter(arrived == arrived.max())
    return table.with_columns(
        last_arrived=pl.when(bound).then(arrived.max().over(one)),
        last_rank=pl.when(bound & (last.len().over(one) == 1)).then(last.first().over(one)),
        second_rank=pl.when(bound).then(pl.col("rank").sort_by("arrived").slice(-2, 1).first().over(one)),
        late_ns=pl.when(bound).then((arrived.max() - arrived.sort().slice(-2, 1).first()).over(one)),
        ends_apart=pl.when(bound).then((pl.col("ended").max() - pl.col("ended").min()).over(one)),
    )
