"""What would have been: recordings played again; times are ms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from distprof.analyze.evidence import Evidence, of_run
from distprof.analyze.replay import Change, Replayed, replay
from tests.unit.jobs import always, job
from tests.unit.tables import inputs
from tests.worlds import Delay, World, simulate


def played(evidence: Evidence, *changes: Change) -> Replayed:
    return replay(evidence.tables, evidence.own, evidence.waits, evidence.matched, changes)


WORLDS = {
    "plain": World(ranks=3, steps=6, windows=()),
    "a delay": World(ranks=4, steps=6, windows=(), delays=[Delay(rank=2, kind="forward", ms=20)]),
    "buffers": World(ranks=5, steps=6, windows=(), broadcast_buffers=True, jitter=0.3),
    "windows": World(ranks=2, steps=9, windows=[(3, 5)]),
    "two micro steps": World(ranks=2, steps=5, windows=(), micro_steps=2, unused_parameters=True),
}


@pytest.mark.parametrize("name", WORLDS)
def test_without_a_change_it_is_the_recording(name: str) -> None:
    evidence = of_run(inputs(simulate(WORLDS[name])))
    found = played(evidence, {})
    assert found.saved == pytest.approx([0])
    base = min(pieces.span[0] for pieces in evidence.own.pieces)
    assert len(found.calls) > 30
    assert np.abs(found.arrived[:, 0] - (found.calls["arrived"].to_numpy() - base)).max() < 1  # ns
    assert (found.arrived[:, 0] == found.arrived[:, 1]).all()


def kept(evidence: Evidence, rank: int, share: float, kind: str) -> Change:
    """A share of what a rank did in zones of this kind."""
    pieces = evidence.own.pieces[rank]
    changed = np.array([zone == kind for zone, _ in evidence.own.zones])[pieces.zone] & (pieces.step >= 0)
    return {rank: np.where(changed, share, 1.0)}


def test_what_others_need_as_well_is_saved_once() -> None:
    """Forward takes 20 ms, and on ranks 1 and 2 three and two times as long; there are nine steps."""
    evidence = of_run(inputs(job(always({1: {"forward": 40}, 2: {"forward": 20}}))))
    first, second = kept(evidence, 1, 1 / 3, "forward"), kept(evidence, 2, 1 / 2, "forward")
    found = played(evidence, first, second, {**first, **second}, kept(evidence, 0, 0.0, "forward"))
    assert found.saved / 9e6 == pytest.approx([20, 0, 40, 0])


def test_no_clock_is_trusted_more_than_the_order_of_things() -> None:
    """Rank 1's clock is 8 ms ahead, so that it seems to arrive after it was released."""
    of = job(always({0: {"forward": 3}}), steps=4)
    moved = of.collectives.with_columns(pl.col("created") + 8_000_000 * (pl.col("rank") == 1).cast(pl.Int64))
    evidence = of_run(inputs(replace(of, collectives=moved)))
    assert np.isfinite(played(evidence, kept(evidence, 0, 0.5, "forward")).saved).all()
