"""Which marks of a step's end count for the window's schedule."""

from __future__ import annotations

from typing import Literal

# A mark of a later kind says better where a step ends.
_KINDS = ("backward", "optimizer", "user")
_TAKES_OVER = 4

# The first one of a better kind starts the count anew; another optimizer goes on with it.
Counted = Literal["next", "anew", "taken over"]


class Boundaries:
    """Counts marks of the best kind that a script has shown so far, and of one optimizer.

    An optimizer that steps alone has taken over, as in a new phase of the training. What a step is in the report is
    decided later, from all of the run.

    Attributes:
        kind: of the marks that count; empty: there was none.
        count: how many there were of it.
    """

    def __init__(self) -> None:
        self.kind = ""
        self.count = 0
        self._name = ""
        self._of_another = 0

    def see(self, kind: str, name: str) -> Counted | None:
        """A step may be over. Returns how the mark counts; None: not at all.

        Args:
            kind: `backward`, `optimizer` or `user`.
            name: which one of several.
        """
        counted: Counted = "next"
        if (kind, name) != (self.kind, self._name):
            if self.kind and _KINDS.index(kind) < _KINDS.index(self.kind):
                return None
            if kind == self.kind:
                self._of_another += 1
                if self._of_another < _TAKES_OVER:
                    return None
                counted = "taken over"
            else:
                counted, self.count = "anew", 0
        self.kind, self._name, self._of_another = kind, name, 0
        self.count += 1
        return counted
