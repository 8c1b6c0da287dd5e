"""Experiments with real launches: a planted difference is found, a setting against itself is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distprof.experiment.core import read
from distprof.experiment.launching import Launcher, Training
from distprof.experiment.settings import Point
from tests.conftest import Tell

pytestmark = [pytest.mark.launch, pytest.mark.timing]

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "planted.py")
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and its experiment."""

    returncode: int
    stdout: str
    stderr: str
    result: dict[str, Any]
    launched: int


def command(name: str, out: Path, *words: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "distprof", name, "--out", str(out), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    experiment = read(out)
    assert experiment is not None, done.stderr
    launched = len(re.findall(r"^\w+, repeat \d+(: | failed)", done.stderr, re.MULTILINE))
    return Ran(done.returncode, done.stdout, done.stderr, experiment.result, launched)


def in_words(ratio: dict[str, float]) -> str:
    """An estimate with its interval."""
    return f"{ratio['estimate']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


@pytest.mark.launch
def test_the_planted_ratio_is_found_and_nothing_is_launched_again(tmp_path: Path) -> None:
    """Decoding takes 100 ms and the step 100 ms: one after the other, or with two workers side by side."""
    words = ["--nproc-per-node", "2", "--repeats", "2", "--steps", "14", "--warmup", "6"]
    words += ["--baseline", "ddp.bucket_cap_mb=1", "--candidate", "ddp.bucket_cap_mb=1 loader.num_workers=2"]
    words += ["--fail-if", "ratio.estimate > 0.9", SCRIPT, "--decode-ms", "100", "--work-ms", "100"]
    first = command("validate", tmp_path / "out", *words)
    assert first.returncode == 0, first.stderr
    assert first.launched == 4
    assert first.result["ratio"]["estimate"] == pytest.approx(0.5, rel=0.15)
    assert first.result["verdict"] == "cannot_be_told"  # of two repeats nothing can be concluded
    assert first.result["training"] == "same"
    parts = {part["part"]: part for part in first.result["parts"]}
    assert parts["data_wait"]["baseline"] > 90
    assert parts["data_wait"]["candidate"] < 45
    experiment = read(tmp_path / "out")
    assert experiment is not None
    for trial in experiment.trials:
        assert 12 <= len(trial.step_ms) <= 14, "a step that distprof's own work disturbed is left out"
        of_setting = {row.setting: row for row in trial.settings or ()}
        assert (of_setting["ddp.bucket_cap_mb"].had, of_setting["ddp.bucket_cap_mb"].took) == (25, 1)
        assert of_setting["ddp.bucket_cap_mb"].ranks == [0, 1]
        assert ("loader.num_workers" in of_setting) is (trial.point == "candidate")
    again = command("validate", tmp_path / "out", *words)
    assert again.launched == 0
    assert again.result == first.result
    assert "Everything was measured before." in again.stderr


@pytest.mark.launch
def test_overhead_is_measured_for_all_ways_of_recording(tmp_path: Path) -> None:
    words = ["--nproc-per-node", "2", "--repeats", "1", "--steps", "10", "--warmup", "4", SCRIPT, "--decode-ms", "0"]
    found = command("overhead", tmp_path / "out", *words)
    assert found.returncode == 0, found.stderr
    costs = {(cost["what"], cost["recorded"], cost["against"]): cost for cost in found.result["costs"]}
    for recorded, against in (("zones", "without"), ("window", "without"), ("window", "zones")):
        cost = costs["step", recorded, against]
        assert cost["ratio"]["repeats"] == 1
        assert cost["ratio"]["estimate"] == pytest.approx(cost["after"] / cost["before"])
        assert min(cost["before"], cost["after"]) > 60  # the step sleeps as long
    experiment = read(tmp_path / "out")
    assert experiment is not None
    without, zones, window = experiment.trials
    assert len(without.step_ms) == len(zones.step_ms) == 10
    assert len(window.step_ms) >= 9  # the last one's end may be the window's
    assert set(without.zones) <= {"backward", "optimizer"}
    assert {"forward", "data_loading", "backward"} <= set(zones.zones)
    # All trained the same, whatever was recorded.
    assert without.checksums == zones.checksums == window.checksums is not None


@pytest.mark.launch
def test_a_launch_that_fails_says_why(tmp_path: Path) -> None:
    training = Training(["--standalone"], SCRIPT, ["--breaks"], module=False)
    launcher = Launcher(tmp_path, training, ["--stop-after=3", "--no-window"], first=1)
    trial = launcher(Point("broken", {"loader.num_workers": 1}), 0, None)
    assert trial is not None
    assert trial.failure == "it ended with status 1"
    assert any("no workers here" in line for line in trial.tail)
    assert trial.log is not None
    assert "no workers here" in (tmp_path / trial.log).read_text()


@pytest.mark.soak
@pytest.mark.launch
def test_of_a_setting_against_itself_nothing_can_be_told(tmp_path: Path, tell: Tell) -> None:
    told = []
    for number in range(20):
        words = ["--nproc-per-node", "2", "--repeats", "3", "--steps", "20", "--warmup", "4", "--candidate", ""]
        words += [SCRIPT, "--decode-ms", "5", "--work-ms", "10", "--width", "256"]
        found = command("validate", tmp_path / str(number), *words).result
        told.append(found["verdict"])
        tell(f"a setting against itself: {found['verdict']}, ratio {in_words(found['ratio'])}")
    assert told.count("cannot_be_told") >= 19, told


@pytest.mark.soak
@pytest.mark.launch
def test_larger_buckets_win_over_many_tiny_ones(tmp_path: Path, tell: Tell) -> None:
    """400 layers of 17 kB: buckets of 10 kB are one for each, of 25 MB few."""
    words = ["--nproc-per-node", "2", "--repeats", "4", "--steps", "20", "--warmup", "4"]
    words += ["--baseline", "ddp.bucket_cap_mb=0.01", "--candidate", "ddp.bucket_cap_mb=25"]
    words += [SCRIPT, "--decode-ms", "0", "--work-ms", "0", "--layers", "400", "--width", "64"]
    found = command("validate", tmp_path / "out", *words).result
    tell(f"tiny buckets against large ones: {found['verdict']}, ratio {in_words(found['ratio'])}")
    assert found["verdict"] == "faster"
    exposed = next(part for part in found["parts"] if part["part"] == "exposed")
    assert exposed["candidate"] < 0.7 * exposed["baseline"]
