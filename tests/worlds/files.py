"""Writing a played world as the run directory that such a training leaves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from distprof.run.directory import RankFiles, RunDirectory
from distprof.run.files import Stream, write_json
from distprof.run.manifest import Manifest
from tests.worlds.play import BEGIN, MS, Event, Played, Rank, Window, play
from tests.worlds.recorded import batches_of, facts_of, local, probes_of, steady
from tests.worlds.world import World

_FLUSH_NS = 1000 * MS  # a block of zones, with its pair of clock readings, comes each second
_BOOT = BEGIN - 5_000_000_000_000  # when the hosts were booted: monotonic clocks count from there
_THREE_MONTHS_S = 7_889_238  # Kineto's base is a multiple of it


def write(world: World, path: Path) -> None:
    """Play a world and write its run directory.

    Raises:
        ValueError: its ranks wait for each other for ever.
        FileExistsError: there is one already.
    """
    played = play(world)
    directory = RunDirectory(path)
    directory.attempt(0).mkdir(parents=True)
    Manifest(
        run_id="0123456789abcdef",
        command=["train.py"],
        world_size=world.ranks,
        versions={"distprof": "0.1.0"},
        started_unix_ns=BEGIN,
        ended={"exit_code": 0, "failures": {}},
    ).write(directory)
    for rank in played.ranks:
        if rank.number not in world.missing:
            _write_rank(played, rank, directory.rank(0, rank.number))


def _write_rank(played: Played, rank: Rank, files: RankFiles) -> None:
    world = played.world
    write_json(files.facts, facts_of(world, rank))
    _write_zones(world, rank, files.zones)
    _write_collectives(world, rank, files.collectives)
    _write_probes(played, rank, files.clock)
    for index, window in enumerate(rank.windows):
        files.window(index).write_bytes(gzip.compress(_trace(world, rank, window), compresslevel=1))


def _write_zones(world: World, rank: Rank, path: Path) -> None:
    # Both clocks of a host drift as one, so that they differ by a constant, until one of them is set.
    def monotonic(time: int) -> int:
        return steady(world, rank, time) - _BOOT

    stream = Stream(path, {"schema": "distprof.zones.v1", "rank": rank.number, "pid": rank.training_thread})
    zones = sorted(rank.zones, key=lambda zone: zone.end)
    batches = batches_of(world, rank)
    ids: dict[tuple[str, str], int] = {}
    time = rank.begin
    while True:
        block: dict[str, Any] = {"anchors": [[monotonic(time), local(world, rank, time)]], "rows": [], "names": {}}
        while zones and zones[0].end <= time:
            zone = zones.pop(0)
            key = (zone.kind, zone.name)
            if key not in ids:
                ids[key] = len(ids)
                block["names"][str(ids[key])] = list(key)
            start = monotonic(zone.start)
            block["rows"] += [ids[key], 0, start, monotonic(zone.end) - start]
        while batches and batches[0][0] <= time:
            moment, *sizes = batches.pop(0)
            block.setdefault("batches", []).extend([monotonic(moment), *sizes])
        stream.append(block)
        if time >= rank.end:
            break
        time = min(time + _FLUSH_NS, rank.end)
    stream.close()


def _write_collectives(world: World, rank: Rank, path: Path) -> None:
    works = rank.works
    stream = Stream(path, {"schema": "distprof.collectives.v1", "rank": rank.number, "pid": rank.training_thread})
    stream.append(
        {
            "record": list(range(len(works))),
            "group": [work.what.group for work in works],
            "seq": [work.seq for work in works],
            "op": [f"gloo:{work.what.kind}" for work in works],
            "bytes": [work.what.bytes for work in works],
            "dtype": [work.what.dtype or "" for work in works],
            "created": [local(world, rank, work.created) for work in works],
            "started": [None for _ in works],
            "ended": [None for _ in works],
            "p2p": [False for _ in works],
        }
    )
    stream.close()


def _write_probes(played: Played, rank: Rank, path: Path) -> None:
    probes = probes_of(played, rank)
    if probes:
        stream = Stream(path, {"schema": "distprof.clock.v1", "rank": rank.number, "pid": rank.training_thread})
        columns = zip(("sent", "peer_received", "peer_sent", "received"), zip(*probes, strict=True), strict=True)
        stream.append({"peer": [0] * len(probes), **{name: list(column) for name, column in columns}})
        stream.close()


def _trace(world: World, rank: Rank, window: Window) -> bytes:
    """A Kineto trace, with what else stands in one: metadata, flows, and a span of the trace itself."""
    unit = _THREE_MONTHS_S * 1_000_000_000
    base = local(world, rank, window.start) // unit * unit

    def microseconds(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03d}"

    def since_base(time: int) -> str:
        return microseconds(local(world, rank, time) - base)

    def complete(event: Event) -> str:
        start, end = local(world, rank, event.start), local(world, rank, event.end)
        arguments = '{"External id": 7}' if event.finished else '{"External id": 7, "finished": false}'
        return (
            f'{{"ph": "X", "cat": "{event.cat}", "name": {json.dumps(event.name)}, "pid": {rank.training_thread}, '
            f'"tid": {event.thread}, "ts": {microseconds(start - base)}, "dur": {microseconds(end - start)}, '
            f'"args": {arguments}}}'
        )

    opened = since_base(window.start)
    length = microseconds(local(world, rank, window.end) - local(world, rank, window.start))
    events = [
        f'{{"ph": "M", "name": "process_name", "ts": {opened}, "pid": {rank.training_thread}, "tid": 0, '
        '"args": {"name": "python3"}}',
        *map(complete, window.events),
        f'{{"ph": "s", "id": 1, "pid": {rank.training_thread}, "tid": {rank.training_thread}, "ts": {opened}, '
        '"cat": "fwdbwd", "name": "fwdbwd"}',
        f'{{"ph": "X", "cat": "Trace", "ts": {opened}, "dur": {length}, "pid": "Spans", "tid": "PyTorch Profiler", '
        '"name": "PyTorch Profiler (0)", "args": {"Op count": 0}}',
        f'{{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": {since_base(window.end)}}}',
    ]
    info = {"backend": "gloo", "rank": rank.number, "world_size": world.ranks}
    return (
        f'{{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {json.dumps(info)}, '
        f'"displayTimeUnit": "ms", "baseTimeNanoseconds": {base}, "traceEvents": [' + ",\n".join(events) + "]}"
    ).encode()
