"""Whether work takes time in proportion to what it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

# Four times as much takes so many times as long at most: in proportion it is 4, and 16 if all are compared with all.
PROPORTIONATE = 10


def growth(work: Callable[[int], object], count: int) -> float:
    """How many times as long four times as much takes; the least of some tries."""

    def least(amount: int) -> float:
        tries = []
        for _ in range(3):
            begin = time.process_time()
            work(amount)
            tries.append(time.process_time() - begin)
        return min(tries)

    return least(4 * count) / least(count)
