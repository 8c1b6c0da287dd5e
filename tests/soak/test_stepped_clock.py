"""A clock that is stepped by an hour while the training runs: durations stay what they are, and it is said."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.pipeline import build
from distprof.report.timeline import write_timeline
from tests.conftest import Tell
from tests.launches import ROOT, launch
from tests.machine import libfaketime

pytestmark = [pytest.mark.soak, pytest.mark.launch]

SCRIPTS = ROOT / "tests" / "scripts"
STEPS = 120
PAUSE_MS = 40.0
AT_STEP = 60
# Before the step, at it, and after it.
WINDOWS = {
    "before": "wait=10,warmup=1,active=10",
    "over": "wait=55,warmup=1,active=10",
    "after": "wait=100,warmup=1,active=8",
}


STEPPED = [
    ("+1h", "1", "before"),
    ("-1h", "1", "after"),
    ("+1h", "0", "over"),
    ("+1h", "0 1", "after"),
    ("-1h", "0 1", "over"),
]


@pytest.mark.parametrize(("by", "stepped", "window"), STEPPED)
def test_an_hour(by: str, stepped: str, window: str, *, tmp_path: Path, tell: Tell) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    launched = launch(
        tmp_path / "run",
        *("--standalone", "--nproc-per-node", "2", "--schedule", WINDOWS[window]),
        *("--no-python", str(SCRIPTS / "stepped_clock.sh"), str(SCRIPTS / "steps.py")),
        *("--steps", str(STEPS), "--pause-ms", str(PAUSE_MS), "--write", f"{AT_STEP}:{offset}:{by}"),
        env={"PYTHON": sys.executable, "LIBFAKETIME": libfaketime(), "STEPPED": stepped, "STEP_FILE": str(offset)},
    )
    assert launched.returncode == 0, launched.stderr
    assert "Traceback" not in launched.stderr
    trained_s = max(float(str(row["trained_s"])) for row in launched.printed())
    run = distprof.load(tmp_path / "run")
    result = build(run)
    write_timeline(run, result, tmp_path / "timeline.json.gz")
    steps = run.tables.steps.with_columns(ms=(pl.col("end") - pl.col("start")) / 1e6)
    noted = sorted(note.rank for note in run.notes if "the clock was set by" in note.text and note.rank is not None)
    tell(
        f"the clock of ranks {stepped} stepped by {by}, a window {window} it: clocks {result.clock.verdict}; steps of "
        f"{steps['ms'].min():.0f} to {steps.filter(pl.col('step') > 0)['ms'].max():.0f} ms, median "
        f"{result.steps.steady.median:.1f}; wall {result.run.wall_s:.1f} s; said of ranks {noted}"
    )
    assert noted == [int(rank) for rank in stepped.split()]
    assert len(steps) == 2 * STEPS
    assert steps["ms"].min() >= PAUSE_MS  # type: ignore[operator]
    assert steps["ms"].max() < 1e3 * trained_s  # type: ignore[operator]
    for table in (run.tables.zones, run.tables.events, run.tables.windows):
        lengths = table["end"] - table["start"]
        assert lengths.is_empty() or 0 <= lengths.min() <= lengths.max() < 2e9 * trained_s  # type: ignore[operator]
    assert 0.9 * trained_s < result.run.wall_s < trained_s + 30  # type: ignore[operator]
    assert result.clock.verdict in ("same_host", "aligned")
    assert result.stragglers.verdict != "straggler"
    seen = set(run.tables.events["rank"])
    assert seen == {0, 1} - ({int(rank) for rank in stepped.split()} if window == "over" else set())
