"""What is said of stragglers that the others do not wait for, or of which that is not known."""

from __future__ import annotations

from dataclasses import replace

from distprof.analyze.findings import findings
from distprof.analyze.stragglers import stragglers
from distprof.report.words import evidence, verdict
from distprof.trace.tables import Tables
from tests.unit import results
from tests.unit.jobs import always, job
from tests.unit.tables import inputs, judged

SLOW = results.straggler().stragglers.ranks[0]


def headlines(of: Tables) -> list[str]:
    return verdict(replace(results.healthy(), stragglers=stragglers(inputs(of))[0]))


def observations(of: Tables) -> list[str]:
    """Of the findings about stragglers, by the order of their ranks."""
    told = findings(inputs(of), judged(inputs(of)))
    rows = sorted((row for row in told if row.id.startswith("straggler.")), key=lambda row: row.ranks)
    return [row.observation for row in rows]


def test_who_is_hidden_behind_a_later_rank_holds_nobody_up() -> None:
    both = job(always({1: {"forward": 30}, 2: {"forward": 60}}))
    later, hidden = headlines(both)
    assert later.startswith("rank 2 holds the others up: forward (Net#0), +60.0 ms in each step")
    assert hidden.startswith(
        "rank 1 is late as well, but comes before rank 2, which is later still: forward (Net#0), +30.0 ms in each step"
    )
    assert hidden.endswith("; the others waited 0.00 ms for it")
    first, second = observations(both)
    assert first.endswith("mostly in forward (Net#0), but comes before a rank that is later still")
    assert second.endswith("mostly in forward (Net#0), and the others wait for it")


def test_nobody_is_hidden_behind_a_rank_that_does_not_exist() -> None:
    alone = replace(SLOW, imposed_wait=0.2)
    found = replace(results.healthy().stragglers, verdict="straggler", ranks=[alone])
    assert verdict(replace(results.healthy(), stragglers=found))[0].startswith(
        "rank 2 takes longer than its peers: data loading (DataLoader#0), +48.2 ms in each step"
    )
    sections = replace(judged(inputs(job())), stragglers=found)
    (row,) = (one for one in findings(inputs(job()), sections) if one.ranks == [2])
    assert row.observation.endswith("but the others hardly wait for it")


def test_what_was_not_observed_for_a_missing_rank_is_not_told() -> None:
    of = job(always({3: {"optimizer": 20}}), missing=[1])
    (row,) = stragglers(inputs(of))[0].ranks
    assert (row.imposed_wait, row.of_collectives) == (None, 0)
    (headline,) = headlines(of)
    assert headline.startswith("rank 3 takes longer than its peers: optimizer (SGD#0), +20.0 ms in each step")
    assert headline.endswith("; how long the others waited for it was not observed")
    assert evidence(row) == "All ranks read one clock."
    (finding,) = (one for one in findings(inputs(of), judged(inputs(of))) if one.id == "straggler.optimizer")
    assert finding.observation.endswith("and how long the others wait for it was not observed")
    assert set(finding.evidence) == {"stragglers.delay", "steps.steady.median"}


def test_how_often_it_was_last_is_told_where_ranks_met() -> None:
    assert evidence(SLOW).startswith("Rank 2 was the last to arrive at 36 of 38 synchronisations")
