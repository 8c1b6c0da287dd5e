"""The parts of a step; times are ms."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.analyze.breakdown import breakdown
from distprof.result import BreakdownRow, NotObserved
from tests.unit.jobs import always, job
from tests.unit.tables import Call, Operator, Step, Zone, inputs, tables

# Rank 0's step. A loader, in which an operator runs; forward; backward, which creates a bucket at 40 and another one at
# 60, and computes in between. Rank 1 creates the second at 80, and it ends at 88.
ZONES = [Zone(0, "data_loading", 0, 20), Zone(0, "forward", 20, 40), Zone(0, "backward", 40, 90)]
OPERATORS = [Operator(0, 15, 30), Operator(0, 42, 57)]
CALLS = [
    Call(0, 1, 40, ended=50, step=1),
    Call(0, 2, 60, ended=88, step=1),
    Call(1, 1, 30, ended=50, step=1),
    Call(1, 2, 80, ended=88, step=1),
]
STEPS = [Step(rank, 1, 0, 100) for rank in (0, 1)]


def step(**changes: Any) -> tuple[BreakdownRow, list[NotObserved]]:
    """Rank 0's row and what is not observed."""
    what: dict[str, Any] = {
        "ranks": [0, 1],
        "zones": ZONES,
        "operators": OPERATORS,
        "calls": CALLS,
        "steps": STEPS,
        "windows": [(0, -1, 101), (1, -1, 101)],
    }
    rows, missing = breakdown(inputs(tables(**what | changes)))
    return rows[0], missing


def parts(row: BreakdownRow) -> dict[str, float | None]:
    names = ("data_wait", "compute", "comm_wait", "comm_transfer", "other")
    return {name: getattr(row, name) for name in names}


def reasons(missing: list[NotObserved]) -> dict[str, str]:
    return {row.what.removeprefix("breakdown."): row.reason for row in missing}


def test_each_piece_belongs_to_the_first_part_that_claims_it() -> None:
    row, _ = step()
    assert parts(row) == {
        "data_wait": 20,  # the operator in it is the loader's
        "compute": 25,  # 20 to 30 and 42 to 57
        "comm_wait": 20,  # 60 to 80
        "comm_transfer": 8,
        "other": 27,  # 30 to 42, 57 to 60, 88 to 100
    }
    assert (row.rank, row.basis, row.steps_used, row.step) == (0, "window", 1, 100)


def test_exposed_and_overlapped_are_what_is_in_flight() -> None:
    row, _ = step()
    assert row.comm_exposed == 28
    # In flight from 40 to 50 and from 60 to 88: the first 10 ms are hidden.
    assert row.comm_overlapped == 10


def test_an_operator_that_runs_where_the_rank_seems_blocked_is_compute() -> None:
    """After its last bucket backward is taken to wait; where it computes it does not."""
    row, _ = step(operators=[*OPERATORS, Operator(0, 62, 66)])
    assert parts(row) == {"data_wait": 20, "compute": 29, "comm_wait": 16, "comm_transfer": 8, "other": 27}
    assert (row.comm_exposed, row.comm_overlapped) == (24, 14)


def test_means_over_the_windows_steps() -> None:
    steps = [Step(rank, number, start, start + 40) for rank in (0, 1) for number, start in enumerate((0, 40, 80, 120))]
    row, _ = step(
        zones=[Zone(0, "data_loading", 40, 50), Zone(0, "data_loading", 80, 100), Zone(0, "data_loading", 120, 159)],
        operators=[Operator(0, 60, 66)],
        calls=[Call(rank, 1, 70, ended=70, step=1) for rank in (0, 1)],
        steps=steps,
        windows=[(0, 30, 130), (1, 0, 160)],
    )
    assert row.steps_used == 2, "steps 1 and 2; step 3 is not wholly inside"
    assert parts(row) == {"data_wait": 15, "compute": 3, "comm_wait": 0, "comm_transfer": 0, "other": 22}


def test_without_a_window_only_what_zones_tell_is_known() -> None:
    row, missing = step(windows=[], operators=[])
    assert parts(row) == {"data_wait": 20, "compute": None, "comm_wait": 20, "comm_transfer": None, "other": None}
    assert (row.basis, row.steps_used, row.step) == ("zones", 1, 100)
    assert (row.comm_exposed, row.comm_overlapped) == (None, None)
    unseen = reasons(missing)
    assert set(unseen) == {
        *("compute", "comm_transfer", "comm_exposed", "comm_overlapped", "other"),
        *("h2d", "sync_wait", "idle"),
    }
    assert unseen["compute"] == "no steady step lies inside a Kineto window of this rank"


def test_a_window_on_one_rank_only() -> None:
    rows, missing = breakdown(
        inputs(tables(ranks=[0, 1], zones=ZONES, operators=OPERATORS, calls=CALLS, steps=STEPS, windows=[(0, -1, 101)]))
    )
    assert [row.basis for row in rows] == ["window", "zones"]
    assert [row.compute for row in rows] == [25, None]
    assert next(row.ranks for row in missing if row.what == "breakdown.compute") == [1]
    assert next(row.ranks for row in missing if row.what == "breakdown.h2d") is None, "of no rank"


