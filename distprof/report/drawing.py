"""What a timeline consists of. The drawing knows no format, and what writes a format knows nothing of what is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from distprof.report.window_events import Batch

Colour = Literal["wait", "transfer"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of a process; its number is one of the whole timeline."""

    process: int
    number: int


class Slice(NamedTuple):
    """Something that lasts; a tuple, since there are many. Times are ns since the timeline's beginning.

    Attributes:
        leaving: arrows that begin here: of each there is one slice where it leaves and one where it arrives.
        arriving: arrows that end here.
    """

    lane: Lane
    name: str
    category: str
    start: int
    end: int
    args: Mapping[str, Any]
    colour: Colour | None = None
    leaving: Sequence[int] = ()
    arriving: Sequence[int] = ()


class Writer(Protocol):
    """A timeline on its way into a file. Times are ns since the timeline's beginning.

    Slices of a lane that are drawn one by one come by start, of equal starts the longest first, and nest or are
    disjoint. A lane is named when all that is on it has been drawn, and all of a process comes between its `process`
    and the next one's.
    """

    def process(self, process: int, name: str, order: int) -> None:
        """Begin a process; processes stand by `order`."""

    def lane(self, lane: Lane, name: str, order: int) -> None:
        """Name a lane; lanes of a process stand by `order`."""

    def slice(self, drawn: Slice) -> None:
        """Draw a slice."""

    def instant(self, lane: Lane, name: str, category: str, at: int) -> None:
        """Draw a mark."""

    def counter(self, process: int, name: str, unit: str, values: Sequence[tuple[int, float]]) -> None:
        """Draw a curve: (time, value) from there on."""

    def recorded(self, batch: Batch) -> None:
        """Pass on events of a recorded trace."""

    def close(self, about: dict[str, Any]) -> None:
        """End the file, with what there is to say about it."""
