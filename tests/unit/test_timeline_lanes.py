"""Lanes and ids of the timeline by themselves: slices nest or are disjoint, and no two ids are made one."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.report.lanes import DisjointLanes, NestingLanes, displaced
from distprof.report.window_events import Ids
from distprof.trace import tables as t

SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=40)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**70)), min_size=2, max_size=2, unique=True))
def test_no_two_ids_are_made_one(ids: list[tuple[int, int]]) -> None:
    flows = [Ids(f"1{rank:02}0").flow(number) for rank, number in ids]
    shared = [json.loads(Ids(f"1{rank:02}0").renamed(b'{"correlation": %d}' % number)) for rank, number in ids]
    assert flows == [each["correlation"] for each in shared]
    assert flows[0] != flows[1]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(5, 1005), ("0x5f", "0x1005f"), ("a", "100a"), (-5, -1005), (2**70, int(f"100{2**70}")), (1.5, "1001.5")],
)
def test_ids_keep_their_kind(number: object, expected: object) -> None:
    assert Ids("100").flow(number) == expected


@given(SLICES)
def test_slices_need_further_lanes_only_where_they_cross(slices: list[tuple[int, int]]) -> None:
    events = pl.DataFrame(
        [(0, 0, "cpu_op", "x", 1, start, end, True) for start, end in slices], schema=t.EVENTS, orient="row"
    )
    lanes = displaced(events, t.empty(t.KERNELS)).lanes
    cross = any(not nest_or_disjoint(*sorted((a, b), key=lambda s: (s[0], -s[1]))) for a in slices for b in slices)
    assert bool(lanes) == cross


def test_streams_of_two_devices_do_not_cross_each_other() -> None:
    kernels = pl.DataFrame(
        {"device": [0, 1, 1], "stream": [7, 7, 7], "start": [0, 5, 10], "end": [10, 15, 20]},
        schema_overrides={"device": pl.Int64, "stream": pl.Int64},
    )
    found = displaced(t.empty(t.EVENTS), kernels)
    assert found.lanes == {(("device", 1, 7), 10, 20): 1}


@given(SLICES)
def test_lanes_hold_what_they_promise(slices: list[tuple[int, int]]) -> None:
    ordered = sorted(slices, key=lambda s: (s[0], -s[1]))
    for lanes, allowed in ((NestingLanes(), nest_or_disjoint), (DisjointLanes(), disjoint)):
        placed: dict[int, list[tuple[int, int]]] = {}
        for one in ordered:
            placed.setdefault(lanes.place(*one), []).append(one)
        for members in placed.values():
            assert all(allowed(a, b) for i, a in enumerate(members) for b in members[i + 1 :])


def disjoint(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[1] <= b[0]


def nest_or_disjoint(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return disjoint(a, b) or (a[0] <= b[0] and b[1] <= a[1])
