"""What is told of clocks, in words and figures: `align` of worlds made by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from distprof.clock.align import _figures, _placed, align
from distprof.clock.ends import Line
from distprof.clock.evidence import gather
from distprof.clock.fit import Fit
from distprof.clock.shift import Correction, corrections
from distprof.result import Clock
from distprof.trace.tables import EVENTS, KERNELS, PROBES, Tables
from tests.unit.tables import Call, Zone, ns, tables

NO_OFFSET = "no collective or probe compares its clock with the others' from both sides"
NO_BOUND = "no collective that binds its members and no probe compares it with the others' from both sides"
NO_ERROR = "fewer than two symmetric collectives are known to have ended on it and on others"
NO_ENDS = "the ends of no symmetric collective are known on several ranks whose clocks are aligned"
SHARED = "the ranks share one clock; no bound was measured"
UNALIGNED = (
    "the ranks ran on several hosts, or it is not known on which, and too little was recorded to align their clocks"
)

Told = dict[str, tuple[list[int] | None, str]]


def world(hosts: str, calls: Sequence[Call] = (), **more: Any) -> Tables:
    """Ranks of hosts that are called by a letter each."""
    facts = {rank: {"host": host, "boot_id": "1"} for rank, host in enumerate(hosts)}
    zones = [Zone(rank, "forward", 0, 1000) for rank in facts]
    return tables(ranks=sorted(facts), zones=zones, calls=calls, facts=facts, **more)


def met(*ahead: float, by_s: Mapping[int, float] | None = None, **more: Any) -> list[Call]:
    """Forty collectives, one each 20 ms, of ranks whose clocks are ahead by so many ms, and `by_s` more from 420 on."""
    calls = []
    for seq in range(1, 41):
        for rank, by in enumerate(ahead):
            when = 20.0 * seq + by + ((by_s or {}).get(rank, 0.0) if seq > 20 else 0.0)
            calls.append(Call(rank, seq, created=when, ended=when + 0.5, **more))
    return calls


def probed(of: Tables, *rows: tuple[int, int, float, float, float, float]) -> Tables:
    made = [(rank, peer, *map(ns, times)) for rank, peer, *times in rows]
    return replace(of, probes=pl.DataFrame(made, schema=PROBES, orient="row"))


def told(of: Tables, **more: Any) -> tuple[Clock, Told]:
    clock, missing = align(of, **more)
    found = {note.what: (note.ranks, note.reason) for note in missing}
    assert len(found) == len(missing)
    return clock, found


def test_of_no_rank() -> None:
    clock, missing = align(world(""))
    assert clock == Clock(method="no rank left a recording", verdict="unaligned", reference_rank=None, ranks=[])
    assert missing == []


def test_one_clock() -> None:
    of = world("aa")
    shared: Told = {f"clock.ranks.{figure}": (None, SHARED) for figure in ("bound_us", "error_us")}
    clock, missing = told(of)
    assert clock.method == "all ranks ran in one boot of one host and read the same clock; nothing was subtracted"
    assert missing == {**shared, "clock.ends_apart_us": (None, NO_ENDS)}
    assert told(of, recorded=False)[0].method == (
        "all traces name one host, and their times count from 1970: taken for one clock; nothing was subtracted"
    )
    clock, missing = told(world("aa", met(0, 0)))
    assert (clock.verdict, clock.ends, clock.ends_apart_us) == ("same_host", 40, 0)
    assert missing == shared
    assert told(world("a"))[0].verdict == "same_host"


def test_nothing_compares_the_clocks() -> None:
    clock, missing = told(world("ab"))
    assert (clock.verdict, clock.reference_rank, clock.method) == ("unaligned", None, UNALIGNED)
    assert [(row.offset_us, row.drift_ppm, row.bound_us, row.error_us) for row in clock.ranks] == [(None,) * 4] * 2
    assert missing == {
        "clock.ends_apart_us": (None, NO_ENDS),
        "clock.ranks.offset_us": (None, NO_OFFSET),
        "clock.ranks.bound_us": (None, NO_BOUND),
        "clock.ranks.error_us": (None, NO_ERROR),
    }


def test_two_of_three_clocks_are_compared() -> None:
    clock, missing = told(world("abc", met(0, 40)))
    assert (clock.verdict, clock.reference_rank, clock.method) == ("unaligned", 0, UNALIGNED)
    assert [row.offset_us for row in clock.ranks] == [0, pytest.approx(40_000), None]
    assert missing == {
        "clock.ranks.offset_us": ([2], NO_OFFSET),
        "clock.ranks.bound_us": ([2], NO_BOUND),
        "clock.ranks.error_us": ([2], NO_ERROR),
    }


def test_all_clocks_are_compared() -> None:
    clock, missing = told(world("baab", met(0, 7, 7, 0)))
    assert (clock.verdict, clock.reference_rank) == ("aligned", 0)
    assert clock.method == (
        "offset and drift of each host's clock against that of rank 0, by what came before what in 40 collectives"
    )
    assert [row.rank for row in clock.ranks] == [0, 1, 2, 3]
    assert [row.same_as for row in clock.ranks] == [0, 1, 1, 0]
    assert [row.offset_us for row in clock.ranks] == pytest.approx([0, 7000, 7000, 0])
    assert missing == {}


def test_probes_count_too() -> None:
    clock, missing = told(
        probed(world("ab", met(0, 40)), (1, 0, 541, 501.5, 501.5, 542), (1, 0, 641, 601.5, 601.5, 642))
    )
    assert clock.method.endswith("by what came before what in 40 collectives and 2 probes")
    clock, missing = told(probed(world("ab"), (1, 0, 510.0, 500.1, 500.1, 510.2)))
    assert clock.method.endswith("by what came before what in 1 probe")
    assert (clock.verdict, clock.ends, clock.ends_apart_us) == ("aligned", 0, None)
    assert missing == {"clock.ends_apart_us": (None, NO_ENDS), "clock.ranks.error_us": ([1], NO_ERROR)}


def test_ends_lie_apart_by_what_nine_of_ten_do() -> None:
    """Of 40 collectives 30 end together and each other one 1 ms later than the one before."""
    calls = [
        replace(call, ended=(call.ended or 0) + max(call.seq - 30, 0)) if call.rank == 2 else call
        for call in met(0, 0, 0)
    ]
    clock, _ = told(world("aaa", calls))
    assert (clock.ends, clock.ends_apart_us) == (
        40,
        pytest.approx(np.quantile([0] * 30 + list(range(1, 11)), 0.9) * 1000),
    )
    alone = [call for call in calls if call.rank == 2 or call.seq > 20]
    assert told(world("aaa", alone))[0].ends == 20, "the others ended on one rank alone, as far as is known"


def test_a_clock_that_was_set() -> None:
    clock, missing = told(world("abc", met(0, 3, 0, by_s={2: 50})))
    assert (clock.verdict, clock.reference_rank) == ("unaligned", 0)
    assert clock.method == "no single offset and drift fits the clock of rank 2"
    ranks, reason = missing.pop("clock.ranks.offset_us")
    assert ranks == [2]
    assert re.fullmatch(
        r"its clock was set, or changed its rate, between 0\.401 and 0\.470 s after its first record, "
        r"by about \+50\.0\d\d ms: no offset holds for all of the run",
        reason,
    )
    assert missing == {}


def test_one_of_two_clocks_was_set() -> None:
    clock, missing = align(world("abb", met(0, 0, 0, by_s={1: -50, 2: -50})))
    assert (clock.verdict, clock.reference_rank) == ("unaligned", None)
    assert clock.method == "no single offset and drift fits the clock of ranks 1, 2"
    assert [(note.what, note.ranks) for note in missing] == [
        ("clock.ranks.offset_us", [1, 2]),
        ("clock.ends_apart_us", None),
        ("clock.ranks.offset_us", [0]),
        ("clock.ranks.bound_us", [0]),
        ("clock.ranks.error_us", [0]),
    ]
    assert re.fullmatch(
        r"its clock, or that of rank 0, was set, or changed its rate, between 0\.371 and 0\.400 s after its first "
        r"record, by about -(49\.999|50\.00\d) ms: no offset holds for all of the run",
        missing[0].reason,
    )


def test_several_clocks_were_set() -> None:
    clock, _ = align(world("abcdee", met(0, 0, 0, 0, 0, 0, by_s={3: 50, 4: 90, 5: 90})))
    assert clock.method == "no single offset and drift fits the clock of rank 3, ranks 4, 5"


def test_figures_are_in_microseconds_and_millionths() -> None:
    line = Line(0.0, 0.0, 0.0)
    assert _figures(Correction(1_500, 2e-4, 0), Fit(line, 2_500.0, 3_500.0)) == {
        **{"offset_us": 1.5, "drift_ppm": 200.0},
        **{"bound_us": 2.5, "error_us": 3.5},
    }
    assert list(_figures(Correction(1_500, 0.0, 0), Fit(line, None, None)).values()) == [1.5, 0, None, None]
    assert list(_figures(None, None).values()) == [None] * 4


def test_a_clock_that_was_set_twice_is_off_by_no_known_amount() -> None:
    calls = [
        replace(call, created=call.created - 50, ended=(call.ended or 0) - 50)
        if call.rank == 2 and call.seq > 30
        else call
        for call in met(0, 0, 0, by_s={2: 50})
    ]
    _, missing = told(world("abc", calls))
    _, reason = missing["clock.ranks.offset_us"]
    assert " after its first record: no offset" in reason


def test_ranks_of_one_host_that_differ() -> None:
    clock, missing = told(world("aa", met(0, 250)))
    assert (clock.verdict, [row.same_as for row in clock.ranks]) == ("aligned", [0, 1])
    text = "they name one host and boot, and what they recorded contradicts one clock: each was aligned by itself"
    assert missing == {"clock.ranks.same_as": ([0, 1], text)}


def test_probes_that_were_off() -> None:
    def off(reason: str | None, status: str = "off") -> dict[str, Any]:
        return {"host": "a", "boot_id": "1", "probes": {"status": status, "reason": reason}}

    facts = {
        4: off("no port"),
        0: off("told so"),
        1: off("no port"),
        2: off(None),
        3: off("well", "on"),
        5: {"probes": 3},
    }
    made = tables(ranks=range(6), facts=facts)
    notes = [(note.ranks, note.reason) for note in align(made)[1] if note.what == "clock.probes"]
    assert notes == [([0], "told so"), ([1, 4], "no port")]
    of_two = tables(ranks=[0], world_size=2, facts={0: off("no port")})
    assert [note.ranks for note in align(of_two)[1] if note.what == "clock.probes"] == [[0]]
    alone = tables(ranks=[0], facts={0: off("no port")})
    assert [note for note in align(alone)[1] if note.what == "clock.probes"] == []


@pytest.mark.parametrize("drift", [0.0, 1e-3, -4e-4])
@pytest.mark.parametrize("origin", [3_000, 900_000_000])
def test_a_line_becomes_a_correction(drift: float, origin: int) -> None:
    """Clock 1 is 700 ahead at first and by its drift more in its 1 s: that is taken from all that it reads."""
    first, span = 5_000, 1_000_000_000
    spans = np.array([[2_000, 9_000], [first, first + span]])
    evidence = replace(gather(world("ab")), spans=spans)
    by = _placed(evidence, 1, 0, Line(700.0, 700.0 + drift * span, 0.0), origin)
    assert (by.drift, by.origin_ns) == (pytest.approx(drift), origin)
    since = np.array([0, span // 3, span])
    expected = 2_000 + since - (700 + drift * since)
    assert np.abs(by(first + since) - expected).max() <= 1
    at = np.array([origin])
    assert by(at + by.offset_ns).tolist() == [origin]


def test_a_clock_that_was_read_once_does_not_drift() -> None:
    evidence = replace(gather(world("ab")), spans=np.array([[2_000, 9_000], [5_000, 5_000]]))
    assert _placed(evidence, 1, 0, Line(700.0, 700.0, 0.0), 2_000).drift == 0


def test_figures_of_a_drifting_clock() -> None:
    """It gains 1 ms in 10 s, and began when the reference had read 5 ms."""
    calls = []
    for seq in range(40):
        when = 250.0 * seq
        calls += [Call(0, seq, when, when + 0.5)]
        calls += [Call(1, seq, when * 1.0001 + 30, when * 1.0001 + 30.5)]
    clock, missing = told(replace(world("ab", calls), zones=world("").zones))
    assert clock.origin_unix_ns == 0
    assert missing == {}
    row = clock.ranks[1]
    assert row.offset_us == pytest.approx(30_000, abs=1)
    assert row.drift_ppm == pytest.approx(100, rel=1e-3)
    assert row.bound_us is not None and row.error_us is not None
    assert row.error_us < 1
    assert 400 < row.bound_us < 600, "half of a ms"
    moved = corrections(clock).of(1)(np.array([ns(30), ns(30 + 5000.5)]))
    assert moved.tolist() == pytest.approx([0, ns(5000)], abs=1000)
    assert clock.ends_apart_us == pytest.approx(0, abs=1)


def on_devices(
    *, ahead_ms: float = 0.0, far_us: float = 0.0, hosts: str = "aa", ranks: Sequence[int] = (0, 1)
) -> Tables:
    """All-reduces that begin 15 us (of rank 1 20) after their launch, and waits that return 15 us (25) after them.

    Args:
        ahead_ms: what the devices read more than the hosts.
        far_us: what rank 1's device reads more than that.
    """
    kernels, events, calls = [], [], []
    for rank in ranks:
        off = ahead_ms + (far_us / 1000 if rank else 0)
        launch, back = (0.015, 0.015) if rank == 0 else (0.020, 0.025)
        for seq in range(1, 41):
            began = 10.0 * seq
            started, ended = began + off, began + 1 + off
            calls.append(Call(rank, seq, created=began - launch, started=started, ended=ended))
            times = {"start": ns(started), "end": ns(ended), "launched": ns(began - launch)}
            kernel = {"rank": rank, "cat": "kernel", "device": rank, "collective": "all_reduce", **times}
            kernels.append({**kernel, "launch_end": ns(began - launch) + 3000})
            wait = {"rank": rank, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize"}
            events.append({**wait, "start": ns(began), "end": ns(began + 1 + back)})
    return replace(
        world(hosts, calls),
        kernels=pl.DataFrame(kernels, schema=KERNELS),
        events=pl.DataFrame(events, schema=EVENTS),
        arrival="started",
    )


def test_devices_are_put_on_their_hosts_clock_as_far_as_launches_and_waits_tell() -> None:
    """They are 1 s ahead, or, as the tighter of the ranks tells, up to 15 us less."""
    clock, missing = told(on_devices(ahead_ms=1000, far_us=45))
    assert (clock.verdict, clock.reference_rank) == ("aligned", 0)
    assert clock.method.startswith("offset and drift of each device's clock against that of rank 0, by what")
    assert [row.offset_us for row in clock.devices] == pytest.approx([999_985, 1_000_030], abs=0.1)
    assert [row.drift_ppm for row in clock.devices] == pytest.approx([0, 0], abs=1e-6)
    assert [row.behind_host_us for row in clock.devices] == pytest.approx([-1_000_015, -1_000_065])
    assert [row.behind_host_most_us for row in clock.devices] == pytest.approx([-999_985, -1_000_020])
    assert [(row.rank, row.same_as) for row in clock.devices] == [(0, 0), (1, 1)]
    assert missing == {f"clock.ranks.{figure}": (None, SHARED) for figure in ("bound_us", "error_us")}
    behind, _ = told(on_devices(ahead_ms=-1000))
    assert [row.offset_us for row in behind.devices] == pytest.approx([-999_985, -999_985], abs=0.1)


def test_hosts_are_aligned_by_their_devices() -> None:
    clock, missing = told(on_devices(far_us=300, hosts="ab"))
    assert (clock.verdict, clock.reference_rank) == ("aligned", 0)
    assert [row.rank for row in clock.ranks] == [0, 1]
    # A launch is taken to take as long on both, and on rank 1 it took 5 us more.
    assert clock.ranks[1].offset_us == pytest.approx(-5, abs=0.1)
    assert missing.keys() <= {"clock.ranks.bound_us", "clock.ranks.error_us"}


def test_a_device_of_one_rank_only() -> None:
    clock, missing = told(on_devices(ranks=[0]))
    assert (clock.verdict, [row.rank for row in clock.devices]) == ("same_host", [0])
    assert "clock.devices.offset_us" not in missing


def test_what_is_not_known_of_devices() -> None:
    of = on_devices()
    apart = replace(of, collectives=of.collectives.with_columns(seq=pl.col("seq") + 100 * pl.col("rank")))
    unlaunched = apart.kernels.with_columns(
        launched=pl.when(pl.col("rank") == 0).then("launched"),
        launch_end=pl.when(pl.col("rank") == 0).then("launch_end"),
    )
    clock, missing = told(replace(apart, kernels=unlaunched))
    assert clock.devices[0].offset_us == 0
    no_launch = "no kernel's launch was recorded, or the rank used several devices"
    no_wait = "no synchronisation with the whole device was recorded that agrees with its launches"
    assert missing["clock.devices.behind_host_us"] == ([1], no_launch)
    assert missing["clock.devices.behind_host_most_us"] == ([1], no_wait)
    assert missing["clock.devices.offset_us"] == ([1], NO_OFFSET)
    assert missing["clock.devices.bound_us"] == ([1], NO_BOUND)
    assert missing["clock.devices.error_us"] == ([1], NO_ERROR)
