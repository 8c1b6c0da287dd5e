"""Which collectives of different ranks are one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distprof
from distprof.analyze.waits import ONE, match
from distprof.clock.shift import corrections, shifted
from distprof.pipeline import build
from distprof.trace.matching import OCCURRENCES, with_sequence_numbers

US = 1000
Call = tuple[int, int, str, int | None, int, int]  # start, end, kind, bytes, seq or -1, step or -1


def table(ranks: dict[int, list[Call]], *, group: int = 0) -> pl.DataFrame:
    rows = [
        (
            rank,
            0,
            group,
            7,
            None if seq < 0 else seq,
            kind,
            kind,
            size,
            "Float",
            start,
            start,
            end,
            None if step < 0 else step,
            None,
        )
        for rank, calls in ranks.items()
        for start, end, kind, size, seq, step in calls
    ]
    return pl.DataFrame(rows, schema=OCCURRENCES, orient="row")


def partners(matched: pl.DataFrame) -> set[frozenset[tuple[int, int]]]:
    """The collectives, as (rank, end) of those that took part."""
    together = matched.group_by("group", "seq", "kind").agg(pl.struct("rank", "ended").alias("calls"))
    return {frozenset((call["rank"], call["ended"]) for call in calls) for calls in together["calls"]}


def expected(case: Path) -> Any:
    return json.loads((case / "expected.json").read_text())


def lateness(tables: Any) -> pl.DataFrame:
    """Bound collectives: the last rank and by how many us it was later than the first."""
    rows = match(tables).drop_nulls("binds_until")
    late = (pl.col("arrived").max() - pl.col("arrived").min()) / US
    last = pl.when(late > 0).then(pl.col("last_rank").first())
    return rows.group_by(ONE).agg(late.alias("us"), last.alias("last_rank")).sort("group", "seq")


def test_a_window_that_opened_later(shared: Path) -> None:
    case = shared / "cases" / "window-edge-count-mismatch"
    run = distprof.load(case)
    result = build(run)
    assert result.communication.matched == expected(case)["matched"]
    assert result.communication.unmatched == expected(case)["unmatched"]
    late = lateness(run.tables).filter(pl.col("us") > 1)
    assert late.select("last_rank", "us").rows() == [(2, us) for us in expected(case)["late"]["2"]]
    assert result.communication.by_kind[0].kind == "all_to_all", "their annotations on the device tell"


def test_groups_with_one_description(shared: Path) -> None:
    case = shared / "cases" / "multi-process-groups"
    run = distprof.load(case)
    groups = {group.id: group for group in run.tables.groups}
    assert [group.members for group in groups.values() if group.desc == "tp"] == [[0, 1], [2, 3]]
    found = {
        f"{groups[group].members}#{seq}": (rank, us) for group, seq, _, us, rank in lateness(run.tables).iter_rows()
    }
    for name, late in expected(case)["lateness"].items():
        assert found[name] == (late.get("rank"), late["us"])
    assert len(found) == len(expected(case)["lateness"])
    result = build(run)
    assert (result.communication.matched, result.communication.unmatched) == (5, 0)
    sending = run.tables.kernels.filter(pl.col("collective").is_in(["send", "recv"]))
    assert [sorted(sending["rank"])] == expected(case)["p2p_pairs"]


def test_two_hosts_whose_clocks_differ(shared: Path) -> None:
    case = shared / "cases" / "clock-skew-two-hosts"
    numbers = expected(case)
    run = distprof.load(case)
    result = build(run)
    assert result.clock.verdict == "aligned"
    assert result.clock.ranks[1].offset_us == pytest.approx(numbers["offset_us"], abs=2)
    late = lateness(shifted(run.tables, corrections(result.clock)))
    assert late["us"].to_list() == pytest.approx(numbers["lateness_us"], abs=2)
    assert set(late["last_rank"]) == {numbers["late_rank"]}
    assert {str(row.rank): row.comm * US for row in result.totals if row.comm is not None} == pytest.approx(
        numbers["comm_us"]
    )
    durations = run.tables.steps["end"] - run.tables.steps["start"]
    assert set(durations / US) == {1000}


def test_sequence_numbers_come_first() -> None:
    """The ends would say otherwise."""
    ranks = {
        0: [(0, 10, "all_reduce", 8, 4, -1), (20, 30, "all_reduce", 8, 5, -1)],
        1: [(0, 10, "all_reduce", 8, 5, -1)],
    }
    assert partners(with_sequence_numbers(table(ranks))) == {
        frozenset({(0, 10)}),
        frozenset({(0, 30), (1, 10)}),
    }


def test_a_sequence_number_that_stands_there_twice_is_none() -> None:
    twice = [(0, 10, "all_reduce", 8, 4, -1), (20, 30, "all_reduce", 8, 4, -1)]
    matched = with_sequence_numbers(table({0: twice, 1: twice}))
    assert len(partners(matched)) == 2


def test_groups_have_nothing_to_do_with_each_other() -> None:
    one = {0: [(0, 10, "all_reduce", 8, -1, -1)], 1: [(0, 10, "all_reduce", 8, -1, -1)]}
    both = pl.concat([table(one), table(one, group=1)])
    matched = with_sequence_numbers(both)
    assert matched.group_by("group", "seq", "kind").len()["len"].to_list() == [2, 2]


def test_what_one_rank_tells_of_a_kind_holds_for_all() -> None:
    calls = table({0: [(0, 10, "send_recv", None, -1, -1)], 1: [(0, 10, "send_recv", None, -1, -1)]})
    told = calls.with_columns(kind=pl.when(pl.col("rank") == 0).then(pl.lit("all_to_all")).otherwise("kind"))
    assert with_sequence_numbers(told)["kind"].to_list() == ["all_to_all", "all_to_all"]


def test_steps_tell_where_the_ends_do_not() -> None:
    """One collective per step, each step as long as the other, and a clock that is a step and a half ahead."""
    own = [(at, at + 10 * US, "all_reduce", 8, -1, step) for step, at in enumerate(range(0, 10_000 * US, 1000 * US))]
    other = [(start + 1500 * US, end + 1500 * US, *rest) for start, end, *rest in own[2:]]
    matched = with_sequence_numbers(table({0: own, 1: other}))  # type: ignore[dict-item]
    both = matched.group_by("group", "seq", "kind").agg(pl.col("step").n_unique(), pl.len())
    assert both["step"].to_list() == [1] * 10
    assert sorted(both["len"]) == [1, 1] + [2] * 8


def test_an_event_that_was_lost_in_the_middle() -> None:
    """What comes after it is not paired one place off."""
    own = [(at * US, (at + 300) * US, "all_reduce", None, -1, -1) for at in range(0, 40_000, 1000)]
    for lost in (0, 3, 20, 36, 39):
        other = own[:lost] + own[lost + 1 :]
        sizes = {
            min(end for _, end in calls): len(calls)
            for calls in partners(with_sequence_numbers(table({0: own, 1: other})))
        }
        assert len(sizes) == 40
        assert sizes.pop(own[lost][1]) == 1
        assert set(sizes.values()) == {2}, lost


def test_a_collective_of_some_ranks_is_not_paired_by_position() -> None:
    """Without names of groups: ranks 0 and 1 have one of their own between two of all ranks."""
    everybody = [(at * US, (at + 500) * US, "all_reduce", None, -1, -1) for at in range(0, 400_000, 20_000)]
    pair = [(at * US, (at + 300) * US, "all_reduce", None, -1, -1) for at in range(9_000, 400_000, 20_000)]
    some = sorted([*everybody, *pair])
    matched = with_sequence_numbers(table({0: some, 1: some, 2: everybody}))
    sizes = [len(calls) for calls in partners(matched)]
    assert sorted(sizes) == [2] * 20 + [3] * 20


def test_other_collectives_tell_the_clocks_of_a_kind_that_is_rare() -> None:
    """Each rank recorded the one all-gather that the other one's window lacks."""
    common: list[Call] = [
        (at, at + 300 * US, "all_reduce", 4096, -1, -1) for at in range(13_000_000, 40_000_000, 4_000_000)
    ]
    ranks = {
        0: [(11_000_000, 11_050_000, "all_gather", None, -1, -1), *common],
        1: [*common, (48_000_000, 48_050_000, "all_gather", None, -1, -1)],
    }
    sizes = sorted(len(calls) for calls in partners(with_sequence_numbers(table(ranks))))
    assert sizes == [1, 1] + [2] * len(common)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[int, list[Call]], int]:
    """Ranks that recorded different pieces of one sequence, on clocks that differ a little."""
    source = random.Random(draw(st.integers(0, 10_000)))
    ranks, count = draw(st.integers(2, 5)), draw(st.integers(6, 40))
    time, sequence = 0, []
    for _ in range(count):
        time += source.randint(500, 20_000) * US
        kind, size = source.choice([("all_reduce", 4096), ("all_reduce", 1024), ("all_gather", None)])
        sequence.append((time, kind, size))
    recorded: dict[int, list[Call]] = {}
    for rank in range(ranks):
        skew = draw(st.integers(-100, 100)) * US
        first, last = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        recorded[rank] = [
            (end - source.randint(50, 400) * US + skew, end + source.randint(0, 20) * US + skew, kind, size, -1, -1)
            for end, kind, size in sequence[first : count - last]
        ]
    return recorded, count


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_pieces_of_one_sequence_find_each_other(world: tuple[dict[int, list[Call]], int]) -> None:
    recorded, _ = world
    matched = with_sequence_numbers(table(recorded))
    assert matched.group_by("rank", "group", "seq").len()["len"].max() == 1
    for calls in partners(matched):
        ends = [end for _, end in calls]
        assert max(ends) - min(ends) <= 221 * US
    # None of them is left alone that somebody else recorded, too.
    alone = sum(1 for calls in partners(matched) if len(calls) == 1)
    assert alone <= 4
