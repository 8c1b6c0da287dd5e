"""Clocks that really differ, in real runs: what the probes write is true, and what the report makes of it covers that.

All ranks share one kernel, so the truth is known: `clocks.py` prints its own clock's readings beside the kernel's.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import distprof
from distprof.clock.shift import corrections, shifted
from distprof.pipeline import build
from distprof.result import ClockRow, Result
from distprof.trace.load import Run
from tests.hosts import LINK, Host, hosts
from tests.launches import ROOT, Launched, launch
from tests.machine import libfaketime

pytestmark = [pytest.mark.launch, pytest.mark.timing]

SCRIPTS = ROOT / "tests" / "scripts"
SKEWED, SLOW = 1, 2
DRIFT_PPM = 100.0
READING_NS = 10_000  # what the truth itself may be wrong by
# One way from host to host, in s: there and back alike between 0 and 1, and not between 0 and 2.
DELAYS = {(0, 1): 0.002, (1, 0): 0.002, (0, 2): 0.001, (2, 0): 0.005, (1, 2): 0.001, (2, 1): 0.001}

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """A run whose ranks' clocks are known."""

    run: Run
    result: Result
    readings: dict[int, Nanoseconds]

    @classmethod
    def of(cls, launched: Launched) -> Clocks:
        assert launched.returncode == 0, launched.stderr
        assert "Traceback" not in launched.stderr
        run = distprof.load(launched.run_dir)
        readings = {row["rank"]: np.array(row["readings"]) for row in launched.printed() if "readings" in row}
        assert sorted(readings) == [0, 1, 2]
        return cls(run, build(run), readings)  # type: ignore[arg-type]

    def row(self, rank: int) -> ClockRow:
        return self.result.clock.ranks[rank]

    def ahead(self, rank: int, own: Nanoseconds) -> npt.NDArray[np.float64]:
        """By how many ns the rank's clock is in truth ahead, when it reads `own`."""
        (first, second), kernel = self.readings[rank][:, 0], self.readings[rank][:, 1]
        at_first, at_second = self.readings[rank][:, 0] - kernel
        return at_first + (own - first) * ((at_second - at_first) / (second - first))

    def error_us(self, rank: int) -> npt.NDArray[np.float64]:
        """What the report's correction is wrong by, all along the run."""
        own = np.linspace(*self.readings[rank][:, 0], num=101).astype(np.int64)
        corrected = corrections(self.result.clock).of(rank)(own)
        return np.abs(own - corrected - self.ahead(rank, own)) / 1e3  # type: ignore[no-any-return]

    def samples(self, rank: int) -> dict[str, Nanoseconds]:
        table = self.run.tables.probes.filter(rank=rank)
        return {name: table[name].to_numpy() for name in ("sent", "peer_received", "peer_sent", "received")}


@pytest.fixture(scope="module")
def skew() -> dict[str, str]:
    """The environment in which `skewed_rank.sh` skews rank 1."""
    return {"PYTHON": sys.executable, "LIBFAKETIME": libfaketime(), "SKEW": f"+2.5s x{1 + DRIFT_PPM / 1e6}"}


def training(seconds: int) -> list[str]:
    return ["--no-python", str(SCRIPTS / "skewed_rank.sh"), str(SCRIPTS / "clocks.py"), str(seconds), str(SLOW)]


@pytest.fixture(scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory, skew: dict[str, str]) -> Clocks:
    """Three ranks on this host; rank 1 sees another clock."""
    run_dir = tmp_path_factory.mktemp("one_host") / "run"
    return Clocks.of(launch(run_dir, "--standalone", "--nproc", "3", *training(12), env=skew))


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory: pytest.TempPathFactory, skew: dict[str, str]) -> Clocks:
    """A rank on each of three hosts with links of some ms between them; the clock of host 1 is skewed."""
    run_dir = tmp_path_factory.mktemp("three_hosts") / "run"
    with hosts(3, lambda source, target: DELAYS[source, target]) as made:
        return Clocks.of(_launch_on(made, run_dir, skew))


