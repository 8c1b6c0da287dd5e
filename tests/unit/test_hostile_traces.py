"""Traces and worlds that claim what no job has: devices, ranks without traces, groups of a million."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distprof
from distprof.analyze import device_use
from distprof.analyze.waits import needs
from distprof.pipeline import build
from distprof.result import to_json
from distprof.run.directory import RunDirectory
from distprof.trace import lanes
from tests.unit.handmade import kernel, mark, nccl, write_trace
from tests.worlds import World, write


def test_rows_of_devices_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_use, "_MOST_DEVICES", 3)
    events = [mark(1, 0, 1000), *(kernel("k", 10 * number, 5, device=number) for number in range(5))]
    path = write_trace(tmp_path / "rank0.json", events, world_size=1)
    result = build(distprof.load(path))
    assert [row.device for row in result.device_use or []] == [0, 1, 2]
    told = [row for row in result.not_observed if "5 devices" in row.reason]
    assert [(row.what, row.ranks) for row in told] == [("device_use", [0])]
    assert "only the first 3 have rows" in told[0].reason


def test_absent_ranks_are_not_named_in_each_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_MOST_ABSENT", 10)
    for rank in (0, 1):
        events = [mark(1, 0, 1000), *(nccl(10 * stream, 5, stream=stream) for stream in range(5))]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=100_000)
    loaded = distprof.load(tmp_path)
    assert loaded.tables.groups
    assert all(group.members[-1] < 12 and len(group.members) > 10 for group in loaded.tables.groups)
    calls = build(loaded).communication
    assert all(row.wait is None for row in calls.per_rank), "who is absent may be who the others waited for"


def test_lanes_that_are_too_many_to_be_compared_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_MOST_COMPARED", 2)
    for rank in (0, 1):
        times = [(step, stream) for step in range(1, 7) for stream in range(4) if stream < 2 or step == 3]
        events = [
            *(mark(step, 1000 * step, 1000) for step in range(1, 7)),
            *(nccl(1000 * step + 200 * stream + 30 * rank, 60 - 30 * rank, stream=stream) for step, stream in times),
        ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2)
    loaded = distprof.load(tmp_path)
    members = [group.members for group in loaded.tables.groups]
    assert members == [[0, 1]] * 4, "two were compared, and of two more of each rank nobody knows whose they are"
    assert sorted(loaded.tables.collectives.group_by("group").len()["len"]) == [2, 2, 12, 12]
    result = build(loaded)
    told = [row for row in result.not_observed if "in the 2 with the fewest no waits are known" in row.reason]
    assert [row.ranks for row in told] == [[0], [1]]
    waits = [row.wait for row in result.communication.by_kind]
    assert waits == [pytest.approx(0.015), pytest.approx(0.015), None, None]


def test_who_is_needed_is_asked_of_ranks_that_recorded_only(tmp_path: Path) -> None:
    write(World(ranks=2, steps=6), tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    for rank in (0, 1):
        path = run.rank(0, rank).facts
        facts = json.loads(path.read_text())
        groups = [{**group, "ranks": list(range(50_000))} for group in facts["groups"]]
        path.write_text(json.dumps({**facts, "world_size": 50_000, "groups": groups}))
    loaded = distprof.load(run.path)
    assert len(needs(loaded.tables)) < 100
    assert set(needs(loaded.tables)["rank"]) == {0, 1}
    (run.attempt(0) / "rank00000.json").write_text(json.dumps({**facts, "rank": 0, "groups": []}))
    (run.attempt(0) / "rank00001.json").write_text(json.dumps({**facts, "rank": 1, "groups": []}))
    assert len(to_json(build(distprof.load(run.path)))) < 100_000