def test_wait_is_not_known_where_a_participant_is_missing() -> None:
    row, missing = step(ranks=[0], world_size=2, calls=CALLS[:2], steps=STEPS[:1], windows=[(0, -1, 101)])
    assert parts(row) == {"data_wait": 20, "compute": 25, "comm_wait": None, "comm_transfer": None, "other": 27}
    assert row.comm_exposed == 28, "it was blocked, for whatever reason"
    assert row.comm_overlapped == 10
    assert {"comm_wait", "comm_transfer"} < set(reasons(missing))


def test_steps_in_which_waits_are_known_are_preferred() -> None:
    steps = [*STEPS, *(Step(rank, 2, 100, 200) for rank in (0, 1))]
    lost = Call(0, 3, 150, ended=180, step=2)
    row, _ = step(steps=steps, windows=[(0, -1, 201), (1, -1, 201)], calls=[*CALLS, lost])
    assert (row.steps_used, row.step, row.comm_wait) == (1, 100, 20)


def test_a_rank_whose_collectives_were_not_recorded_has_no_figures_for_them() -> None:
    row, missing = step(calls=[])
    assert parts(row) == {"data_wait": 20, "compute": 25, "comm_wait": None, "comm_transfer": None, "other": None}
    assert (row.comm_exposed, row.comm_overlapped) == (None, None)
    assert reasons(missing)["other"] == "the flight recorder holds no collective of this rank"


def test_a_rank_alone_waits_for_nobody() -> None:
    row, _ = step(ranks=[0], calls=[], steps=STEPS[:1], windows=[(0, -1, 101)])
    assert parts(row) == {"data_wait": 20, "compute": 25, "comm_wait": 0, "comm_transfer": 0, "other": 55}
    assert (row.comm_exposed, row.comm_overlapped) == (0, 0)


def test_a_collective_whose_end_is_not_known_is_over_when_the_rank_is_released() -> None:
    calls = [
        Call(rank, seq, created, step=1) for rank, seq, created in ((0, 1, 40), (0, 2, 60), (1, 1, 30), (1, 2, 80))
    ]
    row, _ = step(calls=calls)
    assert (row.comm_wait, row.comm_transfer, row.comm_overlapped) == (20, 10, 20), "backward ends at 90"
    # One that nobody waits for has no end at all.
    row, missing = step(calls=[*CALLS, Call(0, 3, 95, step=1), Call(1, 3, 95, step=1)])
    assert (row.comm_exposed, row.comm_overlapped) == (28, None)
    assert reasons(missing)["comm_overlapped"] == "when a collective in these steps ended is not known"


def test_no_steady_step_no_figures() -> None:
    row, missing = step(steps=[Step(rank, 0, 0, 100, "first") for rank in (0, 1)])
    assert (row.step, row.steps_used, row.basis) == (None, 0, "zones")
    assert set(parts(row).values()) == {None}
    assert {"step", "data_wait", "compute", "comm_wait"} < set(reasons(missing))


def test_a_rank_without_steps_does_not_take_the_others_figures() -> None:
    row, missing = step(steps=STEPS[:1], windows=[(0, -1, 101)])
    assert parts(row)["comm_wait"] == 20
    assert next(what.ranks for what in missing if what.what == "breakdown.step") == [1]


def test_waiting_for_point_to_point_operations_is_communication() -> None:
    """They are not among the collectives; a wait zone is known to wait for something, and not for whom."""
    row, missing = step(zones=[*ZONES, Zone(0, "wait", 92, 97)])
    assert (row.comm_exposed, row.other) == (33, 22)
    assert (row.comm_wait, row.comm_transfer) == (None, None)
    assert row.comm_overlapped == 10
    assert {"breakdown.comm_wait", "breakdown.comm_transfer"} <= {each.what for each in missing}


def test_the_transfer_of_a_broadcast_in_forward_blocks_too() -> None:
    calls = [*CALLS, *(Call(rank, 9, 30 + rank, ended=35, kind="broadcast", zone="forward", step=1) for rank in (0, 1))]
    row, _ = step(calls=calls)
    assert (row.comm_wait, row.comm_transfer, row.other) == (21, 12, 22), "rank 1 comes 1 ms later; 4 ms of transfer"


@pytest.mark.parametrize("late", [{}, {1: {"data_loading": 60}}, {2: {"backward": 33}}])
def test_wait_and_transfer_of_a_job(late: dict[int, dict[str, float]]) -> None:
    rows, _ = breakdown(inputs(job(always(late))))
    longest = max((ms for delays in late.values() for ms in delays.values()), default=0)
    for row in rows:
        assert row.comm_wait == (0 if row.rank in late else longest)
        assert row.step == 50 + longest
