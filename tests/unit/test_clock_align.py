"""Which clocks there are, what is known of them, and what is said where nothing is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.clock.align import align
from distprof.clock.evidence import gather
from distprof.result import ClockRow
from distprof.trace.tables import EVENTS, KERNELS, PROBES, Tables
from tests.unit.tables import Call, Zone, ns, tables

HERE: dict[str, Any] = {"host": "a", "boot_id": "1"}
THERE: dict[str, Any] = {"host": "b", "boot_id": "2"}


def of(facts: Mapping[int, Mapping[str, Any]], calls: Iterable[Call] = ()) -> Tables:
    zones = [Zone(rank, "forward", 0, 1000) for rank in facts]
    return tables(ranks=sorted(facts), zones=zones, calls=calls, facts=facts)


def met(seq: int, starts: Mapping[int, float], ends: Mapping[int, float], **more: Any) -> list[Call]:
    """A collective: rank -> when it came, and when it ended, in ms on its own clock."""
    return [Call(rank, seq, created=start, ended=ends.get(rank), **more) for rank, start in starts.items()]


def probed(of_tables: Tables, *rows: tuple[int, int, float, float, float, float]) -> Tables:
    """With probes: rank, peer, and four times in ms."""
    made = [(rank, peer, *map(ns, times)) for rank, peer, *times in rows]
    return replace(of_tables, probes=pl.DataFrame(made, schema=PROBES, orient="row"))


def row_of(of_tables: Tables, rank: int = 1) -> ClockRow:
    return align(of_tables)[0].ranks[rank]


def test_one_boot_of_one_host_is_one_clock() -> None:
    clock, missing = align(of({1: HERE, 0: HERE, 2: HERE}))
    assert (clock.verdict, clock.reference_rank) == ("same_host", 0)
    assert [(row.rank, row.offset_us, row.drift_ppm) for row in clock.ranks] == [(rank, 0.0, 0.0) for rank in range(3)]
    assert all(row.bound_us is row.error_us is None for row in clock.ranks)
    assert {row.what for row in missing} == {"clock.ranks.bound_us", "clock.ranks.error_us", "clock.ends_apart_us"}


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
def test_other_hosts_other_boots_and_unknown_ones_are_not_aligned_without_evidence(other: dict[str, Any]) -> None:
    clock, missing = align(of({0: HERE, 1: other}))
    assert (clock.verdict, clock.reference_rank) == ("unaligned", None)
    assert [(row.rank, row.offset_us, row.drift_ppm) for row in clock.ranks] == [(0, None, None), (1, None, None)]
    assert {f"clock.ranks.{figure}" for figure in ("offset_us", "bound_us", "error_us")} <= {
        row.what for row in missing
    }


def test_an_unknown_host_is_no_common_one() -> None:
    assert align(of({0: {}, 1: {}}))[0].verdict == "unaligned"


def test_of_no_ranks_nothing_follows() -> None:
    clock, _ = align(of({}))
    assert (clock.verdict, clock.ranks) == ("unaligned", [])


def test_a_probe_bounds_a_clock_by_its_round_trip() -> None:
    """Sent at 500 and back at 500.2, answered at 510.1 of the peer: that is 10 +- 0.1 ms ahead."""
    facts = {0: HERE, 1: THERE}
    row = row_of(probed(of(facts), (1, 0, 510.0, 500.1, 500.1, 510.2)))
    drift_us = 500  # by the most that a clock may drift, in half of a second
    assert row.offset_us == pytest.approx(10_000, abs=drift_us)
    assert row.bound_us == pytest.approx(100 + drift_us, rel=0.03)
    assert row.error_us is None, "no collective ended"


def test_one_collective_bounds_and_only_several_ends_estimate() -> None:
    facts = {0: HERE, 1: THERE}
    first = met(1, {0: 100, 1: 140}, {0: 110, 1: 150})
    later = met(2, {0: 900, 1: 942}, {0: 912, 1: 952})
    alone, several = row_of(of(facts, first)), row_of(of(facts, first + later))
    assert alone.bound_us is not None and alone.error_us is None
    assert several.bound_us is not None and several.bound_us < alone.bound_us
    assert several.offset_us == pytest.approx(40_000, abs=2)
    assert several.error_us == pytest.approx(150), "150 ms without evidence at a drift of 1,000 ppm"


@pytest.mark.parametrize("changed", [{"kind": "all_to_all"}, {"kind": "broadcast"}, {"kind": "reduce"}, {"bytes": 0}])
def test_what_may_bind_nobody_gives_no_bound(changed: dict[str, Any]) -> None:
    calls = [call for seq in (1, 2) for call in met(seq, {0: 100 * seq, 1: 100 * seq}, {0: 110 * seq, 1: 110 * seq})]
    row = row_of(of({0: HERE, 1: THERE}, [replace(call, **changed) for call in calls]))
    assert row.bound_us is None
    assert (row.error_us is None) == (changed.get("kind") in ("broadcast", "reduce"))
    barrier = row_of(of({0: HERE, 1: THERE}, [replace(call, kind="barrier", bytes=0) for call in calls]))
    assert barrier.bound_us is not None


def test_collectives_that_share_a_number_are_not_told_apart() -> None:
    calls = met(1, {0: 100, 1: 100}, {0: 110, 1: 110}) + met(1, {0: 200, 1: 200}, {0: 210, 1: 210})
    assert align(of({0: HERE, 1: THERE}, calls))[0].verdict == "unaligned"


def test_knowledge_spreads_over_ranks_that_never_meet_the_reference() -> None:
    facts = {rank: {"host": f"h{rank}", "boot_id": "1"} for rank in range(4)}
    calls = []
    for group in range(3):  # rank g meets g + 1
        for seq in range(10):
            starts = {group + side: 100.0 * seq + side * 7 for side in (0, 1)}
            calls += met(seq, starts, {rank: start + 1 for rank, start in starts.items()}, group=group)
    made = tables(ranks=[0, 1, 2, 3], calls=calls, facts=facts, groups=[[0, 1], [1, 2], [2, 3]])
    clock, _ = align(made)
    assert clock.verdict == "aligned"
    assert [row.offset_us for row in clock.ranks] == pytest.approx([0, 7000, 14000, 21000], abs=1)
    bounds = [row.bound_us for row in clock.ranks]
    assert None not in bounds
    assert bounds == sorted(bounds)  # type: ignore[type-var]


def test_ranks_of_one_host_read_one_clock_unless_they_contradict_it() -> None:
    together = [
        call
        for seq in range(1, 6)
        for call in met(seq, {0: 100 * seq, 1: 100 * seq}, {0: 100 * seq + 2, 1: 100 * seq + 2})
    ]
    assert align(of({0: HERE, 1: HERE}, together))[0].verdict == "same_host"
    apart = [
        replace(call, created=call.created + 2500, ended=(call.ended or 0) + 2500) if call.rank else call
        for call in together
    ]
    clock, missing = align(of({0: HERE, 1: HERE}, apart))
    assert clock.verdict == "aligned"
    assert clock.ranks[1].offset_us == pytest.approx(2_500_000, abs=1)
    [note] = [row for row in missing if row.what == "clock.ranks.same_as"]
    assert note.ranks == [0, 1]


def test_a_clock_that_was_set_is_located_and_refused() -> None:
    facts = {0: HERE, 1: THERE, 2: {"host": "c", "boot_id": "3"}}
    calls = []
    for seq in range(1, 41):
        when = 20.0 * seq
        starts = {0: when, 1: when + 3, 2: when + (50 if seq > 20 else 0)}
        calls += met(seq, starts, {rank: start + 0.5 for rank, start in starts.items()})
    clock, missing = align(of(facts, calls))
    assert clock.verdict == "unaligned"
    assert [row.offset_us is None for row in clock.ranks] == [False, False, True]
    [note] = [row for row in missing if row.what == "clock.ranks.offset_us"]
    assert note.ranks == [2]
    assert "between 0.401 and 0.470 s" in note.reason
    assert "by about +50.0" in note.reason


def device_tables(*, early_us: float = 0.0, waits: bool = True) -> Tables:
    """Two ranks of one host; the second one's device reads `early_us` too little."""
    kernels, events, calls = [], [], []
    for rank in (0, 1):
        for seq in range(1, 11):
            launched, start = 10.0 * seq, 10.0 * seq + 0.015 - (early_us / 1000 if rank else 0)
            kernel = {
                "rank": rank,
                "window": 0,
                "cat": "kernel",
                "name": "nccl",
                "device": rank,
                "collective": "all_reduce",
            }
            times = {
                "start": ns(start),
                "end": ns(start + 1),
                "launched": ns(launched),
                "launch_end": ns(launched) + 3000,
            }
            kernels.append({**kernel, **times})
            calls.append(Call(rank, seq, created=launched, started=start, ended=start + 1))
            if waits:
                back = 10.0 * seq + 1.030
                event = {
                    "rank": rank,
                    "window": 0,
                    "cat": "cuda_runtime",
                    "name": "cudaDeviceSynchronize",
                    "leaf": False,
                }
                events.append({**event, "start": ns(launched) + 4000, "end": ns(back)})
    made = tables(ranks=[0, 1], calls=calls, facts={0: HERE, 1: HERE})
    return replace(
        made,
        kernels=pl.DataFrame(kernels, schema=KERNELS),
        events=pl.DataFrame(events, schema=EVENTS),
        arrival="started",
    )


