"""Whether the others wait for a rank that is late."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.result import Straggler

_SHARE = 0.1  # of its delay: less wait than that is none


def holds_up(row: Straggler) -> bool | None:
    """Whether the others wait for it; None: that was not observed."""
    return None if row.imposed_wait is None else row.imposed_wait >= _SHARE * row.delay


def later_still(row: Straggler, rows: Iterable[Straggler]) -> int | None:
    """The rank that it is hidden behind: of those that the others wait for the one with the largest delay beyond its
    own. None if there is none, or if it is not hidden."""
    if holds_up(row) is not False:
        return None
    later = [other for other in rows if holds_up(other) and other.delay > row.delay]
    return max(later, key=lambda other: other.delay).rank if later else None
