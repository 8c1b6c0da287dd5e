"""The parts that a step is cut into, and how each is drawn. The colours are Okabe and Ito's, for all eyes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distprof.result import BreakdownRow


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the step: a field of `BreakdownRow`.

    Attributes:
        short: heading of a narrow column.
        mark: the character that a bar of characters is made of.
        colour: its colour, for the terminal and the page.
        always: shown even where no rank has it.
    """

    field: str
    label: str
    short: str
    mark: str
    colour: str
    always: bool

    def of(self, row: BreakdownRow) -> float | None:
        """This part of a rank's step, in milliseconds."""
        value: float | None = getattr(row, self.field)
        return value


PARTS = (
    Part("data_wait", "waiting for data", "data", "D", "#e69f00", True),
    Part("h2d", "copies to the device", "h2d", "H", "#f0e442", False),
    Part("compute", "compute", "compute", "#", "#0072b2", True),
    Part("comm_wait", "waiting for other ranks", "comm wait", "~", "#d55e00", True),
    Part("comm_transfer", "transfer between ranks", "comm transfer", "=", "#56b4e9", True),
    Part("sync_wait", "waiting for the device", "sync", "s", "#cc79a7", False),
    Part("idle", "idle", "idle", "_", "#bbbbbb", False),
    Part("other", "Python between operators, garbage collection", "other", ".", "#888888", True),
)


# What is left of a step where not all parts are known, and communication of which it is not known whether it waited.
REST, COMMUNICATION = "?", "%"


def untold_communication(row: BreakdownRow) -> float | None:
    """A step's exposed communication, where it is known and what of it is wait and transfer is not."""
    return row.comm_exposed if row.comm_wait is None and row.comm_transfer is None else None


def shown_parts(rows: Sequence[BreakdownRow]) -> list[Part]:
    """The parts worth a column: the usual ones and those that some rank has."""
    return [part for part in PARTS if part.always or any(part.of(row) is not None for row in rows)]