def _launch_on(made: list[Host], run_dir: Path, env: dict[str, str]) -> Launched:
    with contextlib.ExitStack() as stack:
        agents = []
        for host in made:
            options = ["--nnodes", str(len(made)), "--node-rank", str(host.number), "--nproc", "1"]
            options += ["--master-addr", made[0].address, "--master-port", "29400", "--run-dir", str(run_dir)]
            command = [sys.executable, "-m", "distprof", "launch", "--no-report", *options, *training(8)]
            agent = subprocess.Popen(
                host.command(*command),
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(agent.kill)
            agents.append(agent)
            while not (run_dir / "run.json").exists():  # the first makes the directory, the others join it
                assert agent.poll() is None
                time.sleep(0.1)
        outputs = [agent.communicate(timeout=300) for agent in agents]
    stdout, stderr = ("".join(part) for part in zip(*outputs, strict=True))
    return Launched(run_dir, max(abs(agent.returncode) for agent in agents), stdout, stderr)


@pytest.fixture(params=["one_host", "three_hosts"])
def clocks(request: pytest.FixtureRequest) -> Clocks:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def facts(clocks: Clocks, rank: int) -> dict[str, Any]:
    return json.loads((clocks.run.directory.rank(0, rank)).facts.read_text())  # type: ignore[no-any-return]


def test_each_sample_is_in_the_true_order_of_what_happened(clocks: Clocks) -> None:
    for rank in (1, 2):
        samples = clocks.samples(rank)
        assert len(samples["sent"]) > 30
        sent = samples["sent"] - clocks.ahead(rank, samples["sent"])
        received = samples["received"] - clocks.ahead(rank, samples["received"])
        assert np.all(samples["peer_received"] - sent >= -READING_NS)
        assert np.all(samples["peer_sent"] >= samples["peer_received"])
        assert np.all(received - samples["peer_sent"] >= -READING_NS)


def test_samples_cover_the_run_and_tell_how_they_were_stamped(clocks: Clocks) -> None:
    for rank in range(3):
        probes = facts(clocks, rank)["probes"]
        assert (probes["status"], probes["reason"]) == ("on", None)
        assert probes["kernel_stamps"] is (rank != SKEWED)  # libfaketime does not skew them
    for rank in (1, 2):
        steps = clocks.run.tables.steps.filter(rank=rank)
        sent = clocks.samples(rank)["sent"]
        first_edge, last_edge = (
            clocks.run.tables.windows.filter(rank=rank).row(0, named=True)["start"],
            steps["end"].max(),
        )
        assert sent[0] < first_edge
        assert sent[-1] > last_edge - 2e9
        gaps = np.diff(np.concatenate([sent, [last_edge]]))
        assert gaps.max() < 0.75 * (last_edge - sent[0])


def test_the_skewed_clock_is_found_with_its_drift_and_the_bound_covers_the_truth(clocks: Clocks) -> None:
    assert clocks.result.clock.verdict == "aligned"
    assert clocks.result.clock.reference_rank == 0
    for rank in (1, 2):
        bound = clocks.row(rank).bound_us
        assert bound is not None
        assert np.all(clocks.error_us(rank) <= bound + READING_NS / 1e3)
    offset = clocks.row(SKEWED).offset_us
    assert offset == pytest.approx(2.5e6, rel=0.01)
    drift_error = 2e6 * clocks.row(SKEWED).bound_us / 8e6  # type: ignore[operator]
    assert clocks.row(SKEWED).drift_ppm == pytest.approx(DRIFT_PPM, abs=drift_error)


def test_on_one_host_the_error_is_some_ten_microseconds(one_host: Clocks) -> None:
    for rank in (1, 2):
        assert np.median(one_host.error_us(rank)) < 50


def test_the_bound_is_as_wide_as_the_way_is_long(three_hosts: Clocks, one_host: Clocks) -> None:
    for rank in (1, 2):
        way_us = 1e6 * (DELAYS[0, rank] + DELAYS[rank, 0]) / 2
        bound = three_hosts.row(rank).bound_us
        assert bound is not None
        assert 0.9 * way_us < bound < 3 * way_us
        assert bound > 5 * (one_host.row(rank).bound_us or 0.0)
    skewed_way = 1e6 * abs(DELAYS[0, SLOW] - DELAYS[SLOW, 0]) / 2
    assert np.median(three_hosts.error_us(SLOW)) > 0.5 * skewed_way  # which is why the bound is not smaller


def test_hosts_are_told_apart(three_hosts: Clocks) -> None:
    assert [facts(three_hosts, rank)["host"] for rank in range(3)] == ["host0", "host1", "host2"]


def test_the_planted_straggler_is_named(clocks: Clocks) -> None:
    assert clocks.result.stragglers.verdict == "straggler"
    assert [(row.rank, row.cause) for row in clocks.result.stragglers.ranks] == [(SLOW, "backward")]


def test_zones_and_collectives_of_the_skewed_rank_share_its_clock(clocks: Clocks) -> None:
    tables = clocks.run.tables
    for rank in range(3):
        backward = tables.zones.filter(kind="backward", rank=rank).sort("start")
        created = tables.collectives.filter(kind="all_reduce", rank=rank)["created"].to_numpy()
        place = np.searchsorted(backward["start"].to_numpy(), created, side="right") - 1
        inside = (place >= 0) & (created <= backward["end"].to_numpy()[place])
        assert inside.mean() > 0.95


def test_aligned_steps_end_together(clocks: Clocks) -> None:
    aligned = shifted(clocks.run.tables, corrections(clocks.result.clock)).steps
    apart = {}
    for name, steps in (("as recorded", clocks.run.tables.steps), ("aligned", aligned)):
        ends = steps.select("rank", "step", "end")
        pairs = ends.filter(rank=0).join(ends.filter(rank=SKEWED), on="step", suffix="_other")
        apart[name] = (pairs["end_other"] - pairs["end"]).abs().median()
    assert apart["aligned"] < apart["as recorded"] / 100
