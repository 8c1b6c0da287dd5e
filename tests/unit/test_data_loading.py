"""Whether the input pipeline keeps up; times are ms."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.analyze.data_loading import data_loading
from distprof.result import DataLoading, NotObserved, RankLoading
from tests.unit.jobs import always, job
from tests.unit.tables import Step, Zone, inputs, tables


def judge(zones: list[Zone], *, steps: int = 3, **more: Any) -> tuple[DataLoading, list[NotObserved]]:
    """One rank whose steps 1, 2, ... take 100 ms each from 100 on; before that there is step 0."""
    rows = [Step(0, step, 100 * step, 100 * step + 100, "first" if step == 0 else None) for step in range(steps + 1)]
    return data_loading(inputs(tables(ranks=[0], zones=zones, steps=rows, **more)))


def only(zones: list[Zone], **more: Any) -> RankLoading:
    (row,) = judge(zones, **more)[0].per_rank
    return row


def test_time_in_next_per_step() -> None:
    zones = [Zone(0, "data_loading", 100 * step, 100 * step + 10 * step, "DataLoader#0") for step in (1, 2, 3)]
    row = only(zones)
    assert row.wait == 20
    assert row.share_of_step == pytest.approx(0.2)


@pytest.mark.parametrize(("ms", "verdict"), [(10, "keeps_up"), (11, "stalls")])
def test_a_rank_stalls_if_data_takes_more_than_a_tenth_of_its_step(ms: float, verdict: str) -> None:
    zones = [Zone(0, "data_loading", 100 * step, 100 * step + ms) for step in (1, 2, 3)]
    assert judge(zones)[0].verdict == verdict


def test_one_rank_that_stalls_is_enough() -> None:
    section, _ = data_loading(inputs(job(always({2: {"data_loading": 60}}))))
    assert section.verdict == "stalls"
    assert [row.wait for row in section.per_rank] == [10, 10, 70, 10]
    assert [row.share_of_step for row in section.per_rank] == pytest.approx([10 / 110] * 2 + [70 / 110, 10 / 110])


def test_what_runs_inside_next_is_a_part_of_it() -> None:
    zones = [Zone(0, "data_loading", 110, 170), Zone(0, "zone", 120, 150, "decode"), Zone(0, "gc", 155, 160)]
    assert only(zones).wait == 20


def test_the_end_of_an_epoch_counts_and_starting_workers_do_not() -> None:
    zones = [
        Zone(0, "data_loading", 100, 106),
        Zone(0, "loader_end", 200, 203),
        Zone(0, "loader_start", 203, 223),
        Zone(0, "loader_first", 223, 263),
    ]
    row = only(zones)
    assert row.wait == 3
    assert row.startup == 20 + 40 + 6, "and the first batch, though no workers started for it"


def test_start_up_is_the_whole_runs() -> None:
    zones = [
        Zone(0, "loader_start", 0, 30, "DataLoader#0"),
        Zone(0, "loader_first", 30, 50, "DataLoader#0"),
        Zone(0, "data_loading", 110, 115, "DataLoader#0"),
        Zone(0, "loader_start", 120, 121, "DataLoader#1"),
        Zone(0, "data_loading", 130, 132, "DataLoader#1"),
        Zone(0, "data_loading", 140, 142, "DataLoader#1"),
    ]
    assert only(zones).startup == 30 + 20 + 1 + 2


def test_settings_are_those_of_the_loader_that_was_waited_for_longest() -> None:
    loaders = [
        {"name": "DataLoader#0", "num_workers": 4, "pin_memory": True},
        {"name": "DataLoader#1", "num_workers": 0, "pin_memory": False},
    ]
    zones = [
        Zone(0, "loader_first", 0, 90, "DataLoader#0"),
        Zone(0, "data_loading", 100, 101, "DataLoader#0"),
        Zone(0, "data_loading", 200, 205, "DataLoader#1"),
    ]
    row = only(zones, facts={0: {"host": "h", "boot_id": "b", "loaders": loaders}})
    assert (row.num_workers, row.pin_memory) == (0, False)
    section, missing = judge(zones)
    assert (section.per_rank[0].num_workers, section.per_rank[0].pin_memory) == (None, None)
    assert [what.what for what in missing] == [
        f"data_loading.per_rank.{name}" for name in ("num_workers", "pin_memory")
    ]


def test_without_a_loader_nothing_is_said() -> None:
    section, missing = judge([Zone(0, "forward", 100, 150), Zone(0, "data_loading", 100, 150, thread=1)])
    assert section.verdict == "undecided"
    assert section.per_rank == [RankLoading(0, None, None, None, None, None)]
    assert [(row.what, row.ranks) for row in missing] == [("data_loading.per_rank", [0])]


def test_a_loader_out_of_step_is_not_waited_for_in_steps() -> None:
    row = only([Zone(0, "data_loading", 10, 90)])
    assert (row.wait, row.startup) == (0, 80)


@pytest.mark.parametrize(("steps", "verdict"), [(2, "undecided"), (3, "stalls")])
def test_few_steps_decide_nothing(steps: int, verdict: str) -> None:
    zones = [Zone(0, "data_loading", 100 * step, 100 * step + 50) for step in range(1, steps + 1)]
    assert judge(zones, steps=steps)[0].verdict == verdict


def test_no_steady_step() -> None:
    section, missing = judge([Zone(0, "data_loading", 0, 50)], steps=0)
    (row,) = section.per_rank
    assert (section.verdict, section.steps_used, row.wait, row.share_of_step) == ("undecided", 0, None, None)
    assert row.startup == 50
    assert "data_loading.per_rank.wait" in {what.what for what in missing}
