"""What is known of the ranks' hosts."""

from __future__ import annotations

from collections import Counter

from distprof.trace.tables import Tables


def ranks_per_host(tables: Tables) -> Counter[str]:
    """How many ranks each host has, as far as they said where they ran."""
    return Counter(row["host"] for row in tables.facts.values() if row.get("host"))


def cpus_per_rank(tables: Tables) -> dict[int, float]:
    """CPUs of its host for each rank there; of the ranks that recorded them."""
    per_host = ranks_per_host(tables)
    known = {rank: row for rank, row in tables.facts.items() if row.get("cpus") and row.get("host")}
    return {rank: row["cpus"] / per_host[row["host"]] for rank, row in known.items()}
