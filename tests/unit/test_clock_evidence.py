"""Which moments of clocks are known to have come before which; times are ms in tables and ns in evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from distprof.clock.evidence import CONVERTED_NS, Dial, Evidence, _tightest, gather, with_device
from distprof.trace.tables import EVENTS, KERNELS, PROBES, Tables
from tests.unit.tables import Call, Operator, Step, Zone, ns, tables

ROUNDED = 2_000  # of what a collective's end is told by
Moment = tuple[int, int, float]  # meeting, clock, ms


def facts(*hosts: str) -> dict[int, dict[str, Any]]:
    return {rank: {"host": host, "boot_id": "1"} for rank, host in enumerate(hosts)}


def world(calls: Iterable[Call], hosts: str = "abcd", **more: Any) -> Tables:
    """Ranks of hosts that are called by a letter each; by default each rank has its own."""
    return tables(ranks=range(len(hosts)), calls=calls, facts=facts(*hosts), **more)


def met(seq: int, *times: tuple[float, float | None], **more: Any) -> list[Call]:
    """A collective of the first ranks: when each came, and when it ended."""
    return [Call(rank, seq, created=start, ended=end, **more) for rank, (start, end) in enumerate(times)]


def moments(table: pl.DataFrame, rounded: int = 0) -> list[Moment]:
    assert table.columns == ["meeting", "clock", "time"]
    assert table["meeting"].is_sorted()
    return sorted((meeting, clock, (time - rounded) / 1e6) for meeting, clock, time in table.rows())


def bound(of: Tables) -> tuple[list[Moment], list[Moment]]:
    """The moments before and after of its collectives."""
    found = gather(of)
    return moments(found.before), moments(found.after, ROUNDED)


def ends(found: Evidence) -> list[tuple[int, ...]]:
    assert found.ends.columns == ["meeting", "rank", "clock", "time"]
    return sorted((meeting, rank, clock, time // 1_000_000) for meeting, rank, clock, time in found.ends.rows())


def test_no_end_of_a_collective_comes_before_any_start() -> None:
    of = world([*met(7, (10, 20), (12, 21)), *met(8, (30, 40), (32, 41))], "ab")
    assert bound(of) == (
        [(0, 0, 10), (0, 1, 12), (1, 0, 30), (1, 1, 32)],
        [(0, 0, 20), (0, 1, 21), (1, 0, 40), (1, 1, 41)],
    )
    assert ends(gather(of)) == [(0, 0, 0, 20), (0, 1, 1, 21), (1, 0, 0, 40), (1, 1, 1, 41)]
    started = [replace(call, started=call.created + 1) for call in met(7, (10, 20), (12, 21))]
    assert bound(world(started, "ab"))[0] == [(0, 0, 11), (0, 1, 13)]


def test_groups_numbers_and_kinds_are_meetings_of_their_own() -> None:
    calls = [
        *met(1, (10, 20), (12, 21)),
        *met(1, (30, 40), (32, 41), kind="barrier"),
        *met(1, (50, 60), (52, 61), group=1),
    ]
    assert [meeting for meeting, *_ in bound(world(calls, "ab", groups=[[0, 1], [0, 1]]))[0]] == [0, 0, 1, 1, 2, 2]


def test_of_ranks_that_read_one_clock_the_last_start_and_the_first_end() -> None:
    of = world(met(1, (10, 20), (12, 21), (11, 22), (13, 19)), "aabb")
    assert bound(of) == ([(0, 0, 12), (0, 1, 13)], [(0, 0, 20), (0, 1, 19)])
    assert [rank for _, rank, *_ in ends(gather(of))] == [0, 1, 2, 3]


def test_an_end_that_was_not_seen_leaves_the_start() -> None:
    of = world(met(1, (10, 20), (12, None)), "ab")
    assert bound(of) == ([(0, 0, 10), (0, 1, 12)], [(0, 0, 20)])
    assert ends(gather(of)) == [(0, 0, 0, 20)]


@pytest.mark.parametrize(
    "calls",
    [
        met(1, (10, None), (12, None)),  # nobody saw it end
        met(1, (10, 20)),  # nobody else was there
        [*met(1, (10, 20), (12, 21)), *met(1, (30, 40), (32, 41))],  # two share a number
        [*met(1, (10, 20), (12, 21)), *met(1, (30, 40))],
        [*met(1, (10, 20)), Call(2, 1, 30, 40), Call(2, 1, 50, 60)],
    ],
)
def test_what_is_no_meeting(calls: list[Call]) -> None:
    of = world(calls)
    assert bound(of) == ([], [])
    assert ends(gather(of)) == []


def test_of_one_host_alone_nothing_is_bound() -> None:
    of = world(met(1, (10, 20), (12, 21)), "aa")
    assert bound(of) == ([], [])
    assert len(ends(gather(of))) == 2


def test_what_ends_before_it_starts_tells_nothing() -> None:
    assert bound(world(met(1, (10, 20), (12, 11), (13, 21)), "abc")) == (
        [(0, 0, 10), (0, 2, 13)],
        [(0, 0, 20), (0, 2, 21)],
    )
    assert bound(world(met(1, (10, 20), (12, 12)), "ab"))[1] == [(0, 0, 20), (0, 1, 12)]


def test_a_clock_that_contradicts_itself_tells_nothing_of_that_meeting() -> None:
    """Rank 1 came after rank 0, of the same host, was done."""
    of = world(met(1, (10, 11), (10.05, 21), (13, 22), (14, 23)), "aabc")
    assert [clock for _, clock, _ in bound(of)[0]] == [0, 1, 2]
    of = world([*met(1, (10, 11), (11.05, 21), (13, 22), (14, 23)), *met(2, (30, 40), (31, 41))], "aabc")
    assert bound(of)[0] == [(0, 1, 13), (0, 2, 14)]
    same = world(met(1, (10, 11), (11, 21), (13, 22)), "aab")
    assert bound(same)[1] == [(0, 0, 11), (0, 1, 22)]


def test_a_broadcast_binds_ends_to_its_roots_start() -> None:
    of = world(met(1, (10, 20), (12, 21), (9, 22), kind="broadcast", root=1), "abc")
    assert bound(of) == ([(0, 1, 12)], [(0, 0, 20), (0, 1, 21), (0, 2, 22)])
    assert ends(gather(of)) == [], "and they need not be one moment"


def test_a_reduce_binds_its_roots_end_to_all_starts() -> None:
    of = world(met(1, (10, 20), (12, 21), (9, 22), kind="reduce", root=1), "abc")
    assert bound(of) == ([(0, 0, 10), (0, 1, 12), (0, 2, 9)], [(0, 1, 21)])
    unseen = met(1, (10, 20), (12, None), (9, 22), kind="reduce", root=1)
    assert bound(world(unseen, "abc")) == ([], [])
    elsewhere = met(1, (10, 20), (12, 21), (9, 22), kind="broadcast", root=3)
    assert bound(world(elsewhere)) == ([], []), "the root did not record it"


def test_a_root_is_known_if_all_who_tell_one_tell_the_same() -> None:
    calls = met(1, (10, 20), (12, 21), (9, 22), kind="broadcast")
    told = [replace(call, root=1) if call.rank == 2 else call for call in calls]
    assert [clock for _, clock, _ in bound(world(told, "abc"))[0]] == [1]
    differing = [replace(call, root=call.rank % 2) for call in calls]
    assert bound(world(differing, "abc")) == bound(world(calls, "abc")) == ([], [])


@pytest.mark.parametrize(
    ("more", "binds"),
    [
        ({}, True),
        ({"bytes": None}, True),
        ({"bytes": 1}, True),
        ({"bytes": 0}, False),
        ({"bytes": 0, "kind": "barrier"}, True),
        ({"kind": "all_gather"}, True),
        ({"kind": "all_to_all"}, False),
    ],
)
def test_what_may_wait_for_nobody_binds_nobody(more: dict[str, Any], binds: bool) -> None:
    calls = met(1, (10, 20), (12, 21))
    of = world(
        [calls[0], replace(calls[1], **more)] if "kind" not in more else [replace(c, **more) for c in calls], "ab"
    )
    assert (bound(of) != ([], [])) == binds
    assert len(ends(gather(of))) == 2, "and ends are still taken for one moment"


def test_sends_are_no_meetings() -> None:
    assert ends(gather(world(met(1, (10, 20), (12, 21), kind="send"), "ab"))) == []


def probed(of: Tables, *rows: tuple[int, int, float, float, float, float]) -> Tables:
    """With probes: rank, peer, and four times in ms."""
    made = [(rank, peer, *map(ns, times)) for rank, peer, *times in rows]
    return replace(of, probes=pl.DataFrame(made, schema=PROBES, orient="row"))


def test_a_probe_is_two_messages() -> None:
    calls = met(1, (10, 20), (12, 21))
    found = gather(probed(world(calls, "aab"), (2, 0, 50, 51, 52, 53), (0, 1, 60, 61, 62, 63)))
    assert found.probes == 2, "of which one says nothing, since both read one clock"
    assert moments(found.before) == [(2, 1, 50), (3, 0, 52)]
    assert moments(found.after, 2) == [(2, 0, 51), (3, 1, 53)]


def device_world(
    launches: Iterable[tuple[int, float, float]], waits: Iterable[tuple[int, float, float]] = (), **more: Any
) -> Tables:
    """Kernels: rank, launched (the call takes 1 us), start; each takes 1 ms. Waits: rank, start, end."""
    kernels = [
        {
            **{"rank": rank, "cat": "kernel", "device": 0, "start": ns(start), "end": ns(start + 1)},
            **{"launched": ns(launched), "launch_end": ns(launched) + 1000},
        }
        for rank, launched, start in launches
    ]
    calls = [
        {"rank": rank, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "start": ns(start), "end": ns(end)}
        for rank, start, end in waits
    ]
    return replace(
        world([], "ab"),
        kernels=pl.DataFrame([{**kernel, **more} for kernel in kernels], schema=KERNELS),
        events=pl.DataFrame(calls, schema=EVENTS),
    )


def messages(table: pl.DataFrame) -> list[tuple[int, float, int, float]]:
    rows = table.select("sender", "sent", "receiver", "received").rows()
    return sorted((sender, sent / 1e6, receiver, received / 1e6) for sender, sent, receiver, received in rows)


def test_devices_are_clocks_after_all_hosts() -> None:
    found = gather(device_world([(1, 10, 11)]))
    assert found.dials == [Dial((0,)), Dial((1,)), Dial((1,), device=True)]
    assert found.of_host() == {0: 0, 1: 1}
    assert found.of_device() == {1: 2}


def test_a_kernel_begins_after_its_launch() -> None:
    found = gather(device_world([(0, 10, 10.5), (1, 10, 11)]))
    assert messages(found.launches) == [(0, 10, 2, 10.5), (1, 10, 3, 11)]
    assert moments(found.before) == [(0, 0, 10), (1, 1, 10)]
    assert moments(found.after, CONVERTED_NS) == [(0, 2, 10.5), (1, 3, 11)]
    assert messages(gather(device_world([(0, 10, 10.5)], launched=None)).launches) == []


def test_only_the_tightest_launches_are_kept() -> None:
    launches = [(0, 10, 10.5), (0, 20, 20.6), (0, 30, 31), (0, 40, 40.4), (0, 50, 50.9)]
    assert [row[1] for row in messages(gather(device_world(launches)).launches)] == [10, 40, 50]


def test_no_ns_of_a_launch_is_lost() -> None:
    received = 1_790_857_026_123_456_789 + np.array([0, 100, 200])
    found = _tightest(3, received - np.array([10, 5, 10]), 7, received)
    assert found.select("sender", "receiver").unique().rows() == [(3, 7)]
    assert found["received"].to_list() == received.tolist()


def test_what_was_launched_is_over_when_a_wait_for_the_device_returns() -> None:
    launches = [(0, 10, 10.5), (0, 11, 12), (0, 30, 30.5), (1, 5, 6)]
    waits = [(0, 9, 9.5), (0, 15, 16), (0, 30.001, 33), (1, 20, 21)]
    found = gather(device_world(launches, waits))
    assert messages(found.synchronisations) == [(2, 13, 0, 16), (2, 31.5, 0, 33), (3, 7, 1, 21)]
    number = len(found.launches)  # meetings are counted on
    assert moments(found.before)[-3:] == [(number, 2, 13), (number + 1, 2, 31.5), (number + 2, 3, 7)]
    assert moments(found.after, CONVERTED_NS)[-3:] == [(number, 0, 16), (number + 1, 0, 33), (number + 2, 1, 21)]


def test_a_kernel_that_was_launched_early_may_end_late() -> None:
    launches = [(0, 10, 19), (0, 11, 12)]
    assert messages(gather(device_world(launches, [(0, 15, 21)])).synchronisations) == [(2, 20, 0, 21)]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("hipDeviceSynchronize", 1),
        ("cudaStreamSynchronize", 0),
        ("xcudaDeviceSynchronize", 0),
        ("cudaDeviceSynchronize_v2", 0),
    ],
)
def test_waits_by_name(name: str, waits: int) -> None:
    of = device_world([(0, 10, 10.5)], [(0, 15, 16)])
    named = gather(replace(of, events=of.events.with_columns(name=pl.lit(name))))
    assert len(named.synchronisations) == waits


def test_ranks_that_use_several_devices_have_no_clock_for_them() -> None:
    of = device_world([(0, 10, 10.5), (0, 20, 20.5), (1, 10, 10.5)], [(0, 25, 26)])
    both = of.kernels.with_columns(device=pl.Series([0, 1, 0], dtype=pl.Int64))
    found = gather(replace(of, kernels=both))
    assert [row[0] for row in messages(found.launches)] == [1]
    assert messages(found.synchronisations) == []


def test_what_a_device_carried_out_is_known_by_its_kernel() -> None:
    calls = [Call(0, 1, created=10, started=11, ended=12), Call(0, 2, created=20, started=21, ended=22)]
    kernels = [
        {"rank": 0, "start": ns(11), "collective": "all_reduce"},
        {"rank": 0, "start": ns(11), "collective": "all_reduce"},
        {"rank": 0, "start": ns(21), "collective": None},
        {"rank": 1, "start": ns(21), "collective": "all_reduce"},
    ]
    of = replace(world(calls, "ab"), kernels=pl.DataFrame(kernels, schema=KERNELS))
    found = with_device(of)
    assert found.select("seq", "device").rows() == [(1, True), (2, False)]
    assert found.columns == [*of.collectives.columns, "device"]


def test_collectives_of_devices_are_on_their_clocks() -> None:
    calls = [Call(rank, 1, created=10, started=11 + rank, ended=13) for rank in (0, 1)]
    kernels = [{"rank": rank, "start": ns(11 + rank), "end": ns(13), "collective": "all_reduce"} for rank in (0, 1)]
    of = replace(world(calls, "aa"), kernels=pl.DataFrame(kernels, schema=KERNELS))
    assert bound(of) == ([(0, 1, 11), (0, 2, 12)], [(0, 1, 13), (0, 2, 13)])


def spans(of: Tables) -> list[list[float]]:
    found = gather(of).spans
    return [[first / 1e6, last / 1e6] for first, last in found.tolist()]


def test_spans_are_from_the_first_to_the_last_record() -> None:
    base = tables(ranks=[0, 1], facts=facts("a", "b"))
    zones = tables(ranks=[0, 1], facts=facts("a", "b"), zones=[Zone(0, "forward", 5, 9), Zone(1, "forward", 6, 8)])
    assert spans(base) == [[0, 0], [0, 0]]
    assert spans(zones) == [[5, 9], [6, 8]]
    assert spans(replace(zones, facts=facts("a", "a"))) == [[5, 9]]
    steps = tables(ranks=[0, 1], facts=facts("a", "b"), steps=[Step(1, 0, 3, 7)]).steps
    assert spans(replace(zones, steps=steps)) == [[5, 9], [3, 8]]
    windows = tables(ranks=[0, 1], facts=facts("a", "b"), windows=[(0, 7, 12)]).windows
    assert spans(replace(zones, windows=windows)) == [[5, 12], [6, 8]]
    events = tables(ranks=[0, 1], facts=facts("a", "b"), operators=[Operator(0, 1, 11)]).events
    assert spans(replace(zones, events=events)) == [[1, 11], [6, 8]]
    for device in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"):
        assert spans(replace(zones, events=events.with_columns(cat=pl.lit(device)))) == [[5, 9], [6, 8]]
    calls = world([Call(1, 1, created=2, ended=99), Call(0, 2, created=10)], "ab").collectives
    assert spans(replace(zones, collectives=calls)) == [[5, 10], [2, 8]]
    kernels = pl.DataFrame([{"rank": 1, "start": ns(1), "end": ns(4)}], schema=KERNELS)
    assert spans(replace(zones, kernels=kernels)) == [[5, 9], [6, 8], [1, 4]]
    assert spans(probed(zones, (0, 1, 3, 2, 20, 30))) == [[3, 30.000002], [2.000002, 20]]
    met_late = replace(zones, collectives=world(met(1, (6, 20), (7, 21)), "ab").collectives)
    assert spans(met_late) == [[5, 20.002], [6, 21.002]]


@pytest.mark.parametrize(
    ("of", "hosts"),
    [
        ({0: ("a", "1"), 1: ("b", "1"), 2: ("a", "1")}, [(0, 2), (1,)]),
        ({0: ("a", "1"), 1: ("a", "2"), 2: ("a", "1")}, [(0, 2), (1,)]),
        ({0: ("a", None), 1: ("a", None), 2: (None, "1")}, [(0,), (1,), (2,)]),
        ({0: ("a", "1"), 2: ("a", "1")}, [(0, 2), (1,)]),
    ],
)
def test_ranks_by_the_clock_that_they_read(of: Mapping[int, tuple[str, str]], hosts: list[tuple[int, ...]]) -> None:
    told = {rank: {"host": host, "boot_id": boot} for rank, (host, boot) in of.items()}
    found = gather(tables(ranks=[0, 1, 2], facts=told))
    assert [dial.ranks for dial in found.dials] == hosts
    assert found.differ == []


def apart(count: int, of: int, by_us: float, **more: Any) -> Tables:
    """Ranks 1 and 3 read one clock; in so many of their collectives rank 3 comes so long after rank 1 was done."""
    calls = []
    for seq in range(of):
        late = 1 + by_us / 1000 if seq < count else 0.5
        calls += [Call(1, seq, 10 * seq, 10 * seq + 1, **more), Call(3, seq, 10 * seq + late, 10 * seq + 5, **more)]
    return world(calls, "baca")


@pytest.mark.parametrize(
    ("late", "more", "differ"),
    [
        ((1, 1, 101), {}, False),  # once may be while it was set
        ((2, 2, 101), {}, True),
        ((2, 20, 101), {}, True),
        ((2, 21, 101), {}, False),
        ((3, 20, 100), {}, False),
        ((3, 20, 101), {"kind": "barrier", "bytes": 0}, True),
        ((3, 20, 101), {"bytes": 0}, False),
        ((3, 20, 101), {"kind": "all_to_all"}, False),
        ((3, 20, 101), {"kind": "reduce", "root": 1}, False),
    ],
)
def test_ranks_of_one_host_that_contradict_each_other_read_no_common_clock(
    late: tuple[int, int, float], more: dict[str, Any], differ: bool
) -> None:
    found = gather(apart(*late, **more))
    assert found.differ == ([1, 3] if differ else [])
    assert [dial.ranks for dial in found.dials] == ([(0,), (1,), (2,), (3,)] if differ else [(0,), (1, 3), (2,)])


def test_devices_that_contradict_each_other_are_clocks_of_their_own_anyway() -> None:
    of = apart(3, 20, 101)
    calls = of.collectives.with_columns(started="created")
    kernels = calls.select("rank", start="started", end="ended", collective="kind").to_dicts()
    found = gather(replace(of, collectives=calls, kernels=pl.DataFrame(kernels, schema=KERNELS)))
    assert found.differ == []


def test_a_rank_that_left_nothing_but_collectives_has_no_clock() -> None:
    calls = [*met(1, (10, 20), (12, 21)), Call(5, 1, 11, 22), Call(5, 2, 30, 40)]
    found = gather(world(calls, "aa"))
    assert ([dial.ranks for dial in found.dials], found.differ) == ([(0, 1)], [])
    assert len(found.ends) == 2
