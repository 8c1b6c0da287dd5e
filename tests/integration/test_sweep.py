"""Sweeps with real launches: what was planted is found, where nothing was planted nothing is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from distprof.experiment.sweep.result import Sweep, read
from tests.conftest import Tell, skip_but_in_ci
from tools.screenshots import chromium, chromium_path

SCRIPTS = Path(__file__).parents[1] / "scripts"
_TIMEOUT_S = 7200
pytestmark = [pytest.mark.launch, pytest.mark.timing]


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended."""

    found: Sweep
    out: Path
    stdout: str
    launched: int


def sweep(folder: Path, *words: str) -> Swept:
    """`distprof sweep` on two ranks, typed in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "distprof", "sweep", "--nproc", "2", "--out", "out", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    launched = len(re.findall(r"^\w+, repeat \d+: ", done.stderr, re.MULTILINE))
    return Swept(read(folder / "out"), folder / "out", done.stdout, launched)


def in_a_line(found: Sweep) -> str:
    """What a sweep came to, for `benchmarks/soak/`."""
    ratios = (f"{point.name} {point.ratio.estimate:.2f}" for point in found.points if point.ratio is not None)
    return f"{found.verdict}, recommended {found.recommended}; ratios to the baseline: {', '.join(ratios)}"


SMALL = ["--repeats", "1", "--steps", "12", "--warmup", "6", "capture.active=4", "loader.num_workers=2"]
SMALL += [str(SCRIPTS / "hydra_planted.py"), "+decode_ms=80", "+work_ms=80", "+workers=${loader.num_workers}"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Decoding takes 80 ms and the step 80 ms: one after the other, or with two workers side by side."""
    return sweep(tmp_path_factory.mktemp("sweep"), *SMALL)


def test_a_script_that_is_a_hydra_app_is_swept(small: Swept) -> None:
    swept, found, folder = small, small.found, small.out.parent
    assert (swept.launched, found.verdict, found.world_size) == (4, "incomplete", 2)
    baseline, two = found.points
    assert baseline.step == pytest.approx(160, rel=0.2)
    assert two.ratio is not None
    assert two.ratio.estimate == pytest.approx(0.5, rel=0.2)
    assert two.training == "same"
    assert baseline.explanation is not None
    assert two.explanation is not None
    assert baseline.explanation.data_wait == pytest.approx(80, rel=0.2)
    assert (two.explanation.data_wait or 0) < 20
    for told in (baseline.explanation, two.explanation):
        assert told.exposed is not None
        assert (told.memory_bytes or 0) > 100 << 20
        assert (told.first_step or 0) > 80
        assert told.run is not None
        assert list((swept.out / told.run).glob("attempt0/*.pt.trace.json.gz"))
    logs = {path.stem: path.read_text() for path in (swept.out / "measured" / "logs").iterdir()}
    printed = {name: json.loads(re.findall(r"\{.*\}", text)[0]) for name, text in logs.items()}
    assert printed["baseline-0"]["argv"] == ["+decode_ms=80", "+work_ms=80"]
    assert printed["p1-0"]["argv"] == ["+decode_ms=80", "+work_ms=80", "+workers=2"]
    # The script's Hydra writes where the command was typed, as without us; in our Hydra's folder nobody else does.
    assert all(told["folder"].startswith(str(folder / "outputs")) for told in printed.values())
    of_ours = {path.name for path in (swept.out / "hydra").rglob("*") if path.is_file()}
    assert of_ours == {"multirun.yaml", "config.yaml", "hydra.yaml", "overrides.yaml"}
    again = sweep(folder, *SMALL)
    assert (again.launched, again.found) == (0, found)


def test_the_page_draws_its_pictures(small: Swept) -> None:
    path = chromium_path()
    if path is None:
        skip_but_in_ci("no Chromium is installed")
    troubles: list[str] = []
    with chromium(path) as browser:
        page = browser.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto((small.out / "sweep.html").as_uri())
        drawn = page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('.picture')].map(place => "
            "[place.id, place._fullData ? place._fullData.length : 0]))"
        )
    assert troubles == []
    assert set(drawn) == {"points-picture", "parts-picture"}  # one setting makes no heat map
    assert min(drawn.values()) > 0


