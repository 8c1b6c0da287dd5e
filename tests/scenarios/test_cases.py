"""The handed training scripts, as their READMEs say."""

from __future__ import annotations

import pytest

from distprof.result import Result
from tests.scenarios.conftest import SAMPLE_MS, SLEEP_MS, Scenario

pytestmark = [pytest.mark.launch, pytest.mark.timing]

SAMPLES_MS = 8 * SAMPLE_MS  # what one batch of the slow dataset sleeps at least


@pytest.mark.parametrize(("planted", "rank"), [("rank 1", 1), ("rank 0", 0)])
def test_the_slow_rank_is_named_and_flips(straggler_case: dict[str, Result], planted: str, rank: int) -> None:
    result = straggler_case[planted]
    (row,) = result.stragglers.ranks
    assert (row.rank, row.cause) == (rank, "forward")
    assert row.delay == pytest.approx(SLEEP_MS, rel=0.2)
    waits = {row.rank: row.comm_wait for row in result.breakdown}
    assert waits[1 - rank] == pytest.approx(SLEEP_MS, rel=0.25)
    assert waits[rank] is not None
    assert waits[rank] < 0.2 * SLEEP_MS
    medians = [row.median for row in result.steps.per_rank]
    assert medians[0] == pytest.approx(medians[1], rel=0.1)


def test_nobody_is_named_where_nobody_sleeps(straggler_case: dict[str, Result]) -> None:
    assert straggler_case["healthy"].stragglers.ranks == []


def test_data_stall_without_workers(data_stall_case: dict[str, Scenario]) -> None:
    result = data_stall_case["no workers"].result
    (row,) = result.stragglers.ranks
    assert (row.rank, row.cause) == (1, "data_loading")
    assert row.delay == pytest.approx(SAMPLES_MS, rel=0.25)
    assert result.data_loading.verdict == "stalls"
    waits = {row.rank: row.wait for row in result.data_loading.per_rank}
    assert waits[1] == pytest.approx(SAMPLES_MS, rel=0.25)
    assert waits[0] is not None
    assert waits[0] < 0.25 * SAMPLES_MS


def test_workers_hide_a_part_of_the_stall(data_stall_case: dict[str, Scenario]) -> None:
    without = {row.rank: row.wait for row in data_stall_case["no workers"].result.data_loading.per_rank}
    forked = {row.rank: row.wait for row in data_stall_case["forked"].result.data_loading.per_rank}
    assert forked[1] is not None
    assert without[1] is not None
    assert forked[1] < 0.9 * without[1]


@pytest.mark.parametrize("loading", ["no workers", "forked", "spawned"])
def test_only_ranks_leave_recordings(data_stall_case: dict[str, Scenario], loading: str) -> None:
    scenario = data_stall_case[loading]
    zones = [path.name for path in (scenario.launched.run_dir / "attempt0").glob("*.zones.jsonl")]
    assert sorted(zones) == ["rank00000.zones.jsonl", "rank00001.zones.jsonl"]
    # 24 batches in 2 epochs: the loader's __next__ that only ends an epoch is not a step.
    assert all(row.count + 1 <= 24 for row in scenario.result.steps.per_rank)
    assert scenario.result.ranks[0].status == scenario.result.ranks[1].status == "complete"
