"""How much communication there is, per rank, kind and bucket; times are ms."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.analyze.communication import communication
from distprof.result import Communication, NotObserved
from tests.unit.jobs import always, job
from tests.unit.tables import MODEL, Call, Operator, Step, Zone, inputs, tables

STEPS = [Step(rank, 1, 0, 100) for rank in (0, 1)]
WINDOWS = [(rank, -1.0, 101.0) for rank in (0, 1)]
# Each rank's backward ends at 90. Rank 1 creates both buckets 10 ms after rank 0.
ZONES = [Zone(rank, "backward", 10, 90) for rank in (0, 1)]
CALLS = [
    Call(0, 1, 20, ended=50, step=1, bucket=0, bytes=8_000_000),
    Call(1, 1, 30, ended=50, step=1, bucket=0, bytes=8_000_000),
    Call(0, 2, 40, ended=80, step=1, bucket=1, bytes=6_000_000),
    Call(1, 2, 50, ended=80, step=1, bucket=1, bytes=6_000_000),
]


def section(**changes: Any) -> tuple[Communication, list[NotObserved]]:
    what: dict[str, Any] = {"ranks": [0, 1], "zones": ZONES, "calls": CALLS, "steps": STEPS, "windows": WINDOWS}
    return communication(inputs(tables(**what | changes)))


def test_overlapping_collectives_are_united_and_not_added() -> None:
    found, _ = section()
    first, second = found.per_rank
    assert first.total == 60, "from 20 to 80, though the two take 30 and 40"
    assert first.wait == 20, "from 20 to 30 and from 40 to 50"
    assert first.transfer == 40
    assert first.exposed == 40, "blocked from 40 on"
    assert (second.total, second.wait, second.transfer, second.exposed) == (50, 0, 50, 30)
    assert (found.basis, found.steps_used) == ("window", 1)


def test_waits_that_overlap_are_united() -> None:
    """Rank 1 creates both 40 ms late; rank 0 waits from 20 to 80, and not 40 ms twice."""
    late = [Call(1, 1, 60, ended=80, step=1), Call(1, 2, 80, ended=82, step=1)]
    found, _ = section(calls=[*CALLS[::2], *late])
    assert found.per_rank[0].wait == 60


def test_the_ranks_means() -> None:
    found, _ = section()
    assert (found.total, found.wait, found.transfer) == (55, 10, 45)
    assert (found.exposed, found.overlapped) == (35, 20)


def test_where_a_rank_computes_it_is_not_exposed() -> None:
    found, _ = section(operators=[Operator(0, 45, 60), Operator(0, 82, 85)])
    assert (found.per_rank[0].exposed, found.per_rank[0].total) == (25, 60)


def test_counts() -> None:
    more = [
        Call(0, 3, 91, step=1),  # rank 1 did not record it
        *(Call(rank, 4, 92, step=1, kind="_allgather_by_hand") for rank in (0, 1)),
        *(Call(rank, 1, 93, step=1, group=1) for rank in (0,)),
    ]
    found, _ = section(calls=[*CALLS, *more], groups=[(0, 1), (0,)])
    assert (found.collectives, found.matched, found.unmatched, found.unclassified) == (5, 4, 1, 1)


def test_what_only_missing_members_lack_is_neither_matched_nor_unmatched() -> None:
    found, _ = section(world_size=3)
    assert (found.collectives, found.matched, found.unmatched) == (2, 0, 0)
    assert (found.wait, found.transfer) == (None, None)
    assert found.total == 55


def test_buckets() -> None:
    params = [{"name": MODEL, "params": [["a.weight", "a.bias"], ["b.weight"]]}]
    facts = {rank: {"host": "h", "boot_id": "b", "ddp": params} for rank in (0, 1)}
    found, _ = section(facts=facts)
    first, second = found.buckets
    assert (first.model, first.bucket, first.bytes, first.params) == (MODEL, 0, 8_000_000, ["a.weight", "a.bias"])
    assert (first.wait, first.transfer) == (5, 20), "rank 0 waits 10 ms and rank 1 none; then 20 ms for both"
    assert (second.wait, second.transfer, second.params) == (5, 30, ["b.weight"])
    assert first.algbw_gbps == pytest.approx(0.4), "8 MB in 20 ms"
    assert first.busbw_gbps == pytest.approx(0.4), "of two ranks each sends its half and receives the other"
    assert (first.count, first.last_rank, first.last_share) == (1, None, None), "once is nothing"


def test_a_buckets_last_rank_is_told_only_where_one_is_the_last_in_most_steps() -> None:
    def last_in(steps_of_rank_1: int) -> tuple[int | None, float | None]:
        of = job(
            lambda rank, step: {"forward": 9} if rank == (step <= steps_of_rank_1) else {}, ranks=(0, 1), buckets=1
        )
        (bucket,) = communication(inputs(of))[0].buckets
        return bucket.last_rank, bucket.last_share

    assert last_in(9) == (1, 1.0)
    assert last_in(8) == (None, None), "1 in 51 that one of two ranks is the last in 8 of 9 by chance"
    assert last_in(5) == (None, None), "of two ranks one is always the last in half of the steps"


def test_buckets_of_steps_that_are_kept_out_do_not_count() -> None:
    steps = [Step(rank, 0, -100, 0, "first") for rank in (0, 1)]
    first = [
        Call(0, 8, -90, ended=-10, step=0, bucket=0, bytes=8_000_000),
        Call(1, 8, -20, ended=-10, step=0, bucket=0),
    ]
    found, _ = section(calls=[*first, *CALLS], steps=[*steps, *STEPS])
    assert [(bucket.bucket, bucket.count, bucket.wait) for bucket in found.buckets] == [(0, 1, 5), (1, 1, 5)]


def test_a_delay_is_in_each_buckets_wait_but_once_in_the_steps() -> None:
    found, _ = communication(inputs(job(always({3: {"data_loading": 60}}), buckets=8)))
    assert [bucket.wait for bucket in found.buckets] == [45] * 8, "60 on three ranks of four"
    assert [(bucket.last_rank, bucket.last_share, bucket.count) for bucket in found.buckets] == [(3, 1.0, 9)] * 8
    # From the first bucket's creation to the culprit's last one's: the 60 ms and the 14 until it has created all.
    assert [row.wait for row in found.per_rank] == [74, 74, 74, 0]


def test_kinds_count_all_calls_and_time_those_in_steady_steps() -> None:
    calls = [
        *CALLS,
        Call(0, 9, 500, step=None, bytes=8_000_000),  # rank 1 comes a second later, out of step
        Call(1, 9, 1500, step=None, bytes=8_000_000),
        *(Call(rank, 10, 2000, kind="broadcast", bytes=64) for rank in (0, 1)),
    ]
    found, missing = section(calls=calls)
    small, large, broadcast = found.by_kind
    assert (large.kind, large.bytes, large.count, large.wait, large.transfer) == ("all_reduce", 8_000_000, 2, 5, 20)
    assert (small.bytes, small.count, small.wait, small.transfer) == (6_000_000, 1, 5, 30)
    assert (broadcast.kind, broadcast.count, broadcast.wait, broadcast.transfer) == ("broadcast", 1, None, None)
    assert {"communication.by_kind.wait", "communication.by_kind.transfer"} <= {row.what for row in missing}


@pytest.mark.parametrize(
    ("kind", "bus"),
    [
        ("all_reduce", 3.0),  # of 4 ranks each link carries 2 x 3/4
        ("all_gather", 6.0),  # each rank's piece to three others
        ("reduce_scatter", 1.5),
        ("barrier", None),
    ],
)
def test_bandwidth(kind: str, bus: float | None) -> None:
    """8 MB in 4 ms are 2 GB/s."""
    calls = [Call(rank, 1, 10 + rank, ended=17, step=1, kind=kind, bytes=8_000_000) for rank in range(4)]
    steps = [Step(rank, 1, 0, 100) for rank in range(4)]
    (row,) = section(ranks=range(4), steps=steps, calls=calls)[0].by_kind
    assert row.transfer == 4
    assert row.algbw_gbps == pytest.approx(2.0)
    assert row.busbw_gbps == (None if bus is None else pytest.approx(bus))


def test_an_all_to_all_that_ends_for_one_before_another_has_come_binds_nobody() -> None:
    ends = (12, 17, 17, 17)
    calls = [
        Call(rank, 1, 10 + rank, ended=ends[rank], step=1, kind="all_to_all", bytes=8_000_000) for rank in range(4)
    ]
    steps = [Step(rank, 1, 0, 100) for rank in range(4)]
    (row,) = section(ranks=range(4), steps=steps, calls=calls)[0].by_kind
    assert (row.count, row.wait, row.transfer, row.busbw_gbps) == (1, None, None, None)


def test_the_bandwidth_of_a_broadcast_in_forward() -> None:
    calls = [Call(rank, 1, 10, ended=14, step=1, zone="forward", kind="broadcast", bytes=8_000_000) for rank in (0, 1)]
    (row,) = section(calls=calls)[0].by_kind
    assert (row.algbw_gbps, row.busbw_gbps) == (pytest.approx(2.0), pytest.approx(2.0))


def test_nothing_moved_has_no_bandwidth() -> None:
    calls = [Call(rank, 1, 10, ended=14, step=1, kind="barrier", bytes=None) for rank in (0, 1)]
    (row,) = section(calls=calls)[0].by_kind
    assert (row.bytes, row.transfer, row.algbw_gbps, row.busbw_gbps) == (None, 4, None, None)


def test_without_windows_waits_are_known_and_transfers_are_not() -> None:
    found, missing = section(windows=[])
    assert (found.basis, found.steps_used, found.wait) == ("zones", 1, 10)
    assert (found.total, found.exposed, found.overlapped, found.transfer) == (None, None, None, None)
    names = ("total", "exposed", "overlapped", "transfer", "gradients", "transfer_models")
    assert {row.what for row in missing} == {f"communication.{name}" for name in names}


def test_a_window_that_not_all_ranks_have_is_none() -> None:
    assert section(windows=WINDOWS[:1])[0].basis == "zones"
    steps = [Step(rank, number, 100 * number - 100, 100 * number) for rank in (0, 1) for number in (1, 2, 3)]
    apart, common = [(0, -1.0, 201.0), (1, 99.0, 301.0)], 1
    found = section(steps=steps, windows=apart)[0]
    assert (found.basis, found.steps_used) == ("window", common), "rank 0 has steps 1 and 2, rank 1 has 2 and 3"


def test_a_rank_without_steps_is_not_in_the_means() -> None:
    found, missing = section(steps=STEPS[:1], windows=WINDOWS[:1])
    assert [row.rank for row in found.per_rank] == [0]
    assert (found.basis, found.total, found.wait) == ("window", 60, 20)
    assert [row.ranks for row in missing if row.what == "communication.per_rank"] == [[1]]


def test_nothing_recorded_is_not_nothing() -> None:
    found, missing = section(calls=[])
    assert (found.collectives, found.matched, found.unmatched, found.unclassified) == (None, None, None, None)
    assert (found.total, found.wait, found.exposed) == (None, None, None)
    assert ("communication", None) in {(row.what, row.ranks) for row in missing}


def test_a_rank_alone_has_no_communication() -> None:
    found, missing = section(ranks=[0], zones=ZONES[:1], calls=[], steps=STEPS[:1], windows=WINDOWS[:1])
    assert (found.collectives, found.total, found.wait, found.transfer, found.exposed) == (0, 0, 0, 0, 0)
    assert [row.what for row in missing] == ["communication.gradients"]


def test_lost_entries_are_told() -> None:
    facts = {rank: {"host": "h", "boot_id": "b", "own_cost": {"lost_collectives": 30 * rank}} for rank in (0, 1)}
    _, missing = section(facts=facts)
    (row,) = (row for row in missing if row.what == "communication.collectives")
    assert row.ranks == [1]
    assert "lost 30 of them" in row.reason


def test_a_model_whose_buckets_are_not_recognised_is_told() -> None:
    facts = {rank: {"host": "h", "boot_id": "b", "ddp": [{"name": MODEL, "params": None}]} for rank in (0, 1)}
    calls = [Call(rank, 1, 20, ended=30, step=1) for rank in (0, 1)]
    found, missing = section(facts=facts, calls=calls)
    assert found.buckets == []
    assert "communication.buckets" in {row.what for row in missing}
