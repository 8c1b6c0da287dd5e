"""Trainings that frameworks run, without an edit: a planted loader delay is found, and they train to the same bits.

Each is trained twice: by torchrun without a delay, and by `distprof launch` with one, which changes no parameter.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.analyze.steady import steady_steps
from distprof.pipeline import build
from distprof.result import Result
from distprof.trace.tables import Tables
from tests.conftest import ROOT, Tell, skip_but_in_ci
from tests.launches import Launched, launch, torchrun

pytestmark = [pytest.mark.launch, pytest.mark.timing]

SCRIPTS = ROOT / "tests" / "frameworks"
# Third-party frameworks have an environment of their own: `make soak` sets it up from constraints-frameworks.txt.
THEIRS = Path(os.environ.get("DISTPROF_FRAMEWORKS") or ROOT / ".venv-frameworks") / "bin" / "python"
STEPS = 20
SLOW_RANK, SLOW_MS = 1, 80


@dataclass(frozen=True)
class Framework:
    """What a script's steps are made of.

    Attributes:
        zones: how many of each kind a step has, where that is not one.
        meets: kinds of the collectives in which the ranks meet in each step.
        ahead: a step loads the next one's batch, and so the last step none.
        theirs: it runs in the environment of third-party frameworks.
    """

    zones: Mapping[str, int] = field(default_factory=dict)
    meets: frozenset[str] = frozenset({"all_reduce"})
    ahead: bool = False
    theirs: bool = False

    @property
    def python(self) -> str:
        """The interpreter that it runs on."""
        if self.theirs and not THEIRS.exists():
            skip_but_in_ci(f"no environment with frameworks at {THEIRS.parent.parent}; `make soak` makes it")
        return str(THEIRS) if self.theirs else sys.executable

    def zones_of(self, step: int) -> dict[str, int]:
        """Zones of a step by their kind."""
        loads = ("data_loading",) if step < STEPS - 1 or not self.ahead else ()
        return {**dict.fromkeys((*loads, "forward", "backward", "optimizer"), 1), **self.zones}


FRAMEWORKS = {
    "lightning_ddp": Framework(theirs=True),
    "accelerate_ddp": Framework(theirs=True, ahead=True),
    "hf_trainer": Framework(theirs=True, ahead=True),  # it stands on Accelerate
    "fsdp2": Framework(meets=frozenset({"all_gather", "all_reduce"})),  # gloo makes an all-reduce of a reduce-scatter
    "compiled": Framework(),
    "grad_scaler": Framework(),
    "accumulation": Framework({"data_loading": 4, "forward": 4, "backward": 4}),
    "gan": Framework({"forward": 4, "backward": 2, "optimizer": 2}),
    "iterable": Framework(),
    "pipelining": Framework({"forward": 4, "backward": 4}, meets=frozenset()),
}


@pytest.mark.parametrize("name", ["fsdp2", "gan"])
def test_two_frameworks(name: str, tmp_path: Path, tell: Tell) -> None:
    check(name, tmp_path, tell)


@pytest.mark.soak
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_all_frameworks(name: str, tmp_path: Path, tell: Tell) -> None:
    check(name, tmp_path, tell)


def check(name: str, tmp_path: Path, tell: Tell) -> None:
    """Train twice, say what was found, and hold it against what was planted."""
    framework = FRAMEWORKS[name]
    python = framework.python
    script = ["--standalone", "--nproc-per-node", "2", str(SCRIPTS / f"{name}.py"), "--steps", str(STEPS)]
    # What torch compiled in the first launch serves in the second one.
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"), "HF_HUB_OFFLINE": "1"}
    plain = torchrun(*script, env=env, python=python)
    assert plain.returncode == 0, plain.stderr
    slow = ["--slow", str(SLOW_RANK), str(SLOW_MS)]
    profiled = launch(tmp_path / "run", *script, *slow, env=env, python=python)
    assert profiled.returncode == 0, profiled.stderr
    run = distprof.load(profiled.run_dir)
    result = build(run)
    identical = checksums(plain) == checksums(profiled)
    steady = steady_steps(run.tables)
    found = described(run.tables, result, len(steady))
    tell(f"{name} ({package(profiled)}): {found}; parameters {'identical' if identical else 'DIFFERENT'}")
    assert identical
    assert all(facts["problems"] == [] for facts in run.tables.facts.values())
    assert run.tables.step_source == "optimizer"
    assert run.tables.steps.filter(rank=0).height == run.tables.steps.filter(rank=1).height == STEPS
    assert len(steady) >= STEPS / 2
    for rank in (0, 1):
        for step in steady:
            assert zones_of(run.tables, rank, step) == framework.zones_of(step)
            assert framework.meets <= kinds_of(run.tables, rank, step)
    slept = profiled.slept_ms(SLOW_RANK)
    loaded = [*slept[1:], 0.0] if framework.ahead else slept
    the_delay_is_found(framework, result, [loaded[step] for step in steady])


def the_delay_is_found(framework: Framework, result: Result, slept: list[float]) -> None:
    """`slept`: what was, in each steady step, in ms."""
    usual = statistics.median(slept)
    assert usual >= SLOW_MS, "it was to sleep"
    loading = {row.rank: row.wait or 0.0 for row in result.data_loading.per_rank}
    assert loading[SLOW_RANK] == pytest.approx(statistics.mean(slept), rel=0.2)
    assert loading[1 - SLOW_RANK] < 0.2 * usual
    parts = {row.rank: row for row in result.breakdown}
    assert (parts[SLOW_RANK].data_wait or 0.0) > 0.8 * usual
    assert (parts[1 - SLOW_RANK].data_wait or 0.0) < 0.2 * usual
    if framework.meets:
        (row,) = result.stragglers.ranks
        assert (row.rank, row.cause, row.zone) == (SLOW_RANK, "data_loading", "DataLoader#0")
        assert row.pattern == "persistent"
        assert row.delay == pytest.approx(usual, rel=0.2)
        assert (parts[1 - SLOW_RANK].comm_wait or 0.0) > 0.7 * usual
        assert result.findings[0].id == "straggler.data_loading"
    else:  # stages of a pipeline do different work, and gloo does not record what they send: nobody is compared
        assert (result.stragglers.verdict, result.stragglers.ranks) == ("undecided", [])
        assert (result.findings[0].id, result.findings[0].ranks) == ("data_loading.stalls", [SLOW_RANK])


def checksums(launched: Launched) -> dict[str, str]:
    """Of each rank's parameters, by rank."""
    found = {str(row["rank"]): str(row["sha256"]) for row in launched.printed() if "sha256" in row}
    assert sorted(found) == ["0", "1"]
    return found


