"""Clocks that were set while ranks recorded: what is read is as if nobody had set them, and that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.pipeline import build
from distprof.trace.jumps import Jump, find_jumps, put_back, put_back_columns
from tests.worlds import Clock, Delay, Probes, World, write

S = 1_000_000_000
HOUR = 3600 * S
UNIX = 1_790_857_026 * S


def readings(*jumps: int, lasted: int = 5) -> list[tuple[int, int]]:
    """A pair each second; before the k-th the clock was set by the k-th of `jumps`."""
    by = [0, *jumps, *[0] * lasted][: lasted + 1]
    return [(second * S, UNIX + second * S + sum(by[: second + 1])) for second in range(lasted + 1)]


def test_a_clock_that_drifts_was_not_set() -> None:
    drifting = [(mono, unix + mono // 1000) for mono, unix in readings()]
    assert find_jumps(drifting) == (drifting, [], [])
    assert find_jumps([]) == ([], [], [])


@pytest.mark.parametrize("by", [HOUR, -HOUR, 2 * S, -8 * S])
def test_a_jump_is_undone(by: int) -> None:
    steady, [jump], left_alone = find_jumps(readings(0, by))
    assert (steady, left_alone) == (readings(), [])
    assert (jump.by, jump.begin, jump.end) == (by, UNIX + S, UNIX + 2 * S)
    for moment in (-S // 2, 0, S, S + S // 3):
        assert put_back([jump], UNIX + moment) == UNIX + moment
    for moment in (S + S // 2, 2 * S, 5 * S, 5 * S + S // 3):
        assert put_back([jump], UNIX + moment + by) == UNIX + moment


def test_jumps_add_up() -> None:
    steady, jumps, _ = find_jumps(readings(HOUR, 0, 20 * S))
    assert steady == readings()
    told = pl.DataFrame({"a": [UNIX, UNIX + 2 * S + HOUR, UNIX + 4 * S + HOUR + 20 * S, None], "peer": [0, 0, 1, 0]})
    put = put_back_columns(told, jumps, "a")
    assert put["a"].to_list() == [UNIX, UNIX + 2 * S, UNIX + 4 * S, None]
    some = put_back_columns(told, jumps, "a", where=pl.col("peer") == 0)
    assert some["a"].to_list() == [UNIX, UNIX + 2 * S, told["a"][2], None]


@pytest.mark.parametrize("by", [S // 2, -S // 2, -4 * S])
def test_what_could_be_mistaken_is_left_alone(by: int) -> None:
    told = readings(0, by)
    steady, undone, [jump] = find_jumps(told)
    assert (steady, undone) == (told, [])
    assert (jump.by, jump.begin, jump.end) == (by, UNIX + S, UNIX + 2 * S)


@pytest.mark.parametrize("lasted", [100, 7200])
@pytest.mark.parametrize("by", [(30 * S, 60, -30 * S), (-HOUR, 60, HOUR), (HOUR, 3, -HOUR), (2 * S, 3, -HOUR)], ids=str)
def test_what_was_taken_back_later_is_left_alone(by: tuple[int, int, int], lasted: int) -> None:
    """The second step cannot be undone, and the first one alone would leave the rest of the run wrong."""
    first, seconds, back = by
    told = readings(first, *[0] * seconds, back, lasted=lasted)
    steady, undone, left_alone = find_jumps(told)
    assert (steady, undone) == (told, [])
    assert [jump.by for jump in left_alone] == [first, back]


STEPS = st.one_of(st.integers(-2000, 2000), st.integers(-8, 8)).map(lambda fifths: fifths * S // 5)


@given(st.lists(st.tuples(st.integers(0, 50), STEPS), max_size=4), st.lists(st.integers(0, 1000)))
def test_what_is_undone_is_right_at_every_moment(steps: list[tuple[int, int]], moments: list[int]) -> None:
    """Steps of some s, each half a second before a reading of a run of 100 s; moments are tenths of a second."""

    def clock(moment: int) -> int:
        return UNIX + moment + sum(by for second, by in steps if moment >= second * S + S // 2)

    _, undone, left_alone = find_jumps([(second * S, clock(second * S)) for second in range(101)])
    for tenths in moments if undone and not left_alone else ():
        moment = tenths * S // 10
        assert put_back(undone, clock(moment)) == UNIX + moment


def test_a_small_step_is_told_and_a_large_one_undone_all_the_same() -> None:
    steady, undone, left_alone = find_jumps(readings(HOUR, S // 2))
    assert [jump.by for jump in undone] == [HOUR]
    assert [jump.by for jump in left_alone] == [S // 2]
    assert steady == readings(0, S // 2)


def test_no_clock_jumps_out_of_the_tables() -> None:
    told = [(0, -(2**61)), (1, 2**61), (2, -(2**61)), *((n, n % 2 * 10**12) for n in range(3, 1000))]
    steady, jumps, _ = find_jumps(told)
    assert jumps == []
    assert all(abs(unix) < 2**62 for _, unix in steady)


def test_times_between_are_a_jump_of_none() -> None:
    assert Jump(HOUR, 0, S, cut=S).undone(S) == S


SLOW = Delay(rank=2, kind="forward", ms=30.0)
STEADY = World(ranks=4, steps=120, ranks_per_host=2, probes=Probes(), delays=[SLOW], windows=((60, 70),))


@pytest.mark.parametrize("by_s", [3600, -3600])
@pytest.mark.parametrize("hosts", [(0,), (1,), (0, 1)], ids=str)
def test_a_run_whose_clock_was_set_by_an_hour(by_s: int, hosts: tuple[int, ...], tmp_path: Path) -> None:
    """Whichever host's clock it was, the report is the one of a clock that nobody set."""
    was_set = Clock(offset_ms=5.0, set_by=1e3 * by_s, set_at=1700.0)
    clocks = [was_set if host in hosts else Clock() for host in (0, 1)]
    unset = [replace(clock, set_by=0.0) for clock in clocks]
    write(replace(STEADY, clocks=clocks), tmp_path / "set")
    write(replace(STEADY, clocks=unset), tmp_path / "unset")
    run, usual = distprof.load(tmp_path / "set"), distprof.load(tmp_path / "unset")
    for name in ("zones", "steps", "collectives", "batches", "probes", "windows", "events", "signs"):
        apart = (getattr(run.tables, name), getattr(usual.tables, name))
        assert apart[0].equals(apart[1]), name
    ranks = [2 * host + place for host in hosts for place in (0, 1)]
    noted = {note.rank: note.text for note in run.notes}
    assert sorted(noted) == ranks  # type: ignore[type-var]
    assert all(f"the clock was set by {by_s:+.3f} s between 1." in text for text in noted.values())
    result = build(run)
    assert result.clock.verdict == "aligned"
    assert [row.rank for row in result.stragglers.ranks] == [2]
    assert sum("the clock was set by" in note.reason for note in result.not_observed) == len(ranks)


def test_a_window_that_was_open_then_is_left_out(tmp_path: Path) -> None:
    clocks = [Clock(set_by=3.6e6, set_at=4300.0)]
    write(replace(STEADY, ranks_per_host=None, probes=None, clocks=clocks), tmp_path / "run")
    run = distprof.load(tmp_path / "run")
    start, end = run.tables.windows.select(pl.col("start").min(), pl.col("end").max()).row(0)
    began = run.tables.zones["start"].min()
    assert start - began < 4.3 * S < end - began  # type: ignore[operator]
    assert run.tables.events.is_empty()
    assert sum("while the window was open" in note.text for note in run.notes) == 4
    assert [row.rank for row in build(run).stragglers.ranks] == [2]
