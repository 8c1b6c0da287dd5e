"""What a played world's recordings say: the tables that `load` gives, made from what is known and not by its means."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import polars as pl

from distprof.result import Group
from distprof.trace.tables import BATCHES, COLLECTIVES, EVENTS, PROBES, SIGNS, STEPS, WINDOWS, ZONES, Tables
from tests.worlds.play import BEGIN, MS, Played, Rank, Work, play
from tests.worlds.world import MODEL, World


def simulate(world: World) -> Tables:
    """Play a world and give its tables, on the clocks of its hosts.

    Raises:
        ValueError: its ranks wait for each other for ever.
    """
    return tables_of(play(world))


def tables_of(played: Played) -> Tables:
    """Tables of a played world."""
    world = played.world
    ranks = [rank for rank in played.ranks if rank.number not in world.missing]
    groups, ids = _groups(world, ranks)
    return Tables(
        ranks=[rank.number for rank in ranks],
        world_size=world.ranks,
        step_source=world.source if world.steps else "none",
        groups=groups,
        zones=pl.DataFrame(
            [
                (rank.number, zone.kind, zone.name, 0, local(world, rank, zone.start), local(world, rank, zone.end))
                for rank in ranks
                for zone in sorted(rank.zones, key=lambda zone: (zone.start, -zone.end))
            ],
            schema=ZONES,
            orient="row",
        ),
        steps=pl.DataFrame(_steps(world, ranks), schema=STEPS, orient="row"),
        collectives=pl.DataFrame(_collectives(world, ranks, ids), schema=COLLECTIVES, orient="row").sort(
            "rank", "created", "group", "seq"
        ),
        events=pl.DataFrame(_events(world, ranks), schema=EVENTS, orient="row").sort(
            "rank", "window", "start", "end", descending=[False, False, False, True], maintain_order=True
        ),
        windows=pl.DataFrame(
            [
                (rank.number, index, local(world, rank, window.start), local(world, rank, window.end))
                for rank in ranks
                for index, window in enumerate(rank.windows)
            ],
            schema=WINDOWS,
            orient="row",
        ),
        training_thread={rank.number: rank.training_thread for rank in ranks},
        facts={rank.number: facts_of(world, rank) for rank in ranks},
        batches=pl.DataFrame(
            [
                (rank.number, local(world, rank, time), *sizes, rank.step_at(time))
                for rank in ranks
                for time, *sizes in batches_of(world, rank)
            ],
            schema=BATCHES,
            orient="row",
        ),
        probes=pl.DataFrame(
            [(rank.number, 0, *probe) for rank in ranks for probe in probes_of(played, rank)],
            schema=PROBES,
            orient="row",
        ),
        signs=pl.DataFrame(
            [(rank.number, *2 * [local(world, rank, rank.end)]) for rank in ranks], schema=SIGNS, orient="row"
        ),
    )


def batches_of(world: World, rank: Rank) -> list[tuple[int, int, int]]:
    """Batches that a rank's loader gave: when (true time), samples, elements."""
    if world.elements is None:
        return []
    loaded = sorted(zone.end - 1 for zone in rank.zones if zone.kind == "data_loading")
    sizes = [world.elements(rank.number, rank.step_at(time) or 0) for time in loaded]
    return [(time, size // 100, size) for time, size in zip(loaded, sizes, strict=True)]


def probes_of(played: Played, rank: Rank) -> list[tuple[int, int, int, int]]:
    """A rank's probes of rank 0's clock, each time on the clock that it was read on: sent, received and answered by the
    peer, received."""
    world, asked = played.world, played.ranks[0]
    probes = world.probes
    if probes is None or world.host_of(rank.number) == world.host_of(0):
        return []
    draw = random.Random(f"{world.seed} probes {rank.number}")
    found = []
    time = rank.begin
    while time < rank.end:
        there = time + round((probes.there + draw.expovariate(1) * probes.delay) * MS)
        sent_back = there + round(probes.served * MS)
        back = sent_back + round((probes.back + draw.expovariate(1) * probes.delay) * MS)
        found.append(
            (
                local(world, rank, time),
                local(world, asked, there),
                local(world, asked, sent_back),
                local(world, rank, back),
            )
        )
        time += round(probes.every * MS)
    return found


def local(world: World, rank: Rank, time: int) -> int:
    """A true time on the clock of the rank's host, Unix ns."""
    clock = world.clock_of(rank.number)
    was_set = round(clock.set_by * MS) if time - BEGIN >= clock.set_at * MS else 0
    return steady(world, rank, time) + was_set


def steady(world: World, rank: Rank, time: int) -> int:
    """The same, had nobody set it."""
    clock = world.clock_of(rank.number)
    return time + round(clock.offset_ms * MS) + round((time - BEGIN) * clock.drift_ppm / 1e6)


def facts_of(world: World, rank: Rank) -> dict[str, Any]:
    """The rank's facts as capture writes them."""
    names = [name for name in world.group_names() if rank.number in world.members(name)]
    host = 0 if world.one_boot else world.host_of(rank.number)
    return {
        "schema": "distprof.rank.v1",
        "rank": rank.number,
        "local_rank": rank.number % world.ranks_per_host if world.ranks_per_host else rank.number,
        "world_size": world.ranks,
        "attempt": 0,
        "host": f"host{host}",
        "boot_id": f"boot-of-host{host}",
        "pid": rank.training_thread,
        "training_thread": rank.training_thread,
        "python": "3.11.2",
        "cpus": 8 * world.ranks,
        "argv": ["train.py"],
        "torch": "2.13.0+cpu",
        "backend": "gloo",
        "device": "cpu",
        "status": "finished",
        "started_unix_ns": local(world, rank, rank.begin),
        "ended_unix_ns": local(world, rank, rank.end),
        "exit": {"reason": "ok", "exception": None},
        "told": None,
        "requested": ["cpu"] if world.windows else [],
        "settings": None,
        "checksums": {},
        "stopped_after": None,
        "windows": [
            {
                "index": index,
                "start_unix_ns": local(world, rank, window.start),
                "end_unix_ns": local(world, rank, window.end),
                "stop_s": world.export / 2000,
                "export_s": world.export / 2000,
                "reason": None,
            }
            for index, window in enumerate(rank.windows)
        ],
        "groups": [
            {
                "name": name,
                "desc": "undefined" if int(name) else "default_pg",
                "ranks": world.members(name),
                "backend": "cpu:gloo,cuda:gloo",
            }
            for name in names
        ],
        "ddp": [
            {
                "name": MODEL,
                "module": "Net",
                "bucket_cap_mb": 25.0,
                "bucket_bytes": list(world.buckets),
                "params": [[f"layer{bucket}.weight"] for bucket in range(len(world.buckets))],
                "find_unused_parameters": world.unused_parameters,
                "static_graph": False,
                "gradient_as_bucket_view": False,
                "broadcast_buffers": world.broadcast_buffers,
            }
        ]
        if world.buckets
        else [],
        "loaders": [
            {
                "name": "DataLoader#0",
                "dataset": "Synthetic",
                "batch_size": 8,
                "num_workers": 0,
                "pin_memory": False,
                "prefetch_factor": None,
                "persistent_workers": False,
            }
        ],
        "models": [],
        "batches": [],
        "schedule": {"wait": 5, "warmup": 2, "active": 5, "repeat": 1},
        "boundaries": world.steps,
        "drained_unix_ns": local(world, rank, rank.end),
        "zones_left_off": False,
        "peak_resident_bytes": 300_000_000 + rank.number,
        "own_cost": {
            "ns_per_zone": 500.0,
            "zones": len(rank.zones),
            "drain_s": 0.01,
            "drains": 1,
            "lost_collectives": 0,
        },
        "problems": [],
    }


def _groups(world: World, ranks: list[Rank]) -> tuple[list[Group], dict[str, int]]:
    """Groups in the order in which the ranks that left recordings tell of them."""
    groups: list[Group] = []
    ids: dict[str, int] = {}
    for rank in ranks:
        for name in world.group_names():
            if name not in ids and rank.number in world.members(name):
                ids[name] = len(groups)
                desc = "undefined" if int(name) else "default_pg"
                groups.append(Group(ids[name], name, desc, world.members(name)))
    return groups, ids


def _steps(world: World, ranks: list[Rank]) -> list[tuple[Any, ...]]:
    disturbed: set[int | None] = set()
    for rank in ranks:
        disturbed |= {rank.step_at(zone.start) for zone in rank.zones if zone.kind == "own"}
        disturbed |= {rank.step_at(time) for window in rank.windows for time in (window.start, window.end)}
    rows = []
    for rank in ranks:
        begin = rank.first_zone or 0
        backwards = Counter(rank.step_at(zone.end - 1) for zone in rank.zones if zone.kind == "backward")
        for step, end in enumerate(rank.boundaries):
            why = "first" if step == 0 else "export" if step in disturbed else None
            times = (local(world, rank, begin), local(world, rank, end))
            rows.append((rank.number, step, *times, backwards[step], why))
            begin = end
    return rows


def _collectives(world: World, ranks: list[Rank], ids: dict[str, int]) -> list[tuple[Any, ...]]:
    rows = []
    for rank in ranks:
        for work in rank.works:
            started = ended = None
            for window in rank.windows:
                if work.started is not None and window.start <= work.started < window.end:
                    started = local(world, rank, work.started)
                    if work.ended is not None and work.ended <= window.end:
                        ended = local(world, rank, work.ended)
            rows.append(
                (
                    rank.number,
                    ids[work.what.group],
                    work.seq,
                    work.what.kind,
                    work.what.bytes,
                    work.what.dtype,
                    local(world, rank, work.created),
                    started,
                    ended,
                    rank.step_at(work.created),
                    work.zone,
                    work.what.model,
                    work.what.bucket,
                    _root(world, work),
                )
            )
    return rows


def _root(world: World, work: Work) -> int | None:
    of_ddp = work.what.kind == "broadcast" and work.zone == "wait"
    place = 0 if work.what.root is None and of_ddp else work.what.root
    return None if place is None else world.members(work.what.group)[place]


def _events(world: World, ranks: list[Rank]) -> list[tuple[Any, ...]]:
    return [
        (
            rank.number,
            index,
            event.cat,
            event.name,
            event.thread,
            local(world, rank, event.start),
            local(world, rank, event.end),
            event.leaf,
        )
        for rank in ranks
        for index, window in enumerate(rank.windows)
        for event in window.events
    ]
