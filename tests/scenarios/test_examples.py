"""The examples' planted problems are named, with what the script says it really slept; their healthy twins are not."""

from __future__ import annotations

import statistics

import pytest

from tests.scenarios.conftest import Scenario

pytestmark = [pytest.mark.launch, pytest.mark.timing]


def slept(scenario: Scenario, rank: int) -> float:
    """Median sleep per step, in ms, over the steps that the analysis used."""
    everything = scenario.launched.slept_ms(rank)
    (row,) = scenario.result.stragglers.ranks
    return statistics.median(everything[step] for step in row.steps)


def test_slow_loader_is_named_with_its_amount(slow_loader: Scenario) -> None:
    result = slow_loader.result
    assert result.stragglers.verdict == "straggler"
    (row,) = result.stragglers.ranks
    assert (row.rank, row.cause, row.zone, row.pattern) == (2, "data_loading", "DataLoader#0", "persistent")
    assert row.delay == pytest.approx(slept(slow_loader, 2), rel=0.2)
    assert row.imposed_wait == pytest.approx(row.delay, rel=0.2)
    assert row.last_arrivals >= 0.9 * row.of_collectives > 0
    assert result.findings[0].id == "straggler.data_loading"


def test_what_the_others_did_meanwhile(slow_loader: Scenario) -> None:
    delay = slow_loader.result.stragglers.ranks[0].delay
    for row in slow_loader.result.breakdown:
        assert row.basis == "window"
        assert row.data_wait is not None
        assert row.comm_wait is not None
        if row.rank == 2:
            assert row.data_wait > 0.8 * delay
            assert row.comm_wait < 0.2 * delay
        else:
            assert row.comm_wait > 0.7 * delay
            assert row.data_wait < 0.2 * delay
    assert slow_loader.result.data_loading.verdict == "stalls"


def test_slow_backward_is_named_though_its_backward_is_the_shortest(slow_backward: Scenario) -> None:
    (row,) = slow_backward.result.stragglers.ranks
    assert (row.rank, row.cause) == (1, "backward")
    assert row.delay == pytest.approx(slept(slow_backward, 1), rel=0.2)
    assert slow_backward.result.data_loading.verdict == "undecided"
    # What other tools look at shows nothing: steps take equally long, and the culprit communicates the least.
    medians = {steps.rank: steps.median for steps in slow_backward.result.steps.per_rank}
    assert medians[1] == pytest.approx(medians[0], rel=0.1)
    waits = {rank.rank: rank.wait for rank in slow_backward.result.communication.per_rank}
    assert waits[1] == min(waits.values())  # type: ignore[type-var]


def test_uneven_batches_are_uneven_work_and_no_slow_rank(uneven_batches: Scenario) -> None:
    (row,) = uneven_batches.result.stragglers.ranks
    assert (row.rank, row.cause, row.pattern) == (3, "uneven_work", "persistent")
    (finding,) = (finding for finding in uneven_batches.result.findings if finding.id.startswith("straggler"))
    assert (finding.id, finding.ranks) == ("straggler.uneven_work", [3])


def test_small_buckets_are_told_and_nobody_is_named(small_buckets: Scenario) -> None:
    result = small_buckets.result
    assert result.stragglers.ranks == []
    (finding,) = (finding for finding in result.findings if finding.id.startswith(("buckets", "communication")))
    assert finding.id == "buckets.too_small"
    assert "distprof validate" in finding.next_check and "ddp.bucket_cap_mb=" in finding.next_check
    assert len(result.communication.buckets) > 30


@pytest.mark.parametrize("twin", ["healthy_loader", "healthy"])
def test_healthy_twins_name_nobody(twin: str, request: pytest.FixtureRequest) -> None:
    scenario: Scenario = request.getfixturevalue(twin)
    assert scenario.result.stragglers.verdict == "none", scenario.result.stragglers
    assert scenario.result.stragglers.ranks == []
    assert [finding.id for finding in scenario.result.findings if finding.id.startswith("straggler")] == []


@pytest.mark.parametrize("name", ["slow_loader", "healthy_loader", "slow_backward"])
def test_parts_of_the_step_add_up_to_it(name: str, request: pytest.FixtureRequest) -> None:
    scenario: Scenario = request.getfixturevalue(name)
    assert len(scenario.result.breakdown) == 4
    for row in scenario.result.breakdown:
        parts = (row.data_wait, row.compute, row.comm_wait, row.comm_transfer, row.other)
        assert None not in parts
        assert sum(part or 0.0 for part in parts) == pytest.approx(row.step, abs=1e-6)
        assert all(part >= 0.0 for part in parts if part is not None)


@pytest.mark.parametrize("name", ["slow_loader", "slow_backward"])
def test_every_bucket_is_a_zone_with_its_bytes(name: str, request: pytest.FixtureRequest) -> None:
    scenario: Scenario = request.getfixturevalue(name)
    buckets = scenario.result.communication.buckets
    (ddp,) = scenario.result.conditions.ddp or []
    assert [bucket.bytes for bucket in buckets] == ddp["bucket_bytes"]
    assert [bucket.bucket for bucket in buckets] == list(range(len(buckets)))
    assert len(buckets) >= 2
    steps = scenario.result.stragglers.steps_used
    for bucket in buckets:
        assert bucket.count == steps  # each step once, though four ranks recorded it
        assert bucket.transfer is not None
        assert bucket.transfer > 0
        assert bucket.params


def test_the_slow_rank_waits_least(slow_loader: Scenario) -> None:
    waits = dict.fromkeys(range(4), 0.0)
    for row in slow_loader.result.sync_waits or []:
        waits[row.rank] += row.wait or 0.0
    culprit = slow_loader.result.stragglers.ranks[0].rank
    others = [wait for rank, wait in waits.items() if rank != culprit]
    assert waits[culprit] < 0.3 * min(others)


def test_not_observed_is_never_zero(slow_loader: Scenario) -> None:
    result = slow_loader.result
    assert result.device_use is None
    assert all(row.device_idle is None for row in result.sync_waits or [])
    assert result.kernels is None
    assert result.operators and all(row.self is not None for row in result.operators)
    assert {(row.rank, row.device) for row in result.memory or []} == {(rank, "host") for rank in range(4)}
    assert all(row.h2d is None and row.idle is None for row in result.breakdown)
    listed = {row.what for row in result.not_observed}
    assert {"sync_waits.device_idle", "device_use", "kernels", "memory", "breakdown.h2d"} <= listed
    assert {row.rank: row.status for row in result.ranks} == dict.fromkeys(range(4), "complete")
    assert result.clock.verdict == "same_host"
