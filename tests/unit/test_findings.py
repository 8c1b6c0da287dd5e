"""What is said to do, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from distprof.analyze.findings import findings
from distprof.result import Cause, Finding, RankLoading, Result, Spread, Straggler
from tests.unit.results import healthy, straggler


def of(result: Result) -> list[Finding]:
    return findings(result.steps, result.stragglers, result.data_loading)


def with_stragglers(*rows: Straggler) -> Result:
    base = healthy()
    return replace(base, stragglers=replace(base.stragglers, verdict="straggler", ranks=list(rows)))


SLOW = straggler().stragglers.ranks[0]


def test_a_healthy_run_has_none() -> None:
    assert of(healthy()) == []


def test_a_straggler_with_the_figures_it_stands_on() -> None:
    (found,) = of(straggler())
    assert found.id == "straggler.data_loading"
    assert (found.ranks, found.steps) == ([2], [1, 2, 3, 4, 5])
    assert "rank 2" in found.observation
    assert "48.2 ms" in found.observation
    assert "data loading (DataLoader#0)" in found.observation
    assert found.evidence == {
        "stragglers.delay": 48.2,
        "stragglers.imposed_wait": 46.9,
        "stragglers.last_arrivals": 36,
        "steps.steady.median": 101.3,
    }


def test_a_straggler_that_comes_before_a_later_one() -> None:
    seen, hidden = (of(with_stragglers(replace(SLOW, imposed_wait=ms)))[0].observation for ms in (46.9, 0.2))
    assert seen.endswith("and the others wait for it")
    assert hidden.endswith("but comes before a rank that is later still")


def test_the_stall_of_a_blamed_rank_is_not_told_twice() -> None:
    assert [found.id for found in of(straggler())] == ["straggler.data_loading"]


@pytest.mark.parametrize("cause", get_args(Cause))
def test_every_cause_has_words(cause: Cause) -> None:
    (found,) = of(with_stragglers(replace(SLOW, cause=cause, zone=None)))
    assert found.id == f"straggler.{cause}"
    assert found.hypothesis
    assert found.next_check
    assert "(" not in found.observation


@pytest.mark.parametrize(("delay", "severity"), [(10.0, "warning"), (20.0, "critical")])
def test_more_than_a_quarter_of_the_step_is_critical(delay: float, severity: str) -> None:
    (found,) = of(with_stragglers(replace(SLOW, delay=delay)))  # of 52.9 ms
    assert found.severity == severity


def test_the_costliest_comes_first() -> None:
    small, large = replace(SLOW, rank=0, cause="forward", delay=5.0), replace(SLOW, rank=1, cause="gc", delay=30.0)
    stalls = replace(
        healthy().data_loading,
        verdict="stalls",
        per_rank=[
            RankLoading(rank=3, wait=12.0, share_of_step=0.23, startup=0.0, num_workers=2, pin_memory=False),
            RankLoading(rank=2, wait=9.0, share_of_step=0.17, startup=0.0, num_workers=2, pin_memory=False),
        ],
    )
    found = of(replace(with_stragglers(small, large), data_loading=stalls))
    assert [row.id for row in found] == ["straggler.gc", "data_loading.stalls", "straggler.forward"]
    stall = found[1]
    assert (stall.ranks, stall.severity) == ([3], "warning"), "the worst one"
    assert "12.0 ms" in stall.observation
    assert "23%" in stall.observation
    assert "now 2" in stall.next_check


def test_of_figures_that_were_not_observed_nothing_is_said() -> None:
    base = with_stragglers(replace(SLOW, imposed_wait=None))
    (found,) = of(replace(base, steps=replace(base.steps, steady=Spread(0, None, None, None))))
    assert set(found.evidence) == {"stragglers.delay", "stragglers.last_arrivals"}
    assert found.severity == "warning"
