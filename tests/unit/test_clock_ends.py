"""Lines through the ends of collectives; times are ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from distprof.clock.ends import Line, _line, corrected, lines
from distprof.clock.evidence import Evidence, gather
from distprof.clock.hull import MOST_DRIFT
from tests.unit.tables import tables

S = 1e9
MEDIANS = 3 * 1.2533 * (2 / 3) ** 0.5  # three standard errors of the difference of two medians, each of three ends


def through(time: Sequence[float], ahead: Sequence[float], span: float, error: Sequence[float] | None = None) -> Line:
    """The line through ends that came at `time` of a clock that was `ahead` by so much."""
    times, of = np.array(time, dtype=np.float64), np.array(ahead, dtype=np.float64)
    return _line(times, times - of, np.zeros(len(times)) if error is None else np.array(error, dtype=np.float64), span)


def figures(line: Line) -> list[float]:
    return [line.at_start, line.at_end, line.error]


def test_few_ends_tell_an_offset_and_no_drift() -> None:
    """Nine of ten of three that are off by 0, 2 and 38 are off by 30.8; then no more than 1 in 1000 is added."""
    found = through([100, 200, 300], [10, 12, 50], 1000, error=[1, 5, 90])
    assert figures(found) == pytest.approx([12, 12, 30.8 + 5 + 0.7])
    assert through([100, 200, 300], [10, 12, 50], 350).error == pytest.approx(30.8 + 0.1), "before the first"
    assert through([0, 200, 300], [10, 12, 50], 300).error == pytest.approx(30.8)
    assert figures(through(range(8), range(8), 7)) == pytest.approx([3.5, 3.5, 3.5]), "eight are too few"


@pytest.mark.parametrize("order", [range(9), [8, 0, 7, 1, 6, 2, 5, 3, 4]])
def test_a_drift_is_that_between_the_first_and_the_last_third(order: Sequence[int]) -> None:
    """20 ns in a ms, in 9 s, where the ends are rounded to 1 us: what it may differ by counts for a last second."""
    found = through([(1 + place) * S for place in order], [500 + 20_000 * (1 + place) for place in order], 11 * S)
    uncertain = MEDIANS * 1000 / (6 * S)
    assert figures(found) == pytest.approx([500, 500 + 220_000, uncertain * 2 * S])


def test_thirds_leave_the_middle_out_and_single_ends_may_come_late() -> None:
    """Of eleven ends the first three and the last three, whose middle ones came at 1 and at 9 s."""
    late = [9000, 0, 0, 7e6, 8e6, 9e6, 7e6, 8e6, 0, 9000, 0]
    found = through([place * S for place in range(11)], [20_000 * place + by for place, by in enumerate(late)], 8 * S)
    assert found.at_end - found.at_start == pytest.approx(8 * 20_000 + 9000)


def test_a_drift_that_scatter_explains_is_none() -> None:
    """200 ns in a s are less than the rounding of ends explains, and are told by the error."""
    found = through([place * S for place in range(9)], [200 * place for place in range(9)], 10 * S)
    uncertain = MEDIANS * 1000 / (6 * S) + 200 / S
    assert figures(found) == pytest.approx([800, 800, 800 + uncertain * 2 * S])


def test_scatter_is_what_most_ends_differ_by() -> None:
    """Two of three ends are 50 us before or after the line."""
    scatter = [50_000, 0, -50_000] * 3
    uncertain = MEDIANS * 1.4826 * 50_000 / (6 * S)
    flat, steep = (
        through([place * S for place in range(9)], [ahead * place + off for place, off in enumerate(scatter)], 10 * S)
        for ahead in (20_000, 200_000)
    )
    assert 20_000 / S < uncertain < 200_000 / S
    assert figures(flat)[:2] == [80_000, 80_000]
    assert figures(steep) == pytest.approx([0, 2_000_000, 50_000 + uncertain * 2 * S])


def test_no_clock_drifts_by_more_than_is_possible() -> None:
    """Nine ends at one moment tell no drift, and two in a us none that is of use."""
    assert figures(through([5 * S] * 9, [70] * 9, 6 * S)) == pytest.approx([70, 70, MOST_DRIFT * 5 * S])


def with_ends(spans: Sequence[tuple[int, int]], ends: Sequence[tuple[int, int, int]]) -> Evidence:
    """Clocks, each read by one rank, and their ends: meeting, clock, time."""
    made = gather(tables(ranks=range(len(spans)), facts={rank: {} for rank in range(len(spans))}))
    rows = [(meeting, clock, clock, time) for meeting, clock, time in ends]
    schema = {"meeting": pl.Int64, "rank": pl.Int32, "clock": pl.Int32, "time": pl.Int64}
    return replace(made, spans=np.array(spans), ends=pl.DataFrame(rows, schema=schema, orient="row"))


def chain() -> Evidence:
    """Since their first records clock 1 is 30 ahead of clock 0, and clock 2 is 25 behind clock 1."""
    first = [(0, 0, 100), (0, 1, 5130), (1, 0, 900), (1, 1, 5930)]
    second = [(2, 1, 5200), (2, 2, 70_175), (3, 1, 5800), (3, 2, 70_775)]
    once = [(4, 2, 70_500), (4, 3, 500)]
    return with_ends([(0, 1000), (5000, 6000), (70_000, 71_000), (0, 1000)], first + second + once)


def test_lines_go_from_clock_to_clock() -> None:
    found = lines(chain(), 0)
    assert sorted(found) == [0, 1, 2], "one collective agrees with any offset"
    assert figures(found[0]) == [0, 0, 0]
    assert figures(found[1]) == pytest.approx([30, 30, MOST_DRIFT * 130])
    assert figures(found[2]) == pytest.approx([5, 5, MOST_DRIFT * 130 + MOST_DRIFT * 225])
    assert sorted(lines(chain(), 2)) == [0, 1, 2]
    assert lines(chain(), 2)[0].at_start == pytest.approx(-5)
    assert sorted(lines(chain(), 0, without={1})) == [0]
    assert sorted(lines(chain(), 0, without={2})) == [0, 1]


def test_ends_are_put_on_the_references_clock() -> None:
    """Clock 1 is 30 ahead at first, and 130 after 1000."""
    found = corrected(chain(), {0: Line(0.0, 0.0, 0.0), 1: Line(30.0, 130.0, 7.0)}).sort("meeting", "rank")
    assert found.columns == ["meeting", "rank", "moment", "error"]
    assert found.filter(rank=0).rows() == [(0, 0, 100.0, 0.0), (1, 0, 900.0, 0.0)]
    assert found.filter(rank=1)["moment"].to_list() == pytest.approx([87, 807, 150, 690])
    assert found.filter(rank=1)["error"].to_list() == [7.0] * 4
