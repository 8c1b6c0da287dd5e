"""Who holds up a training that does not go on."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from distprof.analyze.hanging import hanging
from distprof.clock.align import align
from distprof.trace.tables import SIGNS, Tables
from tests.worlds import World
from tests.worlds.recorded import simulate

S = 1_000_000_000


@pytest.fixture
def tables() -> Tables:
    """Three ranks that are in the middle of the 20th step; nobody wrote anything since."""
    played = simulate(World(ranks=3, steps=20))
    facts = {rank: {**values, "status": "running"} for rank, values in played.facts.items()}
    return replace(played, facts=facts)


def end_of(tables: Tables) -> int:
    return int(tables.collectives["created"].max())  # type: ignore[call-overload]


def signs(tables: Tables, **since: list[float | None]) -> Tables:
    """With the last signs of life of each rank so many s after the last collective."""
    end = end_of(tables)
    times = {name: [None if s is None else end + round(s * S) for s in values] for name, values in since.items()}
    return replace(tables, signs=pl.DataFrame({"rank": tables.ranks, **times}, schema=SIGNS))


def without_last(tables: Tables, rank: int) -> Tables:
    """As if `rank` had not come to the last collective."""
    last = tables.collectives["seq"].max()
    calls = tables.collectives.filter(~((pl.col("rank") == rank) & (pl.col("seq") == last)))
    return replace(tables, collectives=calls)


def told(tables: Tables) -> dict[int, str]:
    return hanging(tables, align(tables)[0])


def test_the_rank_that_did_not_come_is_told_from_those_that_wait(tables: Tables) -> None:
    texts = told(signs(without_last(tables, 1), written=[30, 31, 30], drained=[21, 22, 20]))
    last = tables.collectives["seq"].max()
    assert texts == {
        0: f"it waits in all_reduce {last} of group 0 for rank 1",
        1: f"it has not come to all_reduce {last} of group 0, in which ranks 0, 2 wait for 31 s",
        2: f"it waits in all_reduce {last} of group 0 for rank 1",
    }


def test_what_a_rank_did_not_write_down_yet_does_not_count(tables: Tables) -> None:
    for drained in ([3, 3, 3], [3, -1, 3], [None, None, None]):
        assert told(signs(without_last(tables, 1), written=[4, 4, 4], drained=drained)) == {}


def test_a_rank_that_fell_silent(tables: Tables) -> None:
    texts = told(signs(without_last(tables, 1), written=[30, 1, 30], drained=[21, -1, 20]))
    assert texts[1].startswith("it wrote nothing for 29 s while others went on")
    assert texts[0].startswith("it waits in all_reduce")
    assert texts[0].endswith("for rank 1")


def test_nobody_is_behind_where_all_wait_in_one_place(tables: Tables) -> None:
    assert told(signs(tables, written=[30, 30, 30], drained=[21, 22, 20])) == {}


def finished(tables: Tables, *ranks: int) -> Tables:
    facts = {
        rank: {**facts, **({"status": "finished"} if rank in ranks else {})} for rank, facts in tables.facts.items()
    }
    return replace(tables, facts=facts)


def test_ranks_that_ended_hold_nobody_up_and_wait_for_nobody(tables: Tables) -> None:
    held = signs(without_last(tables, 1), written=[30, 1, 30], drained=[21, 22, 20])
    assert set(told(held)) == {0, 1, 2}
    assert told(finished(held, 0, 1, 2)) == {}
    assert told(finished(held, 1)) == {}
    texts = told(finished(held, 0))
    assert set(texts) == {1, 2}
    assert "in which rank 2 waits" not in texts[1]  # it fell silent, and that is what is said of it
    held = signs(without_last(tables, 1), written=[30, 31, 30], drained=[21, 22, 20])
    assert "in which rank 2 waits for" in told(finished(held, 0))[1]


def test_who_does_something_else_meanwhile_does_not_wait(tables: Tables) -> None:
    """As in a handler that saves a checkpoint, when the others have been ended."""
    held = signs(without_last(tables, 1), written=[30, 1, 30], drained=[21, -1, 20])
    busy = held.zones.tail(1).with_columns(rank=pl.lit(0, pl.Int32), start=end_of(tables) + 9 * S, thread=0)
    busy = busy.with_columns(end=pl.col("start") + S).select(held.zones.columns).cast(dict(held.zones.schema))
    texts = told(replace(held, zones=pl.concat([held.zones, busy])))
    assert 0 not in texts
    assert "for rank 1" in texts[2]


def test_a_rank_that_can_no_longer_write_is_not_taken_for_stopped(tables: Tables) -> None:
    silent = signs(tables, written=[30, 1, 30], drained=[21, 22, 20])
    assert set(told(silent)) == {1}
    cannot = {**silent.facts, 1: {**silent.facts[1], "zones_left_off": True}}
    assert told(replace(silent, facts=cannot)) == {}


def test_a_rank_whose_zones_are_not_written_is_not_said_to_wait(tables: Tables) -> None:
    held = signs(without_last(tables, 1), written=[30, 31, 30], drained=[21, 22, 20])
    texts = told(replace(held, facts={**held.facts, 0: {**held.facts[0], "zones_left_off": True}}))
    assert 0 not in texts
    assert "in which rank 2 waits" in texts[1]


def test_a_rank_without_collectives_is_not_said_to_be_behind(tables: Tables) -> None:
    unread = replace(tables, collectives=tables.collectives.filter(pl.col("rank") != 1))
    assert told(signs(unread, written=[30, 31, 30], drained=[21, 35, 20])) == {}


def test_clocks_that_cannot_be_compared_tell_nothing(tables: Tables) -> None:
    held = signs(without_last(tables, 1), written=[30, 1, 30], drained=[21, -1, 20])
    clock = replace(align(held)[0], verdict="unaligned")
    assert hanging(held, clock) == {}
