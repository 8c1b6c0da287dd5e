"""How a launch ends is noted: what failed, and which ranks left nothing although their processes ran."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from distprof.cli.launch import build_parser
from distprof.launcher import local
from distprof.launcher.spec import LaunchSpec
from distprof.run.config import CONFIG_VARIABLE, OWNER_VARIABLE, CaptureConfig
from distprof.run.directory import RunDirectory
from distprof.run.files import write_json
from distprof.run.manifest import create_run, read_manifest
from distprof.run.nodes import NodeFile, read_nodes

IN_NO_STEP = "its process came to no training step: no loader, forward, backward or optimizer was called"


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The launch changes this process's environment."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def ended(
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    *,
    records: tuple[int, ...] = (),
    error: BaseException | None = None,
) -> dict[str, Any]:
    """`ended` of the manifest after a launch in which these ranks recorded and that ended with this error."""

    def run(_: object) -> None:
        assert CONFIG_VARIABLE in os.environ
        assert OWNER_VARIABLE not in os.environ
        for rank in records:
            files = directory.rank(0, rank)
            files.folder.mkdir(exist_ok=True)
            write_json(files.facts, {"rank": rank})
        if error is not None:
            raise error

    monkeypatch.setattr(local, "run", run)
    monkeypatch.setenv(OWNER_VARIABLE, "1")
    arguments = build_parser().parse_args(words)
    _, manifest = create_run(directory.path, run_id=None, command=[], world_size=None, config={}, versions={})
    spec = LaunchSpec(command=[], script="", capture=CaptureConfig(str(directory.path)))
    place = local.Place(directory, manifest, NodeFile.create(directory, {}))
    world = local.World.of(arguments)
    try:
        local.launch(spec, arguments, world, place)
    except BaseException as raised:
        assert raised is error  # torchrun's own, whatever it is
    (node,) = read_nodes(directory)
    assert node.ended is not None
    assert read_manifest(directory).ended == (node.ended if world.nodes == 1 else None)
    return node.ended


def test_a_launch_that_went_well(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = ended(directory, monkeypatch, ["--nproc", "2", "train.py"], records=(0, 1))
    assert (noted["error"], noted["failures"], noted["absent"]) == (None, {}, {})


def test_a_rank_that_failed(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ProcessFailure(local_rank=1, pid=99, exitcode=-9, error_file="<N/A>")
    error = ChildFailedError("train.py", {1: failure})
    noted = ended(directory, monkeypatch, ["--nproc", "3", "train.py"], records=(0, 1), error=error)
    assert noted["error"] == "a rank failed"
    assert (noted["failures"]["1"]["exit_code"], noted["failures"]["1"]["signal"]) == (-9, "SIGKILL")
    assert noted["absent"] == {"2": IN_NO_STEP}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train.py"], IN_NO_STEP),
        (["--no-python", "./wrap.sh"], "no Python process that ./wrap.sh started was armed and trained: python -I,"),
        (["--run-path", "--start-method", "fork", "/train.py"], "use --start-method spawn"),
        (["--run-path", "--start-method", "spawn", "/train.py"], IN_NO_STEP),
    ],
)
def test_why_a_rank_left_nothing(
    words: list[str], says: str, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = ended(directory, monkeypatch, words)
    assert list(noted["absent"]) == ["0"]
    assert says in noted["absent"]["0"]


def test_another_python_may_ignore_the_path(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert "/opt/python started" in ended(directory, monkeypatch, ["train.py"])["absent"]["0"]


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["--nnodes", "2", "--nproc", "2", "--node-rank", "1"], ["2", "3"]),
        (["--nnodes", "2", "--nproc", "2", "--rdzv-backend", "c10d"], []),  # the rendezvous deals the ranks out
        (["--nnodes", "1:1", "--nproc", "2", "--rdzv-backend", "c10d"], ["0", "1"]),
    ],
)
def test_only_ranks_that_this_agent_started_are_missed(
    words: list[str], ranks: list[str], directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(ended(directory, monkeypatch, [*words, "train.py"])["absent"]) == ranks


def test_after_a_signal_ranks_are_missed(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SignalException("Process 1 got signal: 15", sigval=signal.SIGTERM)
    noted = ended(directory, monkeypatch, ["--nproc", "2", "train.py"], records=(1,), error=error)
    assert noted["error"] == "SignalException: Process 1 got signal: 15"
    assert list(noted["absent"]) == ["0"]


def test_a_launch_that_came_to_no_rank_misses_none(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = ended(directory, monkeypatch, ["train.py"], error=ValueError("bad rendezvous"))
    assert (noted["error"], noted["absent"]) == ("ValueError: bad rendezvous", {})
