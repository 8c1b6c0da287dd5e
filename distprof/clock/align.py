"""Putting the ranks' times on one clock.

Ranks of one host read the same clock, so nothing has to be subtracted. Ranks of several hosts are left as they
are and called `unaligned`: what is compared between them is then undecided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distprof.result import Clock, ClockRow, NotObserved


def align(facts: Mapping[int, Mapping[str, Any]]) -> tuple[Clock, list[NotObserved]]:
    """Decide whether the ranks share a clock.

    Args:
        facts: rank -> its facts; ranks share a clock if host and boot id are the same and known.

    Returns:
        The clocks, and what could not be observed of them.
    """
    ranks = sorted(facts)
    hosts = {(row.get("host"), row.get("boot_id")) for row in facts.values()}
    same_host = len(hosts) == 1 and all(None not in host for host in hosts)
    if same_host:
        clock = Clock(
            method="all ranks ran in one boot of one host and read the same clock; nothing was subtracted",
            verdict="same_host",
            reference_rank=ranks[0] if ranks else None,
            ranks=[ClockRow(rank=rank, offset_us=0.0, drift_ppm=0.0) for rank in ranks],
        )
        figures, reason = ["bound_us", "error_us"], "the ranks share one clock; no bound was measured"
    else:
        clock = Clock(
            method="the ranks ran on several hosts, or it is not known on which; their clocks were not compared",
            verdict="unaligned",
            reference_rank=None,
            ranks=[ClockRow(rank=rank, offset_us=None) for rank in ranks],
        )
        figures = ["offset_us", "drift_ppm", "bound_us", "error_us"]
        reason = "clocks of several hosts are not aligned by this version"
    return clock, [NotObserved(f"clock.ranks.{figure}", None, reason) for figure in figures]
