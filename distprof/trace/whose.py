"""Whose a trace is: its rank by its header, by what the user said, or by an unambiguous name; never by default."""

from __future__ import annotations

import re
from pathlib import Path

# Names that people give to traces of ranks. A number of a node, a process or a device is none; neither is a local rank.
_NAMES = (
    re.compile(r"(?<![a-z])(?:global[-_]?)?(?:rank|worker)[-_.=]?(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z0-9])r(\d{1,6})(?![a-z0-9])", re.IGNORECASE),
)
_LOCAL = re.compile(r"local[-_]?rank[-_.=]?\d+", re.IGNORECASE)
# Inference servers number the traces of one parallel dimension; of several, no number alone is the rank.
_DIMENSION = re.compile(r"(?<![a-z0-9])(TP|DP|PP|EP|CP)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ENDING = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE)


def rank_by_name(path: Path) -> int | None:
    """The rank that a file's name says, or else its folder's; None where none or several are said."""
    for name in (_ENDING.sub("", path.name), path.resolve().parent.name):
        text = _LOCAL.sub("", name)
        numbers = {int(number) for pattern in _NAMES for number in pattern.findall(text)}
        dimensions = _DIMENSION.findall(text)
        if len(dimensions) == 1:
            numbers.add(int(dimensions[0][1]))
        if numbers or dimensions:
            return numbers.pop() if len(numbers) == 1 and len(dimensions) <= 1 else None
    return None


def whose(path: Path, header: int | None, given: int | None) -> tuple[int | None, str | None]:
    """A trace's rank, and what is to be said about it.

    Args:
        header: the rank in the trace's own header, which nothing overrules.
        given: the rank that the user gave it.
    """
    named = rank_by_name(path)
    if header is not None:
        said = [f"--rank says {given}"] if given not in (None, header) else []
        said += [f"its name says {named}"] if named not in (None, header) else []
        return header, f"its header says rank {header}, {' and '.join(said)}: it is rank {header}" if said else None
    if given is not None:
        return given, f"rank {given}, as --rank says; the trace itself does not tell"
    if named is not None:
        return named, f"rank {named}, by its name alone; the trace itself does not tell"
    return None, "rank unknown: neither the trace nor its name tells it, and it was not analysed; give --rank FILE=N"
