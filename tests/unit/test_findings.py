"""What is said to do, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from distprof.analyze import findings as module
from distprof.analyze.findings import MOST_FINDINGS, findings
from distprof.analyze.offers import Judged, validate
from distprof.result import Cause, Finding, RankLoading, Result, Spread, Straggler
from tests.unit.jobs import always, job
from tests.unit.results import healthy, straggler
from tests.unit.tables import inputs, tables

LOADER = {"name": "DataLoader#0", "num_workers": 0, "pin_memory": False, "prefetch_factor": None}


def facts(ranks: int = 4, *, hosts: int = 1, cpus: int = 16, **loader: Any) -> dict[int, dict[str, Any]]:
    return {
        rank: {
            "host": f"host{rank * hosts // ranks}",
            "boot_id": "b",
            "cpus": cpus,
            "argv": ["train.py", "--lr", "0.1 0.2"],
            "loaders": [LOADER | loader],
        }
        for rank in range(ranks)
    }


def judged(result: Result) -> Judged:
    return Judged(
        result.steps,
        result.breakdown,
        result.communication,
        result.stragglers,
        result.data_loading,
        result.operators,
    )


def of(result: Result, **more: Any) -> list[Finding]:
    return findings(inputs(tables(ranks=range(4), **more)), judged(result))


def with_stragglers(*rows: Straggler) -> Result:
    base = healthy()
    return replace(base, stragglers=replace(base.stragglers, verdict="straggler", ranks=list(rows)))


def with_loading(*rows: tuple[int, float, float], stalls: bool = True) -> Result:
    """Rows are (rank, wait, share of the step)."""
    base = healthy()
    per_rank = [RankLoading(rank, wait, share, 0.0, num_workers=None, pin_memory=None) for rank, wait, share in rows]
    verdict = "stalls" if stalls else "keeps_up"
    return replace(base, data_loading=replace(base.data_loading, verdict=verdict, per_rank=per_rank))


SLOW = straggler().stragglers.ranks[0]


def test_a_healthy_run_has_none() -> None:
    assert of(healthy()) == []


def test_traces_are_viewed_as_traces() -> None:
    late = with_stragglers(replace(SLOW, cause="host"), replace(SLOW, cause="forward"))
    assert all("`distprof view RUN`" in found.next_check for found in of(late))
    annotated = replace(inputs(tables(ranks=range(4))), annotated=True)
    for found in findings(annotated, judged(late)):
        assert "`distprof view TRACES`" in found.next_check and "RUN" not in found.next_check


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
        "stragglers.saved_if_fixed": 45.0,
        "steps.steady.median": 101.3,
    }
    assert found.saves == 45.0, "what the replay says, and not the delay"


def test_a_straggler_that_comes_before_a_later_one() -> None:
    earlier = replace(SLOW, rank=1, cause="forward", delay=30.0, imposed_wait=0.2, saved_if_fixed=0.1)
    seen, hidden = (row.observation for row in of(with_stragglers(SLOW, earlier)))
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


@pytest.mark.parametrize(("saves", "severity"), [(10.0, "warning"), (20.0, "critical")])
def test_more_than_a_quarter_of_the_step_is_critical(saves: float, severity: str) -> None:
    (found,) = of(with_stragglers(replace(SLOW, saved_if_fixed=saves)))  # of 52.9 ms
    assert found.severity == severity


def test_the_costliest_comes_first() -> None:
    small = replace(SLOW, rank=0, cause="forward", delay=5.0, saved_if_fixed=None)
    large = replace(SLOW, rank=1, cause="gc", delay=30.0, saved_if_fixed=None)
    stalls = replace(with_stragglers(small, large), data_loading=with_loading((3, 12, 0.23)).data_loading)
    assert [row.id for row in of(stalls)] == ["straggler.gc", "data_loading.stalls", "straggler.forward"]


def test_at_most_a_handful_and_what_saves_an_unknown_amount_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = of(straggler())
    many = [replace(one, id=str(saves), saves=saves) for saves in (3.0, None, 9.0, 0.5, 7.0, 1.0, 2.0, 8.0)]
    monkeypatch.setattr(module, "OFFERS", (lambda inputs, judged: many[:4], lambda inputs, judged: many[4:]))
    found = of(healthy())
    assert len(found) == MOST_FINDINGS == 7
    assert [row.saves for row in found] == [9.0, 8.0, 7.0, 3.0, 2.0, 1.0, 0.5]
    monkeypatch.setattr(module, "OFFERS", (lambda inputs, judged: many[:3],))
    assert [row.saves for row in of(healthy())] == [9.0, 3.0, None]


def test_of_figures_that_were_not_observed_nothing_is_said() -> None:
    base = with_stragglers(replace(SLOW, imposed_wait=None, saved_if_fixed=None))
    (found,) = of(replace(base, steps=replace(base.steps, steady=Spread(0, None, None, None))))
    assert set(found.evidence) == {"stragglers.delay", "stragglers.last_arrivals"}
    assert (found.severity, found.saves) == ("warning", 48.2)


def test_all_ranks_that_stall_are_listed_the_worst_first() -> None:
    (found,) = of(with_loading((0, 1.0, 0.02), (2, 9.0, 0.17), (3, 12.0, 0.23)))
    assert (found.id, found.ranks, found.severity) == ("data_loading.stalls", [3, 2], "warning")
    assert "rank 3 waits for data 12.0 ms in each step, 23% of it (1 others stall, too)" in found.observation
    assert found.saves == pytest.approx(0.23 * 52.9), "start-up of workers included"
    assert of(with_loading((3, 12.0, 0.23), stalls=False)) == []


def test_the_longest_waits_are_the_steps_to_look_at() -> None:
    late = {3: 40.0, 6: 80.0, 8: 20.0}
    of_job = job(lambda rank, step: {"data_loading": 30 + late.get(step, 0)}, facts=facts())
    prepared = inputs(of_job)
    (found,) = findings(prepared, judged(with_loading((1, 40.0, 0.5))))
    assert {3, 6, 8} <= set(found.steps)
    assert len(found.steps) == 5


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"num_workers": 0}, "loader.num_workers=4"),
        ({"num_workers": 2}, "loader.num_workers=4"),
        ({"num_workers": 0, "cpus": 8}, "loader.num_workers=2"),
        ({"num_workers": 0, "cpus": 2}, "loader.num_workers=1"),
        ({"num_workers": 4, "cpus": 16}, "loader.prefetch_factor=4"),
        ({"num_workers": 8, "prefetch_factor": 4}, "loader.prefetch_factor=8"),
    ],
)
def test_what_to_try_follows_from_the_loaders_settings(settings: dict[str, Any], setting: str) -> None:
    of_job = job(always({rank: {"data_loading": 30} for rank in range(4)}), facts=facts(**settings))
    (found,) = findings(inputs(of_job), judged(with_loading((1, 40.0, 0.5))))
    assert f"--candidate {setting} " in found.next_check
    if settings["num_workers"]:
        assert f"its {settings['num_workers']} workers" in found.hypothesis


def test_workers_that_start_anew_in_each_epoch_are_another_finding() -> None:
    of_job = job(always({1: {"data_loading": 30}}), facts=facts(num_workers=2, persistent_workers=False))
    (found,) = findings(inputs(of_job), judged(with_loading((1, 2.0, 0.5))))
    assert found.id == "data_loading.starting"
    assert "loader.persistent_workers=true" in found.next_check
    assert "starts data workers and waits for them 26.4 ms in each step, 50% of it" in found.observation
    kept = job(always({1: {"data_loading": 30}}), facts=facts(num_workers=2, persistent_workers=True))
    (found,) = findings(inputs(kept), judged(with_loading((1, 2.0, 0.5))))
    assert "persistent_workers" not in found.next_check


def test_without_captured_settings_the_check_is_a_command_still() -> None:
    (found,) = of(with_loading((3, 12.0, 0.23)))
    assert found.next_check.endswith("--candidate loader.num_workers=4 SCRIPT`")


def test_the_command_runs_the_script_as_it_was_run() -> None:
    one, two = (tables(ranks=range(4), facts=facts(hosts=hosts)) for hosts in (1, 2))
    assert validate(one, "a=1", "b=2") == (
        "`distprof validate --nproc-per-node 4 --baseline '' --candidate 'a=1 b=2' train.py --lr '0.1 0.2'`"
    )
    assert validate(two, "a=1").startswith("`distprof validate --nnodes 2 --nproc-per-node 2 ")


@pytest.mark.parametrize(("saves", "severity"), [(None, "info"), (2.0, "info"), (4.0, "warning"), (14.0, "critical")])
def test_severity_is_the_share_of_the_step(saves: float | None, severity: str) -> None:
    assert judged(healthy()).severity(saves or 0.0) == severity


def test_time_in_the_window_counts_as_far_as_steps_are_as_long_outside() -> None:
    base = healthy()  # 53.11 ms inside and 52.9 ms outside
    assert judged(base).outside(10.0) == pytest.approx(10 * 52.9 / 53.11)
    slower = replace(base, breakdown=[replace(row, step=2 * 52.9) for row in base.breakdown])
    assert judged(slower).outside(10.0) == pytest.approx(5)
    assert judged(replace(base, breakdown=[])).outside(10.0) == 10
