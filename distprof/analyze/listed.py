"""Ranks and steps in words."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_RUNS = 100


def some(numbers: Sequence[int], limit: int = 8) -> str:
    """Numbers in a row: runs of neighbours as `4–9`, at most `limit` entries."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    words = [
        str(first) if first == last else f"{first}, {last}" if last == first + 1 else f"{first}–{last}"
        for first, last in runs
    ]
    return ", ".join(words[:limit] + (["…"] if len(words) > limit else []))


def ranks(numbers: Sequence[int], limit: int = _MOST_RUNS) -> str:
    """`rank 2` or `ranks 0–3, 7`."""
    return f"rank{'s' if len(numbers) != 1 else ''} {some(numbers, limit)}"