def test_a_devices_clock_is_one_more_clock() -> None:
    clock, missing = align(device_tables(early_us=45))
    assert clock.verdict == "aligned"
    assert [row.offset_us for row in clock.ranks] == [0, 0]
    first, second = clock.devices
    assert (first.offset_us, second.offset_us) == pytest.approx((0, -45), abs=0.1)
    assert (first.behind_host_us, second.behind_host_us) == pytest.approx((-15, 30))
    assert (first.behind_host_most_us, second.behind_host_most_us) == pytest.approx((15, 60))
    assert second.error_us is not None and second.error_us < 20
    assert second.bound_us is not None
    assert not [row for row in missing if row.what == "clock.devices.behind_host_most_us"]


def test_without_a_synchronisation_it_is_open_how_far_a_device_is_behind() -> None:
    clock, missing = align(device_tables(waits=False))
    assert [row.behind_host_most_us for row in clock.devices] == [None, None]
    assert any(row.what == "clock.devices.behind_host_most_us" for row in missing)


def test_evidence_grows_with_ranks_and_not_with_pairs() -> None:
    facts = {rank: {"host": f"h{rank}", "boot_id": "1"} for rank in range(20)}
    calls = met(1, dict.fromkeys(range(20), 100.0), dict.fromkeys(range(20), 101.0))
    evidence = gather(of(facts, calls))
    assert (len(evidence.before), len(evidence.after)) == (20, 20)


def test_why_a_rank_did_not_probe_is_told() -> None:
    off = {"probes": {"status": "off", "reason": "rank 0 did not answer"}}
    facts = {0: {**HERE, "probes": {"status": "on", "reason": None}}, 1: {**THERE, **off}, 2: {**THERE, **off}}
    told = [row for row in align(of(facts))[1] if row.what == "clock.probes"]
    assert [(row.ranks, row.reason) for row in told] == [([1, 2], "rank 0 did not answer")]
