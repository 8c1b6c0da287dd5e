"""What the launcher's agents leave: a file each, and one account of how an attempt ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distprof.run.directory import RunDirectory
from distprof.run.manifest import Manifest, RunDirectoryError, create_run
from distprof.run.nodes import Node, NodeFile, end_of, exit_code, read_nodes, wait_for_nodes


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return create(tmp_path)


def create(path: Path, **options: Any) -> RunDirectory:
    known = {"run_id": None, "command": [], "world_size": None, "config": {}, "versions": {}}
    return create_run(path, **{**known, **options})[0]


def row(attempt: int, node_rank: int) -> dict[str, int]:
    return {"attempt": attempt, "node_rank": node_rank, "nodes": 2, "unix_ns": 1}


def failure(code: int, when: float | None, *, first: bool = True) -> dict[str, Any]:
    return {"first": first, "exit_code": code, "signal": None, "unix_s": when}


def node(attempt: int, node_rank: int, **ended: Any) -> Node:
    end = {"unix_ns": node_rank, "error": None, "failures": {}, "absent": {}, **ended}
    return Node(attempts=[row(attempt, node_rank)], ended=end)


def test_each_agent_has_a_file_of_its_own(directory: RunDirectory) -> None:
    files = [NodeFile.create(directory, {"name": "slurm"}) for _ in range(3)]
    assert len({file.path for file in files}) == 3
    for number, file in enumerate(files):
        file.node.attempts.append(row(0, number))
        file.write()
    assert [node.rank for node in read_nodes(directory)] == [0, 1, 2]
    assert {node.scheduler["name"] for node in read_nodes(directory)} == {"slurm"}


def test_the_ends_of_all_agents_are_one_account_and_the_earliest_failure_is_the_first() -> None:
    nodes = [
        node(1, 0, error="a rank failed", failures={"0": failure(1, 20.0), "1": failure(1, 21.0, first=False)}),
        node(1, 1, error="a rank failed", failures={"2": failure(-9, 10.0)}, absent={"3": "why"}),
        node(0, 0, error="of an earlier attempt", failures={"0": failure(7, 1.0)}),
    ]
    end = end_of(Manifest("id", []), nodes, 1)
    assert {rank: told["first"] for rank, told in end["failures"].items()} == {"0": False, "1": False, "2": True}
    assert (end["error"], end["absent"], end["unix_ns"]) == ("a rank failed", {"3": "why"}, 1)


def test_where_agents_left_nothing_the_manifest_tells() -> None:
    told = {"error": "x", "failures": {}, "absent": {}}
    assert end_of(Manifest("id", [], ended=told), [], 0) == told
    assert end_of(Manifest("id", []), [Node(attempts=[row(0, 0)])], 0) == {}
    assert end_of(None, [], 0) == {}


@pytest.mark.parametrize(
    ("failures", "error", "code"),
    [
        ({}, None, 0),
        ({"1": failure(3, 1.0)}, "a rank failed", 3),
        ({"0": failure(1, 2.0), "1": failure(-9, 1.0)}, "a rank failed", 137),
        ({}, "SignalException: got signal: 15", 1),
    ],
)
def test_the_exit_code_is_that_of_the_first_rank_to_fail(
    directory: RunDirectory, failures: dict[str, Any], error: str | None, code: int
) -> None:
    for attempt in (0, 1):  # what an earlier attempt came to does not matter
        file = NodeFile.create(directory, {})
        file.node.attempts.append(row(attempt, 0))
        of_attempt: dict[str, Any] = {"error": error, "failures": failures} if attempt else {"error": "preempted"}
        file.node.ended = {"failures": {}, "absent": {}, **of_attempt}
        file.write()
    assert exit_code(directory) == code


def test_a_launch_that_left_no_end_did_not_go_well(directory: RunDirectory) -> None:
    assert exit_code(directory) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"host": 3},
        {"pid": "x"},
        {"attempts": [{"attempt": 0}]},
        {"attempts": {}},
        {"told": [{"signal": 9, "unix_ns": 1}]},
        {"ended": []},
        {"ended": {"failures": {"x": {}}}},
        {"scheduler": {"job": 3}},
    ],
)
def test_a_broken_file_is_no_agents(directory: RunDirectory, change: dict[str, Any]) -> None:
    good = NodeFile.create(directory, {})
    text = json.loads(good.path.read_text())
    (directory.nodes / "other-1.json").write_text(json.dumps({**text, "host": "other", **change}))
    (directory.nodes / "cut-1.json").write_text('{"schema": "distpr')
    (directory.nodes / "link-1.json").symlink_to("/etc/hostname")
    assert [node.host for node in read_nodes(directory)] == [good.node.host]


def test_others_are_waited_for_until_they_ended_or_for_so_long(directory: RunDirectory) -> None:
    for number in (0, 1):
        file = NodeFile.create(directory, {})
        file.node.attempts.append(row(0, number))
        file.node.ended = {"error": None} if number == 0 else None
        file.write()
    assert [node.rank for node in wait_for_nodes(directory, 0, 0.0)] == [1]
    assert wait_for_nodes(directory, 1, 60.0) == []


def test_a_run_directory_is_joined_by_its_id_alone(tmp_path: Path) -> None:
    directory = create(tmp_path / "run", run_id="job")
    assert create(tmp_path / "run", run_id="job").manifest == directory.manifest
    for options in ({"run_id": "other"}, {"run_id": None}, {"run_id": "job", "join": False}):
        with pytest.raises(RunDirectoryError, match="belongs to another run"):
            create(tmp_path / "run", **options)


def test_what_another_node_is_just_making_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    making = run / ".run.json.host.1.abc.tmp"
    making.touch()
    with pytest.raises(RunDirectoryError, match="belongs to another run"):
        create(run)
    monkeypatch.setattr("distprof.run.manifest._MAKING_S", 0.2)
    assert create(run, run_id="job").manifest.exists()  # who began it is gone
