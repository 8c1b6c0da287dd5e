"""One real run with many phases, each of which has another culprit, or none; each is judged by itself."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.scenarios.conftest import Phased

pytestmark = [pytest.mark.launch, pytest.mark.timing]

# What is planted -> the cause and the zone to be named.
CAUSES = {
    "data_loading": ("data_loading", "DataLoader#0"),
    "forward": ("forward", "DistributedDataParallel#0"),
    "backward": ("backward", "backward"),
    "optimizer": ("optimizer", "Descent#0"),
    "gc": ("gc", "generation 2"),
    "zone": ("zone", "augment"),
    "host": ("host", None),
    "tokens": ("uneven_work", "DistributedDataParallel#0"),
}
PLANTED = (
    *("data_loading", "forward", "backward", "optimizer", "gc", "zone", "host", "uneven_work"),
    *("a third", "now and then", "two at once", "in turn"),
)


def pattern_of(plant: dict[str, Any], plants: list[dict[str, Any]]) -> str:
    if plant["each"] == 1:
        return "persistent"
    return "intermittent" if len(plants) == 1 else "rotating"


@pytest.mark.parametrize("name", PLANTED)
def test_who_is_late_why_and_by_how_much(phased: Phased, name: str) -> None:
    phase, found = phased.phases[name], phased.judged(name)
    plants = {plant["rank"]: plant for plant in phase["plants"]}
    rows = {row.rank: row for row in found.ranks}
    assert rows.keys() == plants.keys(), found
    for rank, plant in plants.items():
        row = rows[rank]
        expected = (*CAUSES[plant["kind"]], pattern_of(plant, phase["plants"]))
        assert (row.cause, row.zone, row.pattern) == expected
        slept = [ms for step, ms in phased.slept[rank].items() if step in row.steps]
        assert row.delay == pytest.approx(statistics.median(slept), rel=0.2, abs=found.noise)


@pytest.mark.parametrize("name", ["healthy", "healthy again"])
def test_nobody_is_named_in_healthy_phases(phased: Phased, name: str) -> None:
    found = phased.judged(name)
    assert (found.verdict, found.ranks) == ("none", []), found


def test_of_two_at_once_neither_alone_would_help(phased: Phased) -> None:
    """Each hides behind the other, so that both get hardly any saving and the two together the whole."""
    found = phased.judged("two at once")
    assert found.saved_if_all_fixed == pytest.approx(60, rel=0.2)
    for row in found.ranks:
        assert row.saved_if_fixed is not None
        assert row.saved_if_fixed < 12
