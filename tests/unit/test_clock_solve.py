"""What causality tells of clocks that send each other messages."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.clock.evidence import Evidence, gather
from distprof.clock.hull import Corridor
from distprof.clock.solve import Points, Step, _step, _width, solve
from distprof.trace.tables import PROBES
from tests.unit.mutants import examples
from tests.unit.tables import ns, tables

NOW = 1_790_857_026_123_456_789
SPAN_NS = 60_000_000_000


@st.composite
def clocks_and_messages(draw: st.DrawFn) -> tuple[list[int], list[float], list[tuple[int, int, int, int, int]]]:
    """Offsets, drifts, and probes: who, whom, when in true time, and the delays there and back."""
    count = draw(st.integers(2, 6))
    clocks = st.integers(0, count - 1)
    offsets = draw(st.lists(st.integers(-(10**12), 10**12), min_size=count, max_size=count))
    drifts = draw(st.lists(st.floats(-2e-4, 2e-4), min_size=count, max_size=count))
    delays = st.integers(0, 10**7)
    times = st.integers(0, SPAN_NS)
    return offsets, drifts, draw(st.lists(st.tuples(clocks, clocks, times, delays, delays), min_size=1, max_size=40))


@given(clocks_and_messages())
@examples(150, always_the_same=True)
def test_the_truth_lies_in_every_corridor(
    world: tuple[list[int], list[float], list[tuple[int, int, int, int, int]]],
) -> None:
    offsets, drifts, messages = world

    def local(clock: int, time: int) -> int:
        return NOW + time + offsets[clock] + round(drifts[clock] * time)

    rows = [
        (
            one,
            other,
            local(one, time),
            local(other, time + there),
            local(other, time + there),
            local(one, time + there + back),
        )
        for one, other, time, there, back in messages
        if one != other
    ]
    made = tables(
        ranks=range(len(offsets)), facts={rank: {"host": str(rank), "boot_id": "x"} for rank in range(len(offsets))}
    )
    evidence = gather(replace(made, probes=pl.DataFrame(rows, schema=PROBES, orient="row")))
    found = solve(evidence, 0)
    assert found.steps == {}
    own = evidence.of_host()
    for rank, clock in own.items():
        times = [0, SPAN_NS // 3, SPAN_NS]
        read = np.array([local(rank, time) - evidence.spans[clock, 0] for time in times], dtype=np.float64)
        reference = np.array([local(0, time) - evidence.spans[own[0], 0] for time in times], dtype=np.float64)
        rounded = 2.01  # of these times to whole ns, on both clocks
        assert (found.corridors[clock].least(read) <= read - reference + rounded).all()
        assert (found.corridors[clock].most(read) >= read - reference - rounded).all()


def answered(*probes: tuple[int, int, float]) -> Evidence:
    """Ranks of hosts whose clocks agree, which asked each other: who, whom, and how many ms that took."""
    ranks = range(1 + max(max(one, other) for one, other, _ in probes))
    rows = [(one, other, NOW, NOW + ns(took / 2), NOW + ns(took / 2), NOW + ns(took)) for one, other, took in probes]
    made = tables(ranks=ranks, facts={rank: {"host": str(rank), "boot_id": "x"} for rank in ranks})
    return gather(replace(made, probes=pl.DataFrame(rows, schema=PROBES, orient="row")))


def width_ms(found: Corridor) -> float:
    at = np.zeros(1)
    return float((found.most(at) - found.least(at))[0]) / 1e6


def test_what_is_known_better_makes_what_hangs_on_it_known_better() -> None:
    """The reference asks each clock, slowly, and each clock the next one, quickly; only the last is near to it."""
    slow = [(0, rank, 100.0) for rank in (1, 2, 3, 4)]
    quick = [(rank, rank + 1, 1.0) for rank in (1, 2, 3, 4)]
    widths = [width_ms(found) for found in solve(answered(*slow, *quick, (0, 5, 1.0)), 0).corridors]
    assert widths[0] == 0
    assert widths[1:] == sorted(widths[1:], reverse=True)
    assert widths[1] == pytest.approx(5, abs=1), "five times there and back, and some drift"


def test_it_stops_where_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = []

    def width(found: Corridor, span: float) -> float:
        spans.append(span)
        return _width(found, span)

    monkeypatch.setattr("distprof.clock.solve._width", width)
    solve(answered((0, 1, 2.0)), 0)
    assert spans == [2e6 + 2, 2] * 2, "in the second round, of both clocks; they are read in whole ns"


def parts(*of: tuple[float, float, float], drift: float = 0.0) -> Points:
    """Points 10 ns over and under a clock's deviation every 0.1 ms: from when to when it was so much ahead."""
    x = np.concatenate([np.arange(first, last + 1, 1e5) for first, last, _ in of])
    ahead = np.concatenate([np.full(len(np.arange(first, last + 1, 1e5)), ahead) for first, last, ahead in of])
    return x, ahead + drift * x + 10, x, ahead + drift * x - 10


@pytest.mark.parametrize("last", [0, 4e5, 8e5])
def test_a_clock_that_was_set_is_known_to_have_been_between_two_moments(last: float) -> None:
    assert _step(*parts((0, last, 0), (last + 1e5, 9e5, 1000))) == Step(last, last + 1e5, 1000)


def test_of_a_drifting_clock_it_is_known_as_well() -> None:
    found = _step(*parts((0, 1e5, 0), (2e5, 9e5, 1000), drift=2e-4))
    assert (found.first, found.last, found.by) == (1e5, 2e5, pytest.approx(1000, abs=1))


def test_one_that_then_goes_at_another_rate_was_set_by_what_it_differs_by_there() -> None:
    """From 0.5 ms on it gains 50 ns each 0.1 ms, and at 0.45 ms it would have been at 975."""
    x = np.arange(0, 1e6, 1e5)
    ahead = np.where(x < 5e5, 0, 1000 + 5e-4 * (x - 5e5))
    found = _step(x, ahead + 10, x, ahead - 10)
    assert (found.first, found.last, found.by) == (4e5, 5e5, pytest.approx(975, abs=1))


def test_a_clock_that_was_set_back_reads_some_times_twice() -> None:
    assert _step(*parts((0, 5e5, 0), (4e5, 9e5, -1e5))) == Step(4e5, 5e5, -1e5)
    # At one moment it read the same as before, and went on from there.
    assert _step(*parts((0, 5e5, 0), (5e5, 1e6, 1000))) == Step(5e5, 5e5, 1000)


def test_a_clock_that_was_set_several_times_is_ahead_by_no_single_amount() -> None:
    assert _step(*parts((0, 2e5, 0), (3e5, 5e5, 1000), (6e5, 9e5, 0))) == Step(3e5, 5e5, None)
    assert _step(*parts((0, 5e5, 0), (4e5, 6e5, -1e5), (4.5e5, 9e5, -1.5e5))) == Step(4e5, 6e5, None)
    assert _step(*parts((0, 4e5, 0), (5e5, 5e5, 1000), (500_001, 500_001, 0), (6e5, 9e5, 1000))).by is None


def test_what_only_one_moment_tells_contradicts_itself_by_no_known_amount() -> None:
    at = np.array([5.0])
    with warnings.catch_warnings(action="error"):
        assert _step(at, np.array([0.0]), at, np.array([10.0])) == Step(5, 5, None)
