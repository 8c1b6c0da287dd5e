"""What to say about recordings that could not be read, or only in part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Note:
    """Something in the recordings that an analysis has to do without.

    Attributes:
        rank: whose recording it is; None where that is not known.
        file: the file.
        place: where in it, or None for all of it.
        text: what is wrong with it and what was done about it.
    """

    rank: int | None
    file: Path
    place: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.file}{f', {self.place}' if self.place else ''}: {self.text}"


class RecordingError(Exception):
    """A file that cannot be used; it says where it is broken and what to do.

    Attributes:
        note: the same as a note, for a caller that goes on with the other files.
    """

    def __init__(self, rank: int | None, file: Path, place: str | None, text: str) -> None:
        self.note = Note(rank, file, place, text)
        super().__init__(str(self.note))
