"""Real runs with a planted problem, and their healthy twins; each is launched once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from distprof.result import Result
from tests.launches import EXAMPLES, Launched, launch


@dataclass(frozen=True)
class Scenario:
    """A run and what the analysis says of it."""

    launched: Launched
    result: Result


def _run(
    tmp_path_factory: pytest.TempPathFactory, name: str, *arguments: str, env: dict[str, str] | None = None
) -> Scenario:
    run_dir = tmp_path_factory.mktemp(name) / "run"
    launched = launch(run_dir, "--standalone", *arguments, env=env)
    assert launched.returncode == 0, launched.stderr
    return Scenario(launched, build(distprof.load(run_dir)))


@pytest.fixture(scope="session")
def slow_loader(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "slow_loader", "--nproc", "4", str(EXAMPLES / "slow_loader.py"))


@pytest.fixture(scope="session")
def healthy_loader(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "healthy_loader", "--nproc", "4", str(EXAMPLES / "slow_loader.py"), "--healthy")


@pytest.fixture(scope="session")
def slow_backward(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "slow_backward", "--nproc", "4", str(EXAMPLES / "slow_backward.py"))


@pytest.fixture(scope="session")
def healthy_backward(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "healthy_backward", "--nproc", "4", str(EXAMPLES / "slow_backward.py"), "--healthy")


@pytest.fixture(scope="session")
def uneven_batches(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "uneven_batches", "--nproc", "4", str(EXAMPLES / "uneven_batches.py"))


@pytest.fixture(scope="session")
def small_buckets(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "small_buckets", "--nproc", "2", str(EXAMPLES / "small_buckets.py"))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "healthy", "--nproc", "2", str(EXAMPLES / "healthy.py"))


@pytest.fixture(scope="session")
def straggler_case(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, Scenario]:
    """`train_straggler`: rank 1 slow, rank 0 slow, nobody slow."""
    script = str(shared / "cases" / "train_straggler" / "train.py")
    settings = {
        "rank 1": {"SLOW_RANK": "1", "SLEEP_MS": "40"},
        "rank 0": {"SLOW_RANK": "0", "SLEEP_MS": "40"},
        "healthy": {"SLEEP_MS": "0"},
    }
    return {
        name: _run(tmp_path_factory, "straggler", "--nproc", "2", script, env={"STEPS": "24", **env})
        for name, env in settings.items()
    }


@pytest.fixture(scope="session")
def data_stall_case(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, Scenario]:
    """`train_data_stall` with each way of loading that its README names."""
    script = str(shared / "cases" / "train_data_stall" / "train.py")
    settings = {
        "no workers": {"NW": "0"},
        "forked": {"NW": "2", "PERSIST": "1", "START": "fork"},
        "spawned": {"NW": "1", "START": "spawn"},
    }
    return {
        name: _run(tmp_path_factory, "data_stall", "--nproc", "2", script, env=env) for name, env in settings.items()
    }
