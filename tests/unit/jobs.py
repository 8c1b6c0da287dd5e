"""A data-parallel training made by hand, whose figures can be checked in the head. Times are ms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from distprof.trace.tables import Tables
from tests.unit.tables import Call, Step, Zone, tables

Delays = Mapping[str, float]  # by kind of zone; `host` is time between zones
OPTIMIZER, LOADING, FORWARD, PER_BUCKET, TRANSFER = 5, 10, 20, 2, 5


def healthy(rank: int, step: int) -> Delays:
    """No delays."""
    return {}


def always(late: Mapping[int, Delays]) -> Callable[[int, int], Delays]:
    """The same delays in every step, by rank."""
    return lambda rank, step: late.get(rank, {})


def job(
    late: Callable[[int, int], Delays] = healthy,
    *,
    ranks: Sequence[int] = range(4),
    steps: int = 10,
    buckets: int = 5,
    missing: Collection[int] = (),
    calls: bool = True,
    **more: Any,
) -> Tables:
    """A step: load 10 ms, forward 20, backward 2 per bucket, a wait for the last rank's last bucket, 5 ms of transfer.

    After that the optimizer takes 5 ms, and so ends the step. Own time is 45 ms with five buckets, and a step takes 50.

    Args:
        late: (rank, step) -> extra time, at the beginning of its zone: `optimizer`, `data_loading`, `zone` (the user's
            "augment" inside forward), `gc` (likewise), `forward`, `host` (before backward), `backward`. That of the
            optimizer is in the one that begins the step, since it comes after the step before has met.
        missing: ranks that take part and leave no recordings.
        calls: whether collectives were recorded.
        more: see `tables`.
    """
    zones, rows, created = [], [], []
    begin, ended = 0.0, dict.fromkeys(ranks, 0.0)
    for step in range(steps + 1):
        last = begin
        for rank in ranks:
            extra = late(rank, step)
            now = begin

            def zone(kind: str, ms: float, name: str) -> None:
                nonlocal now
                zones.append(Zone(rank, kind, now, now + ms, name))  # noqa: B023
                now += ms

            zone("optimizer", OPTIMIZER + extra.get("optimizer", 0), "SGD#0")
            if step:
                rows.append(Step(rank, step - 1, ended[rank], now, "first" if step == 1 else None))
            ended[rank] = now
            zone("data_loading", LOADING + extra.get("data_loading", 0), "DataLoader#0")
            inside = [("zone", extra.get("zone", 0), "augment"), ("gc", extra.get("gc", 0), "generation 2")]
            start = now
            zone("forward", FORWARD + extra.get("forward", 0) + sum(ms for _, ms, _ in inside), "Net#0")
            for kind, ms, name in inside:
                if ms:
                    zones.append(Zone(rank, kind, start, start + ms, name))
                    start += ms
            now += extra.get("host", 0)
            backward = now
            now += extra.get("backward", 0)
            for bucket in range(buckets):
                now += PER_BUCKET
                seq = step * buckets + bucket + 1
                number = step if step < steps else None
                created.append(Call(rank, seq, now, zone="backward", bucket=bucket, step=number))
            last = max(last, now)
            zones.append(Zone(rank, "backward", backward, -1, "backward"))  # its end is known when all have come
        begin = last + TRANSFER
        zones = [Zone(z.rank, z.kind, z.start, begin, z.name) if z.end == -1 else z for z in zones]
    present = [rank for rank in ranks if rank not in missing]
    return tables(
        ranks=present,
        world_size=len(ranks),
        zones=[zone for zone in zones if zone.rank in present],
        steps=[row for row in rows if row.rank in present],
        calls=[call for call in created if call.rank in present] if calls else [],
        **more,
    )
