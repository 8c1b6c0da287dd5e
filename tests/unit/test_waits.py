"""Who binds whom, and where a rank is blocked; times are ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.analyze.waits import bound_steps, match, rank_waits, seen_to_start, waits_for
from tests.unit.tables import Call, Step, Zone, in_ms, ns, tables


def bindings(**world: Any) -> dict[int, tuple[Any, ...]]:
    """rank -> (binds, binds_until, last_rank) of the only collective."""
    comparable = world.pop("comparable", True)
    rows = match(tables(**world), comparable=comparable).select("rank", "binds", "binds_until", "last_rank").rows()
    return {rank: (binds, None if until is None else until / 1e6, last) for rank, binds, until, last in rows}


def test_an_all_reduce_binds_until_the_last_rank_created_it() -> None:
    calls = [Call(0, 1, 10), Call(1, 1, 17), Call(2, 1, 12)]
    assert bindings(ranks=range(3), calls=calls) == dict.fromkeys(range(3), (True, 17, 1))
    matched = match(tables(ranks=range(3), calls=calls))
    assert matched.select("members", "recorded", "seen").unique().rows() == [(3, 3, 3)]


def test_collectives_of_one_group_are_told_apart_by_their_number_and_kind() -> None:
    calls = [
        Call(0, 1, 10),
        Call(1, 1, 11),
        Call(0, 2, 20),
        Call(1, 2, 25),
        Call(0, 3, 30),
        Call(1, 3, 31, kind="barrier"),
    ]
    matched = match(tables(ranks=range(2), calls=calls)).filter(rank=0)
    assert matched["binds_until"].to_list() == [ns(11), ns(25), None]
    assert matched["seen"].to_list() == [2, 2, 1]


def test_groups_are_apart() -> None:
    calls = [Call(rank, 1, 10 + rank, group=rank // 2) for rank in range(4)]
    found = bindings(ranks=range(4), groups=[(0, 1), (2, 3)], calls=calls)
    assert found == {0: (True, 11, 1), 1: (True, 11, 1), 2: (True, 13, 3), 3: (True, 13, 3)}


def test_nobody_binds_a_group_of_one() -> None:
    assert bindings(ranks=[0, 1], groups=[(0,)], calls=[Call(0, 1, 10)]) == {0: (False, None, None)}


def test_what_one_member_did_not_record_binds_nobody_for_certain() -> None:
    calls = [Call(0, 1, 10), Call(1, 1, 17)]
    assert bindings(ranks=range(3), calls=calls) == dict.fromkeys(range(2), (True, None, None))
    # The same if that member left no recordings at all; but then it is known why.
    assert bindings(ranks=range(2), world_size=3, calls=calls) == dict.fromkeys(range(2), (True, None, None))
    matched = match(tables(ranks=range(2), world_size=3, calls=calls))
    assert matched.select("members", "recorded", "seen").unique().rows() == [(3, 2, 2)]


def in_broadcast(times: Sequence[float]) -> dict[int, tuple[bool, float, int]]:
    calls = [Call(rank, 1, time, kind="broadcast", zone="forward") for rank, time in enumerate(times)]
    return bindings(ranks=range(len(times)), calls=calls)


def test_a_broadcast_in_forward_waits_for_the_root_and_the_root_for_its_receivers() -> None:
    assert in_broadcast([14, 10, 20]) == {
        0: (True, 20, 2),
        1: (True, 14, 0),  # it waits 4 ms for the root and not for rank 2, which is beside it
        2: (True, 20, 2),
    }
    assert in_broadcast([20, 10, 12]) == dict.fromkeys(range(3), (True, 20, 0))


@pytest.mark.parametrize(
    ("late", "held_up"),
    # What real runs did: 0 sends to 1, 2 and 4, 1 to 3 and 5, 2 to 6, 3 to 7.
    [(0, {1, 2, 3, 4, 5, 6, 7}), (1, {0, 3, 5, 7}), (2, {0, 6}), (3, {1, 7}), (4, {0}), (5, {1}), (6, {2}), (7, {3})],
)
def test_a_broadcast_in_forward_goes_down_a_tree(late: int, held_up: set[int]) -> None:
    found = in_broadcast([50 if rank == late else rank for rank in range(8)])
    assert {rank for rank, (_, until, _) in found.items() if until == 50} == held_up | {late}
    assert {last for _, until, last in found.values() if until == 50} == {late}


@pytest.mark.parametrize("zone", ["evaluation", "wait"])
def test_a_broadcast_in_evaluation_or_in_a_wait_zone_of_its_own_is_one_in_forward(zone: str) -> None:
    calls = [Call(rank, 1, 10 - rank, kind="broadcast", zone=zone) for rank in range(2)]
    assert bindings(ranks=range(2), calls=calls)[1] == (True, 10, 0)


def test_where_one_of_those_it_waits_for_is_missing_nothing_is_certain() -> None:
    calls = [Call(rank, 1, 10 + rank, kind="broadcast", zone="forward") for rank in (0, 1, 3)]
    found = bindings(ranks=[0, 1, 3], world_size=4, calls=calls)
    assert found == {0: (True, None, None), 1: (True, 13, 3), 3: (True, 13, 3)}, "rank 0 sends to rank 2 as well"
    of_receivers = [call for call in calls if call.rank]
    assert bindings(ranks=[1, 3], world_size=4, calls=of_receivers) == dict.fromkeys((1, 3), (True, None, None))


def test_other_broadcasts_bind_nobody_as_their_root_is_not_recorded() -> None:
    calls = [Call(rank, 1, 10 + rank, kind="broadcast") for rank in range(2)]
    assert bindings(ranks=range(2), calls=calls) == dict.fromkeys(range(2), (False, None, None))


def all_to_all(*times: tuple[float, float | None], **world: Any) -> dict[int, tuple[Any, ...]]:
    calls = [Call(rank, 1, start, end, kind="all_to_all") for rank, (start, end) in enumerate(times)]
    return bindings(ranks=range(len(times)), calls=calls, **world)


def test_an_all_to_all_has_bound_its_ranks_if_every_end_came_after_every_start() -> None:
    assert all_to_all((10, 18), (17, 19)) == dict.fromkeys(range(2), (True, 17, 1))
    unbound = dict.fromkeys(range(2), (False, None, None))
    assert all_to_all((10, 12), (17, 19)) == unbound
    assert all_to_all((10, 18), (17, None)) == unbound, "where that is not known it binds nobody"
    assert all_to_all((10, 18), (17, 19), world_size=3) == unbound
    # Clocks may be 20 us apart.
    assert all_to_all((10, 16.98), (17, 19)) == dict.fromkeys(range(2), (True, 17, 1))
    assert all_to_all((10, 16.979), (17, 19)) == unbound


def test_other_kinds_bind_nobody_whenever_they_ended() -> None:
    calls = [Call(rank, 1, 10 + rank, 20, kind="reduce") for rank in range(2)]
    assert bindings(ranks=range(2), calls=calls) == dict.fromkeys(range(2), (False, None, None))


def test_on_devices_a_rank_arrives_when_its_kernel_begins() -> None:
    calls = [Call(0, 1, 10, started=21), Call(1, 1, 17, started=19), Call(0, 2, 30, started=31), Call(1, 2, 35)]
    of = tables(ranks=range(2), calls=calls)
    matched = match(replace(of, arrival="started"))
    assert matched["arrived"].to_list() == [ns(21), ns(31), ns(19), ns(35)]
    assert matched["binds_until"].to_list() == [ns(21), ns(35)] * 2
    assert match(of)["binds_until"].to_list() == [ns(17), ns(35)] * 2


def test_what_is_not_known_to_have_started_everywhere_is_not_known_to_bind() -> None:
    calls = [Call(0, 1, 10, started=21), Call(1, 1, 17, started=19), Call(0, 2, 30, started=31), Call(1, 2, 35)]
    matched = match(replace(tables(ranks=range(2), calls=calls), arrival="started"))
    seen = seen_to_start(matched)
    assert seen.drop("binds_until", "last_rank").equals(matched.drop("binds_until", "last_rank"))
    assert seen.filter(seq=1).equals(matched.filter(seq=1))
    assert seen.filter(seq=2).select("binds", "binds_until", "last_rank").rows() == [(True, None, None)] * 2


def test_of_those_who_came_together_the_highest_rank_is_the_last() -> None:
    for order in (range(3), reversed(range(3))):
        calls = [Call(rank, 1, 10) for rank in order]
        assert bindings(ranks=range(3), calls=calls) == dict.fromkeys(range(3), (True, 10, 2))
        broadcast = [Call(call.rank, 1, 10, kind="broadcast", zone="forward") for call in calls]
        found = bindings(ranks=range(3), calls=broadcast)
        assert {rank: last for rank, (_, _, last) in found.items()} == {0: 2, 1: 1, 2: 2}


def test_rows_are_by_rank_in_the_order_of_creation() -> None:
    calls = [Call(1, 2, 20), Call(1, 1, 11), Call(0, 2, 25), Call(0, 1, 10), Call(0, 3, 5, group=7)]
    matched = match(tables(ranks=range(2), calls=calls))
    assert matched.select("rank", "seq", "binds").rows() == [
        *((0, 3, False), (0, 1, True), (0, 2, True)),  # of an unknown group nothing is known
        *((1, 1, True), (1, 2, True)),
    ]


def test_clocks_that_cannot_be_compared_bind_nobody_for_certain() -> None:
    calls = [Call(0, 1, 10), Call(1, 1, 5000)]
    assert bindings(ranks=range(2), calls=calls, comparable=False) == dict.fromkeys(range(2), (True, None, None))


def test_steps_in_which_waits_are_known() -> None:
    steps = [Step(rank, step, 100 * step, 100 * step + 100) for rank in range(2) for step in range(4)]
    calls = [
        *(Call(rank, 1, 10, step=0) for rank in range(2)),
        Call(0, 2, 110, step=1),  # rank 1 lost it
        *(Call(rank, 3, 210, step=2, kind="reduce") for rank in range(2)),  # binds nobody, as far as is known
    ]
    of = tables(ranks=range(2), steps=steps, calls=calls)
    assert bound_steps(of, match(of)) == {0, 2, 3}
    unseen = tables(ranks=range(2), steps=steps)
    assert bound_steps(unseen, match(unseen)) == set(), "no collective at all was recorded"
    alone = tables(ranks=[0], steps=steps[:4])
    assert bound_steps(alone, match(alone)) == {0, 1, 2, 3}, "it waits for nobody"


def blocked(zones: list[Zone], calls: list[Call]) -> list[tuple[float, float]]:
    of = tables(ranks=range(2), zones=zones, calls=calls)
    return in_ms(rank_waits(of, match(of), 0).blocked)


def test_backward_blocks_from_its_last_bucket_to_its_end() -> None:
    zones = [Zone(0, "backward", 0, 100), Zone(0, "backward", 200, 300), Zone(1, "backward", 0, 90)]
    buckets = [Call(0, 1, 40, zone="backward"), Call(0, 2, 70, zone="backward"), Call(0, 3, 250, zone="backward")]
    assert blocked(zones, buckets) == [(70, 100), (250, 300)]


def test_a_bucket_may_be_created_inside_a_zone_of_the_users() -> None:
    zones = [Zone(0, "backward", 0, 100), Zone(0, "zone", 60, 75, "compress")]
    assert blocked(zones, [Call(0, 1, 70, zone="zone")]) == [(70, 100)]


def test_a_backward_without_a_collective_does_not_block() -> None:
    zones = [Zone(0, "backward", 0, 100), Zone(0, "backward", 200, 300)]
    assert blocked(zones, []) == []
    assert blocked(zones, [Call(0, 1, 150), Call(0, 2, 250, zone="backward")]) == [(250, 300)]


def test_work_wait_blocks_as_long_as_it_lasts() -> None:
    zones = [Zone(0, "wait", 20, 30), Zone(0, "wait", 40, 45), Zone(0, "wait", 50, 60, thread=1)]
    assert blocked(zones, [Call(0, 1, 10), Call(0, 2, 40)]) == [(20, 30), (40, 45)]


def test_a_backward_that_waits_for_itself_goes_on_after_that() -> None:
    """SyncBatchNorm: the all-reduce is waited for at once, and backward computes until its end."""
    zones = [Zone(0, "backward", 0, 100), Zone(0, "wait", 41, 50)]
    assert blocked(zones, [Call(0, 1, 40, zone="backward")]) == [(41, 50)]
    bucket_after = [Call(0, 1, 40, zone="backward"), Call(0, 2, 80, zone="backward")]
    assert blocked(zones, bucket_after) == [(41, 50), (80, 100)]


def test_a_zone_waits_from_the_first_collective_that_is_created_in_it() -> None:
    zones = [Zone(0, "wait", 20, 30), Zone(0, "wait", 40, 50), Zone(0, "wait", 60, 70)]
    assert blocked(zones, [Call(0, 1, 25), Call(0, 2, 27), Call(0, 3, 50)]) == [(25, 30), (40, 50), (60, 70)]


def test_what_is_created_while_backward_waits_is_not_what_it_waits_for() -> None:
    zones = [Zone(0, "backward", 0, 100), Zone(0, "wait", 35, 50)]
    assert blocked(zones, [Call(0, 1, 40, zone="wait")]) == [(40, 100)]


def test_backward_may_begin_with_its_only_bucket() -> None:
    assert blocked([Zone(0, "backward", 10, 100)], [Call(0, 1, 10, zone="backward")]) == [(10, 100)]


def test_a_broadcast_in_forward_blocks_until_the_root_is_there() -> None:
    zones = [Zone(rank, "forward", 0, 50) for rank in range(2)]
    calls = [Call(0, 1, 30, kind="broadcast", zone="forward"), Call(1, 1, 10, kind="broadcast", zone="forward")]
    of = tables(ranks=range(2), zones=zones, calls=calls)
    assert in_ms(rank_waits(of, match(of), 0).blocked) == []
    assert in_ms(rank_waits(of, match(of), 1).blocked) == [(10, 30)]


def test_a_broadcast_in_forward_blocks_the_root_until_its_receivers_are_there() -> None:
    zones = [Zone(rank, "forward", 0, 50) for rank in range(2)]
    calls = [Call(0, 1, 5, kind="broadcast", zone="forward"), Call(1, 1, 40, kind="broadcast", zone="forward")]
    of = tables(ranks=range(2), zones=zones, calls=calls)
    assert in_ms(rank_waits(of, match(of), 0).waits) == [(5, 40)]
    assert in_ms(rank_waits(of, match(of), 1).waits) == []


def test_waits_are_united_and_only_where_the_rank_was_blocked() -> None:
    """Rank 1 creates both buckets 20 ms after rank 0, which goes on computing until its second one."""
    zones = [Zone(0, "backward", 0, 100), Zone(1, "backward", 0, 100)]
    calls = [Call(0, 1, 40), Call(0, 2, 50), Call(1, 1, 60), Call(1, 2, 70)]
    of = tables(ranks=range(2), zones=zones, calls=calls)
    matched = match(of)
    first, second = (rank_waits(of, matched, rank) for rank in range(2))
    assert in_ms(first.pending) == [(40, 70)]
    assert in_ms(first.blocked) == [(50, 100)]
    assert in_ms(first.waits) == [(50, 70)], "20 ms, though each of two buckets waited for 20"
    assert first.arrived.tolist() == [ns(40), ns(50)]
    assert in_ms(second.pending) == in_ms(second.waits) == []
    assert in_ms(second.blocked) == [(70, 100)], "a transfer"


def test_waits_by_whom_they_are_for() -> None:
    zones = [Zone(0, "wait", 10, 30), Zone(0, "wait", 50, 60)]
    calls = [
        *(Call(rank, 1, time) for rank, time in enumerate((10, 15, 25))),
        *(Call(rank, 2, time) for rank, time in enumerate((50, 58, 51))),
    ]
    of = tables(ranks=range(3), zones=zones, calls=calls)
    matched = match(of)
    waits = rank_waits(of, matched, 0)
    assert in_ms(waits_for(matched, waits, 0, 2)) == [(10, 25)]
    assert in_ms(waits_for(matched, waits, 0, 1)) == [(50, 58)]
    assert in_ms(waits_for(matched, waits, 0, 0)) == []


def test_nothing_of_another_rank_is_taken() -> None:
    of = tables(ranks=range(2), zones=[Zone(1, "wait", 10, 30)], calls=[Call(1, 1, 10), Call(0, 1, 12)])
    waits = rank_waits(of, match(of), 0)
    assert in_ms(waits.blocked) == in_ms(waits.pending) == []
    assert match(of).filter(pl.col("rank") == 1)["binds_until"].to_list() == [ns(12)]
