"""Which agent of a job makes the report, and what the others say."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.cli import launch as cli
from distprof.launcher.local import Place, World
from distprof.run.directory import RunDirectory
from distprof.run.manifest import create_run
from distprof.run.nodes import NodeFile

END = {"error": None, "failures": {}, "absent": {}}
TWO = World(nodes=2, ranks_per_node=1, size=2)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    monkeypatch.setattr(cli, "report", lambda directory: made.append(directory.path))
    return made


def place(path: Path, rank: int | None, ended: dict[str, object] | None = END) -> Place:
    directory, manifest = create_run(path, run_id="id", command=[], world_size=2, config={}, versions={})
    agent = NodeFile.create(directory, {})
    if rank is not None:
        agent.node.attempts = [{"attempt": 0, "node_rank": rank, "nodes": 2, "unix_ns": 1}]
    agent.node.ended = ended
    agent.write()
    return Place(RunDirectory(path), manifest, agent)


def test_agent_0_makes_it_and_the_others_are_silent_on_a_shared_disk(
    tmp_path: Path, reported: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = place(tmp_path, 0), place(tmp_path, 1)
    cli._report_once(second, TWO)
    assert (reported, capsys.readouterr().out) == ([], "")
    cli._report_once(first, TWO)
    assert reported == [tmp_path]


def test_on_a_disk_of_its_own_another_agent_says_where_its_recordings_are(
    tmp_path: Path, reported: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path / "first", 0)
    cli._report_once(place(tmp_path / "second", 1), TWO)
    assert reported == []
    assert f"this host's recordings are in {tmp_path / 'second'}" in capsys.readouterr().out


def test_the_others_are_waited_for_and_not_for_ever(
    tmp_path: Path, reported: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(cli, "wait_for_nodes", lambda directory, attempt, patience_s: waited.append(patience_s))
    cli._report_once(place(tmp_path / "well", 0), TWO)
    cli._report_once(place(tmp_path / "failed", 0, {**END, "error": "a rank failed"}), TWO)
    assert waited == [60.0, 15.0]
    assert len(reported) == 2


def test_alone_it_makes_it_whatever_happened(tmp_path: Path, reported: list[Path]) -> None:
    cli._report_once(place(tmp_path, None, {**END, "error": "bad rendezvous"}), World(1, 2, 2))
    assert reported == [tmp_path]


def test_without_a_rendezvous_of_several_there_is_nothing_to_report(
    tmp_path: Path, reported: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cli._report_once(place(tmp_path, None, {**END, "error": "RendezvousTimeoutError"}), TWO)
    assert (reported, capsys.readouterr().out) == ([], "")


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_PROCID": "0",
}


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """Places of launches that did nothing, in a folder of their own."""
    places: list[Place] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "launch", lambda spec, arguments, world, where: places.append(where))
    return places


def start(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    for name in STEP.keys() | {"SLURM_RESTART_COUNT"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["--no-report", *words, "train.py"]) == 0


def test_tasks_of_a_step_and_its_restarts_share_a_directory(
    launched: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("0", "1"):
        start({**STEP, "SLURM_PROCID": task}, monkeypatch)
    start({**STEP, "SLURM_RESTART_COUNT": "1"}, monkeypatch)
    start({**STEP, "SLURM_STEP_ID": "1"}, monkeypatch)
    assert [where.directory.name for where in launched] == ["slurm-7-train"] * 3 + ["slurm-7.1-train"]
    assert len({where.agent.path for where in launched}) == 4
    assert all(where.scheduled and where.manifest.world_size == 2 for where in launched)


def test_launches_of_a_batch_script_have_one_each_and_a_requeued_one_joins_its_own(
    launched: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = {"SLURM_JOB_ID": "7"}
    start(batch, monkeypatch)
    start(batch, monkeypatch)
    start({**batch, "SLURM_RESTART_COUNT": "1"}, monkeypatch)
    assert [where.directory.name for where in launched] == ["slurm-7-train", "slurm-7-train-2", "slurm-7-train"]
    assert launched[0].manifest.run_id == launched[2].manifest.run_id != launched[1].manifest.run_id
    with pytest.raises(SystemExit):
        start(batch, monkeypatch, "--run-dir", str(launched[0].directory.path))  # nobody said that it is the same


def test_each_task_that_trains_for_itself_has_a_run_of_its_own(
    launched: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("0", "1"):
        start({**STEP, "SLURM_PROCID": task}, monkeypatch, "--standalone")
    assert [where.directory.name for where in launched] == ["slurm-7.task0-train", "slurm-7.task1-train"]
    assert len({where.manifest.run_id for where in launched}) == 2


def test_elsewhere_nodes_join_by_the_rendezvous(launched: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("0", "1"):
        start({}, monkeypatch, "--run-dir", "run", "--nnodes", "2", "--node-rank", node, "--master-addr", "a")
    assert [where.manifest.run_id for where in launched] == ["a:29500"] * 2
    assert not any(where.scheduled for where in launched)
    with pytest.raises(SystemExit):
        start({}, monkeypatch, "--run-dir", "run")
    start({}, monkeypatch, "--run-dir", "run", "--run-id", "a:29500", "--stage-dir", "disk")
    staged = launched[-1].staged
    assert staged is not None
    assert staged.path.parent.name == "disk"
    assert launched[-1].written == staged
