"""What causality tells of clocks that send each other messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.clock.evidence import gather
from distprof.clock.solve import solve
from distprof.trace.tables import PROBES
from tests.unit.tables import tables

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
@settings(max_examples=150, deadline=None, derandomize=True)
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
