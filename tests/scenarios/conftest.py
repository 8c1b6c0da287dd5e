"""Real runs with a planted problem, and their healthy twins; each is launched once for all tests."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.pipeline import build
from distprof.result import Result, Stragglers
from distprof.trace.loaded import Run
from tests.launches import EXAMPLES, ROOT, Launched, launch

SCRIPTS = ROOT / "tests" / "scripts"
SAMPLE_MS = 10  # what a sample of `data_stall_case` sleeps at least
SLEEP_MS = 80  # what the slow rank of `straggler_case` sleeps in each step


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
def uneven_batches(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    long = ("--tokens", "96")  # work cannot be made longer than the noise by sleeping
    return _run(tmp_path_factory, "uneven_batches", "--nproc", "4", str(EXAMPLES / "uneven_batches.py"), *long)


@pytest.fixture(scope="session")
def small_buckets(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return _run(tmp_path_factory, "small_buckets", "--nproc", "2", str(EXAMPLES / "small_buckets.py"))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    # Of few steps a busy machine's accidents fall to one rank by chance, in about one of a hundred launches.
    return _run(tmp_path_factory, "healthy", "--nproc", "2", str(EXAMPLES / "healthy.py"), "--steps", "160")


@dataclass(frozen=True)
class Phased:
    """A run in whose phases different ranks were slow.

    Attributes:
        phases: by name, as the script says them: `plants`, and how many `steps`.
        steps: by name, the first step that is judged and the first one that is not. A delay at the end of one phase
            shows in the first step of the next.
        slept: rank -> step -> ms that its plants really slept.
    """

    run: Run
    phases: dict[str, Any]
    steps: dict[str, tuple[int, int]]
    slept: dict[int, dict[int, float]]

    def judged(self, phase: str) -> Stragglers:
        """Who is late in a phase."""
        return build(self.run, self.steps[phase]).stragglers


@pytest.fixture(scope="session")
def phased(tmp_path_factory: pytest.TempPathFactory) -> Phased:
    run_dir = tmp_path_factory.mktemp("phases") / "run"
    launched = launch(run_dir, "--standalone", "--nproc", "3", "--no-window", str(SCRIPTS / "phases.py"))
    assert launched.returncode == 0, launched.stderr
    rows: list[dict[str, Any]] = launched.printed()
    phases = {phase["name"]: phase for row in rows for phase in row.get("phases", ())}
    ends = dict(zip(phases, itertools.accumulate(phase["steps"] for phase in phases.values()), strict=True))
    return Phased(
        run=distprof.load(run_dir),
        phases=phases,
        steps={name: (end - phases[name]["steps"] + 1, end) for name, end in ends.items()},
        slept={row["rank"]: {int(step): ms for step, ms in row["slept"].items()} for row in rows if "slept" in row},
    )


@pytest.fixture(scope="session")
def straggler_case(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, Result]:
    """`train_straggler` three times in one launch: rank 1 slow, rank 0 slow, nobody slow."""
    settings = {
        "rank 1": {"SLOW_RANK": "1", "SLEEP_MS": str(SLEEP_MS)},
        "rank 0": {"SLOW_RANK": "0", "SLEEP_MS": str(SLEEP_MS)},
        "healthy": {"SLEEP_MS": "0"},
    }
    steps = 16
    run_dir = tmp_path_factory.mktemp("straggler") / "run"
    script = [str(SCRIPTS / "marked.py"), str(shared / "cases" / "train_straggler" / "train.py")]
    each = [json.dumps(setting) for setting in settings.values()]
    ours = ["--standalone", "--nproc", "2", "--no-window"]
    launched = launch(run_dir, *ours, *script, *each, env={"STEPS": str(steps)})
    assert launched.returncode == 0, launched.stderr
    run = distprof.load(run_dir)
    # The first step of each setting builds a model.
    return {name: build(run, (place * steps + 1, (place + 1) * steps)) for place, name in enumerate(settings)}


@pytest.fixture(scope="session")
def data_stall_case(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, Scenario]:
    """`train_data_stall` with each way of loading that its README names; samples take longer than the noise."""
    script = str(shared / "cases" / "train_data_stall" / "train.py")
    settings = {
        "no workers": {"NW": "0"},
        "forked": {"NW": "2", "PERSIST": "1", "START": "fork"},
        "spawned": {"NW": "1", "START": "spawn"},
    }
    return {
        name: _run(tmp_path_factory, "data_stall", "--nproc", "2", script, env={"DATA_MS": str(SAMPLE_MS), **env})
        for name, env in settings.items()
    }
