"""Whether the ranks share a clock."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.clock.align import align

HERE: dict[str, Any] = {"host": "a", "boot_id": "1"}


def test_one_boot_of_one_host_is_one_clock() -> None:
    clock, missing = align({1: HERE, 0: HERE, 2: HERE})
    assert (clock.verdict, clock.reference_rank) == ("same_host", 0)
    assert [(row.rank, row.offset_us, row.drift_ppm) for row in clock.ranks] == [(rank, 0.0, 0.0) for rank in range(3)]
    assert all(row.bound_us is row.error_us is None for row in clock.ranks)
    assert {row.what for row in missing} == {"clock.ranks.bound_us", "clock.ranks.error_us"}


@pytest.mark.parametrize(
    "other",
    [
        {"host": "b", "boot_id": "1"},
        {"host": "a", "boot_id": "2"},  # it was booted again, or another machine has the same name
        {"host": "a", "boot_id": None},
        {"host": None, "boot_id": "1"},
        {},
    ],
)
def test_other_hosts_other_boots_and_unknown_ones_are_not_aligned(other: dict[str, Any]) -> None:
    clock, missing = align({0: HERE, 1: other})
    assert (clock.verdict, clock.reference_rank) == ("unaligned", None)
    assert [(row.rank, row.offset_us, row.drift_ppm) for row in clock.ranks] == [(0, None, None), (1, None, None)]
    figures = ("offset_us", "drift_ppm", "bound_us", "error_us")
    assert [row.what for row in missing] == [f"clock.ranks.{figure}" for figure in figures]


def test_an_unknown_host_is_no_common_one() -> None:
    assert align({0: {}, 1: {}})[0].verdict == "unaligned"


def test_of_no_facts_nothing_follows() -> None:
    clock, _ = align({})
    assert (clock.verdict, clock.ranks) == ("unaligned", [])