def zones_of(tables: Tables, rank: int, step: int) -> dict[str, int]:
    """How many zones of training a step of a rank has, by their kind."""
    start, end = tables.steps.row(by_predicate=(pl.col("rank") == rank) & (pl.col("step") == step))[2:4]
    begun = tables.zones.filter(rank=rank, thread=0).filter(pl.col("start").is_between(start, end, closed="left"))
    counts = begun.filter(~pl.col("kind").is_in(["wait", "own", "gc", "loader_start", "loader_end"]))["kind"]
    return dict(counts.value_counts().iter_rows())


def kinds_of(tables: Tables, rank: int, step: int) -> set[str]:
    """Kinds of the collectives that a rank called in a step."""
    return set(tables.collectives.filter(rank=rank, step=step)["kind"])


def package(launched: Launched) -> str:
    """What a script trained with, and its version."""
    return next(str(row["package"]) for row in launched.printed() if "package" in row)


def described(tables: Tables, result: Result, steady: int) -> str:
    """What the steps were, and what was found."""
    counts = " and ".join(str(tables.steps.filter(rank=rank).height) for rank in (0, 1))
    named = [
        f"rank {row.rank}, {row.cause} ({row.zone}), {row.delay:.1f} ms in each step" for row in result.stragglers.ranks
    ]
    first = [f"first finding: {finding.observation}" for finding in result.findings[:1]]
    steps = f"{counts} steps by the {tables.step_source}, {steady} of them steady"
    return f"{steps}; {result.stragglers.verdict}: {', '.join(named or first)}"
