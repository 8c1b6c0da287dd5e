"""Process groups that were destroyed and made again under one name; entries made by hand."""

from __future__ import annotations

from distprof.result import Group
from tests.unit.test_collectives import build, facts

DEFAULT = {"name": "0", "desc": "default_pg", "ranks": [0, 1]}
FACTS = {rank: facts(groups=[DEFAULT]) for rank in range(2)}


def test_numbers_that_begin_again_are_another_groups() -> None:
    seqs = [1, 2, 3, 1, 2, 1]
    rows = [
        {"rank": rank, "record": record, "seq": seq, "created": 10 * record + rank}
        for rank in range(2)
        for record, seq in enumerate(seqs)
    ]
    table, groups = build(rows, FACTS)
    assert table.group_by("group", "seq").len()["len"].to_list() == [2] * 6
    assert table.filter(rank=1)["group"].to_list() == [0, 0, 0, 1, 1, 2]
    assert groups == [
        Group(0, "0", "default_pg", [0, 1]),
        Group(1, "0", "default_pg, generation 2: made anew under the same name", [0, 1]),
        Group(2, "0", "default_pg, generation 3: made anew under the same name", [0, 1]),
    ]


def test_a_single_collective_in_each() -> None:
    rows = [{"rank": 0, "record": record, "seq": 1, "created": record} for record in range(2)]
    assert build(rows, FACTS)[0]["group"].to_list() == [0, 1]


def test_a_number_that_another_thread_overtook_begins_nothing() -> None:
    rows = [{"record": record, "seq": seq, "created": record} for record, seq in enumerate([1, 3, 2, 4])]
    assert set(build(rows, FACTS)[0]["group"]) == {0}


def test_coalesced_collectives_share_a_number() -> None:
    rows = [
        {"record": record, "seq": seq, "created": record, "op": "nccl:all_reduce"}
        for record, seq in enumerate([1, 2, 2, 2, 3])
    ]
    assert set(build(rows, FACTS)[0]["group"]) == {0}


def test_point_to_point_is_numbered_apart() -> None:
    rows = [
        {"record": record, "seq": seq, "created": record, "p2p": p2p}
        for record, (seq, p2p) in enumerate([(1, False), (1, True), (2, False), (1, True), (3, False)])
    ]
    assert set(build(rows, FACTS)[0]["group"]) == {0}
