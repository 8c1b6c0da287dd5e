"""How far gradients' all-reduces run beside backward; times are ms."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.analyze.communication import communication
from distprof.result import GradientOverlap
from tests.unit.tables import Call, Step, Zone, inputs, tables

STEPS = [Step(rank, 1, 0, 100) for rank in (0, 1)]
WINDOWS = [(rank, -1.0, 101.0) for rank in (0, 1)]


def overlap(*, late: float = 0.0, more: float = 0.0, **changes: Any) -> tuple[GradientOverlap | None, list[str]]:
    """Backward from 10 on creates a bucket at 30 and one at 50, and blocks until the second is reduced at 80.

    Args:
        late: rank 1 creates its second bucket so much later, and that ends as much later.
        more: the transfer of each takes so much longer.
    """
    calls, zones = [], []
    for rank in (0, 1):
        second = 50 + late * rank
        calls.append(Call(rank, 1, 30, ended=45 + more, step=1, bucket=0, zone="backward"))
        calls.append(Call(rank, 2, second, ended=80 + late + more, step=1, bucket=1, zone="backward"))
        zones.append(Zone(rank, "backward", 10, 80 + late + more))
    what: dict[str, Any] = {"ranks": [0, 1], "zones": zones, "calls": calls, "steps": STEPS, "windows": WINDOWS}
    found, missing = communication(inputs(tables(**what | changes)))
    return found.gradients, [row.what for row in missing if row.what.startswith("communication.gradients")]


def test_what_runs_while_backward_computes_is_overlapped() -> None:
    found, missing = overlap()
    assert found is not None
    assert (found.total, found.overlapped, found.exposed, found.wait) == (45, 15, 30, 0)
    assert found.steps_used == 1
    assert missing == []


def test_perfect_overlap_hides_transfers_behind_all_of_backwards_computing() -> None:
    found, _ = overlap()
    assert found is not None
    assert found.saved_by_perfect_overlap == 25, "40 ms of computing hide 40 of the 45 ms; 5 of the 30 remain"
    longer, _ = overlap(more=10)
    assert longer is not None
    # The first still runs when the second begins: together from 30 to 90, of which 20 are hidden now and 40 could be.
    assert (longer.total, longer.overlapped, longer.exposed) == (60, 20, 40)
    assert longer.saved_by_perfect_overlap == 20


def test_waiting_for_a_late_rank_is_not_what_overlap_would_save() -> None:
    found, _ = overlap(late=10)
    assert found is not None
    # Rank 0: exposed from 50 to 90, of which 10 are wait; rank 1 computes until 60.
    assert (found.exposed, found.wait) == (35, 5)
    assert found.saved_by_perfect_overlap == pytest.approx((25 + 30) / 2)


def test_backwards_that_reduce_nothing_hide_nothing() -> None:
    zones = [Zone(rank, "backward", start, end) for rank in (0, 1) for start, end in ((1, 9), (10, 80))]
    found, _ = overlap(zones=zones)
    assert found is not None
    assert found.saved_by_perfect_overlap == 25


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": []},
        {"calls": [Call(rank, 1, 30, ended=45, step=1) for rank in (0, 1)]},
        {"calls": [Call(rank, 1, 30, step=1, bucket=0, zone="backward") for rank in (0, 1)]},
        {"facts": {rank: {"host": "a", "boot_id": "b", "device": "cuda"} for rank in (0, 1)}},
    ],
)
def test_where_it_is_not_known_it_is_null_with_a_reason(changes: dict[str, Any]) -> None:
    assert overlap(**changes) == (None, ["communication.gradients"])


def test_without_all_members_nobody_knows_who_waited() -> None:
    found, missing = overlap(world_size=3)
    assert found is not None
    assert (found.total, found.overlapped, found.exposed) == (45, 15, 30)
    assert (found.wait, found.saved_by_perfect_overlap) == (None, None)
    assert missing == [f"communication.gradients.{name}" for name in ("wait", "saved_by_perfect_overlap")]
