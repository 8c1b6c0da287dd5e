"""Data workers that are killed one after another: the training does what it would, and the report says what it saw."""

from __future__ import annotations

from pathlib import Path

import pytest

import distprof
from distprof.pipeline import build
from tests.conftest import Tell
from tests.launches import ROOT, Launched, launch, torchrun

pytestmark = [pytest.mark.soak, pytest.mark.launch]

SCRIPT = str(ROOT / "tests" / "scripts" / "dying_workers.py")
RANK = 1
STEPS = 30
DEATHS = 6  # each fifth batch


def printed(launched: Launched) -> list[str]:
    return sorted(map(str, launched.printed()))


@pytest.mark.parametrize("restarts", [True, False], ids=["restarted", "not restarted"])
def test_workers_die(restarts: bool, *, tmp_path: Path, tell: Tell) -> None:
    arguments = ("--standalone", "--nproc-per-node", "2", SCRIPT, str(RANK), *(["--restarts"] if restarts else []))
    plain = torchrun(*arguments)
    ours = launch(tmp_path / "run", *arguments)
    assert ours.returncode == plain.returncode == (0 if restarts else 1)
    # The other rank is ended by the launcher, wherever it is.
    of_all = [[row for row in map(str, one.printed()) if restarts or f"'rank': {RANK}" in row] for one in (plain, ours)]
    assert sorted(of_all[0]) == sorted(of_all[1]), ours.stderr
    assert "distprof: rank" not in ours.stderr
    run = distprof.load(tmp_path / "run")
    result = build(run)
    row = result.ranks[RANK]
    steps = run.tables.steps.filter(rank=RANK).height
    loading = next(each for each in result.data_loading.per_rank if each.rank == RANK)
    other = next(each for each in result.data_loading.per_rank if each.rank != RANK)
    tell(
        f"workers of rank {RANK} die, {'and the script goes on' if restarts else 'and the script does not catch it'}: "
        f"exit {ours.returncode} as under torchrun; {steps} steps; {row.status}: {row.reason}; loaders started for "
        f"{loading.startup:.0f} ms, on the other rank {other.startup:.0f}; {result.stragglers.why}"
    )
    assert run.tables.facts[RANK]["problems"] == []
    assert row.status == "complete"
    if restarts:
        assert row.reason is None
        assert steps == STEPS
        starts = run.tables.zones.filter(rank=RANK, kind="loader_start").height
        assert starts == DEATHS + 1
        assert loading.startup > 2 * other.startup  # type: ignore[operator]
    else:
        assert steps == 4
        assert row.reason is not None
        assert "DataLoader worker" in row.reason
