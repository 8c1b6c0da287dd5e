"""Clocks that were set while a rank recorded: its times are put back onto the clock as it was at the beginning.

A rank reads its monotonic clock, which nobody sets, and its Unix clock together each second. Where the one went on by
less than the other was set by, no time before and no time after can be mistaken for the other, and what was recorded
in Unix time is put back like the zones. Smaller steps are only told, and all of them where one cannot be undone, or
where they go both ways: times of between may then lie before or after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

_LEAST_NS = 100_000_000
# What is beyond is no clock, and would not fit into the tables.
_MOST_NS = 1 << 60
_MOST_JUMPS = 100


@dataclass(frozen=True, slots=True)
class Jump:
    """A clock was set by `by` ns. The other times are on the clock as it was at the beginning, in Unix ns.

    Attributes:
        begin, end: the readings around it.
        cut: later times are after it; where the clock was set back, earlier ones are.
    """

    by: int
    begin: int
    end: int
    cut: int

    def undone(self, time: int) -> int:
        """A time with this jump undone, and all before it undone already."""
        after = time > self.cut if self.by > 0 else time < self.cut
        return time - self.by if after else time


def find_jumps(
    readings: Sequence[tuple[int, int]],
) -> tuple[list[tuple[int, int]], list[Jump], list[Jump]]:
    """Readings of a clock as if nobody had set it, the jumps that were undone, and those that were left alone.

    Undone are all that are longer than what passed between their readings, or none of them.

    Args:
        readings: (monotonic, Unix) ns, in any order.
    """
    ordered = sorted(readings)
    steady, jumps, ambiguous, total = ordered[:1], list[Jump](), list[Jump](), 0
    lasted = ordered[-1][0] - ordered[0][0] if ordered else 0
    all_undone = True
    for (before, unix), (after, unix_after) in pairwise(ordered):
        gap = after - before
        by = unix_after - unix - gap
        if abs(by) > _LEAST_NS:
            begin, end = steady[-1][1], steady[-1][1] + gap
            latest_after = end + ordered[-1][0] - after + by
            jump = Jump(by, begin, end, cut=end if by > 0 else (steady[0][1] + latest_after) // 2)
            if abs(by) <= gap:
                ambiguous.append(jump)
            else:
                jumps.append(jump)
                total += by
                told_apart = by > 0 or -by > lasted  # else times of before come again
                all_undone = all_undone and told_apart and abs(total) < _MOST_NS and len(jumps) <= _MOST_JUMPS
        steady.append((after, unix_after - total))
    one_way = len({jump.by > 0 for jump in jumps}) < 2
    if not (all_undone and one_way):
        return ordered, [], sorted([*jumps, *ambiguous], key=lambda jump: jump.begin)
    return steady, jumps, ambiguous


def put_back(jumps: Sequence[Jump], time: int) -> int:
    """A Unix time as it would have been, had nobody set the clock."""
    for jump in jumps:
        time = jump.undone(time)
    return time


def put_back_columns(
    table: pl.DataFrame, jumps: Sequence[Jump], *columns: str, where: pl.Expr | None = None
) -> pl.DataFrame:
    """The same for columns of a table, in the rows `where`; None: in all."""
    for jump in jumps:
        for name in columns:
            after = pl.col(name) > jump.cut if jump.by > 0 else pl.col(name) < jump.cut
            concerned = after if where is None else after & where
            table = table.with_columns(pl.when(concerned).then(pl.col(name) - jump.by).otherwise(pl.col(name)))
    return table