@pytest.mark.soak
def test_a_loader_that_needs_workers_is_found_with_its_knee(tmp_path: Path, tell: Tell) -> None:
    """Decoding takes 80 ms and the step 60 ms: one worker is too few, two are enough; buckets do not matter."""
    words = [
        "--repeats",
        "3",
        "--steps",
        "14",
        "--warmup",
        "6",
        "loader.num_workers=0,1,2,4",
        "ddp.bucket_cap_mb=1,25,100",
    ]
    swept = sweep(tmp_path, *words, str(SCRIPTS / "planted.py"), "--decode-ms", "80", "--work-ms", "60")
    found = swept.found
    tell(f"a loader that needs workers, {swept.launched} launches: {in_a_line(found)}")
    assert (swept.launched, len(found.points), found.repeats) == (13 * 4, 13, 3)
    assert found.verdict == "faster"
    chosen = found.point(found.recommended)
    assert chosen is not None
    assert chosen.values["loader.num_workers"] == 2
    assert chosen.ratio is not None
    assert chosen.ratio.estimate == pytest.approx(60 / 140, rel=0.2)
    assert next(knee.value for knee in found.knees if knee.setting == "loader.num_workers") == 2
    best = {point.values.get("loader.num_workers") for point in found.points if point.may_be_best}
    assert {2, 4} <= best <= {1, 2, 4}  # on a machine that is busy one worker may come near
    assert max(found.because, key=lambda part: part.baseline - part.candidate).part == "data_wait"
    assert all(point.explanation is not None for point in found.points)


@pytest.mark.soak
def test_where_workers_do_not_matter_nothing_is_recommended(tmp_path: Path, tell: Tell) -> None:
    words = ["--repeats", "3", "--steps", "14", "--warmup", "6", "measure.explain=false", "loader.num_workers=0,1,2"]
    found = sweep(tmp_path, *words, str(SCRIPTS / "planted.py"), "--decode-ms", "0", "--work-ms", "60").found
    tell(f"workers that do not matter: {in_a_line(found)}")
    assert (found.verdict, found.recommended, found.knees) == ("cannot_be_told", None, [])


@pytest.mark.soak
def test_larger_buckets_win_over_the_scripts_tiny_ones(tmp_path: Path, tell: Tell) -> None:
    """400 layers of 17 kB, in buckets of 10 kB: one for each; of 25 MB few."""
    words = ["--repeats", "3", "--steps", "20", "--warmup", "6", "capture=zones", "ddp.bucket_cap_mb=1,25"]
    words += [str(SCRIPTS / "planted.py"), "--decode-ms", "0", "--work-ms", "0", "--layers", "400", "--width", "64"]
    found = sweep(tmp_path, *words, "--bucket-mb", "0.01").found
    tell(f"tiny buckets: {in_a_line(found)}")
    assert found.verdict == "faster"
    exposed = next(part for part in found.because if part.part == "exposed")
    assert exposed.candidate < 0.7 * exposed.baseline


@pytest.mark.soak
def test_jobs_of_another_launcher_measure_by_themselves(tmp_path: Path, tell: Tell) -> None:
    words = ["--repeats", "3", "--steps", "14", "--warmup", "6", "measure.explain=false", "loader.num_workers=2"]
    words += ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=30"]
    found = sweep(tmp_path, *words, str(SCRIPTS / "planted.py"), "--decode-ms", "80", "--work-ms", "80").found
    tell(f"submitit's local launcher: {in_a_line(found)}")
    assert (found.order, found.verdict, found.repeats) == ("apart", "faster", 3)
    assert found.points[1].ratio is not None
    assert found.points[1].ratio.estimate == pytest.approx(0.5, rel=0.2)
