"""Which steps of different ranks are one, where no mark numbers them: the collectives in them tell."""

from __future__ import annotations

from collections import Counter

import polars as pl

from distprof.trace.tables import STEPS

# Ranks' steps are the same where so many of the collectives that both have in steps agree on it.
_AGREE = 0.8

_Piece = tuple[int, int]  # rank, window


def with_common_numbers(
    steps: pl.DataFrame, matched: pl.DataFrame, events: pl.DataFrame
) -> tuple[pl.DataFrame, set[int]]:
    """Number steps, from 1, so that step k of one rank is step k of all.

    A step has to lie in one window. Within a window the numbers of the rank with the most steps hold; another rank's
    are shifted so that collectives of both fall into one step. A job of one rank needs no others.

    Args:
        steps: STEPS, numbered on each rank by itself.
        matched: OCCURRENCES that `with_sequence_numbers` numbered.
        events: KINETO_EVENTS; they tell when windows were.

    Returns:
        STEPS, and the ranks of which nothing tells which steps they recorded; they have none any more.
    """
    windows = events.group_by("rank", "window").agg(pl.col("start").min().alias("opened"), pl.col("end").max())
    inside = steps.join(windows.rename({"end": "closed"}), on="rank").filter(
        (pl.col("start") >= pl.col("opened")) & (pl.col("end") <= pl.col("closed"))
    )
    pieces: dict[_Piece, pl.DataFrame] = {
        (rank, window): own
        for (rank, window), own in inside.sort("rank", "window", "step")
        .partition_by("rank", "window", as_dict=True, maintain_order=True)
        .items()
    }
    calls = {piece: _steps_of_calls(own, matched, piece) for piece, own in pieces.items()}
    numbered: list[pl.DataFrame] = [pl.DataFrame(schema=STEPS)]
    apart: set[int] = set()
    next_number = 1
    for window in sorted({window for _, window in pieces}):
        shifts = _shifts({rank: calls[rank, w] for rank, w in pieces if w == window}, pieces, window)
        apart |= {rank for rank, w in pieces if w == window} - set(shifts)
        parts = [pieces[rank, window].with_columns(step=pl.col("step") + shift) for rank, shift in shifts.items()]
        least = min(int(part["step"][0]) for part in parts)
        parts = [part.with_columns(step=pl.col("step") - least + next_number) for part in parts]
        next_number = max(int(part["step"][-1]) for part in parts) + 1
        numbered += [part.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items()) for part in parts]
    table = pl.concat(numbered).filter(~pl.col("rank").is_in(sorted(apart)))
    return table.sort("rank", "step"), apart


def _steps_of_calls(steps: pl.DataFrame, matched: pl.DataFrame, piece: _Piece) -> pl.DataFrame:
    """The collectives that a rank created in one of its window's steps, with their `step`."""
    rank, window = piece
    own = matched.filter((pl.col("rank") == rank) & (pl.col("window") == window) & pl.col("created").is_not_null())
    joined = (
        own.drop("step")
        .sort("created")
        .join_asof(steps.select("step", "start", "end").sort("start"), left_on="created", right_on="start")
    )
    return joined.filter(pl.col("created") < pl.col("end")).select("group", "seq", "kind", "step")


def _shifts(calls: dict[int, pl.DataFrame], pieces: dict[_Piece, pl.DataFrame], window: int) -> dict[int, int]:
    """Rank -> what to add to its numbers; without ranks that share no collectives with these."""
    first = max(calls, key=lambda rank: (len(pieces[rank, window]), -rank))
    shifts = {first: 0}
    waiting = [first]
    while waiting:
        known = waiting.pop(0)
        for rank, own in calls.items():
            shift = None if rank in shifts else _shift(own, calls[known])
            if shift is not None:
                shifts[rank] = shift + shifts[known]
                waiting.append(rank)
    return shifts


def _shift(own: pl.DataFrame, other: pl.DataFrame) -> int | None:
    """What to add to own numbers to get the other's; None where the collectives do not tell."""
    both = own.join(other, on=["group", "seq", "kind"], suffix="_other")
    counts = Counter((both["step_other"] - both["step"]).to_list())
    if not counts:
        return None
    (shift, count), *_ = counts.most_common(1)
    return shift if count >= _AGREE * counts.total() else None
