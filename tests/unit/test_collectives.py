"""Collectives put into their place: kinds, groups, zones, buckets, and gloo's spans; all made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl
import pytest

from distprof.result import Group
from distprof.trace.buckets import number_buckets
from distprof.trace.collectives import build_collectives, reductions, with_kinds
from distprof.trace.columns import KINETO_EVENTS
from distprof.trace.gloo import join_spans
from distprof.trace.recordings import ENTRIES, DdpFacts, Facts
from distprof.trace.tables import STEPS, WINDOWS, ZONES

US = 1000


def entries(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Entries with what is left out filled in: records in order, sequence numbers by group."""
    seqs: dict[tuple[int, str], int] = {}
    filled = []
    for record, row in enumerate(rows):
        key = row.get("rank", 0), row.get("group", "0")
        seqs[key] = seqs.get(key, 0) + 1
        default = {"rank": 0, "record": record, "group": "0", "seq": seqs[key], "op": "gloo:all_reduce", "p2p": False}
        default |= {"bytes": 4, "dtype": "Float", "started": None, "ended": None}
        filled.append({**default, **row})
    return with_kinds(pl.DataFrame(filled, schema=ENTRIES))


def facts(**values: Any) -> Facts:
    return msgspec.convert(values, Facts)


def build(
    rows: list[dict[str, Any]],
    facts_of: dict[int, Facts] | None = None,
    *,
    zones: Sequence[tuple[Any, ...]] = (),
    steps: Sequence[tuple[Any, ...]] = (),
    events: Sequence[tuple[Any, ...]] = (),
    windows: Sequence[tuple[Any, ...]] = (),
) -> tuple[pl.DataFrame, list[Group]]:
    return build_collectives(
        entries=entries(rows),
        zones=pl.DataFrame(list(zones), schema=ZONES, orient="row"),
        steps=pl.DataFrame(list(steps), schema=STEPS, orient="row"),
        events=pl.DataFrame(list(events), schema=KINETO_EVENTS, orient="row"),
        windows=pl.DataFrame(list(windows), schema=WINDOWS, orient="row"),
        facts=facts_of or {row.get("rank", 0): Facts() for row in rows},
    )


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:barrier", "barrier"),
        ("gloo:all_to_all", "all_to_all"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("gloo:something_new", "something_new"),
        ("mine:all_reduce", "mine:all_reduce"),
    ],
)
def test_kinds(op: str, kind: str) -> None:
    assert entries([{"op": op, "created": 1}])["kind"].to_list() == [kind]


def test_reductions() -> None:
    table = entries([{"op": op, "created": n} for n, op in enumerate(["gloo:all_reduce", "gloo:broadcast"])])
    assert reductions(table).rows() == [(0, 0)]


def test_groups_are_one_where_name_and_members_agree() -> None:
    default = {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2]}
    facts_of = {
        0: facts(groups=[default, {"name": "1", "ranks": [1, 0]}]),
        1: facts(groups=[default, {"name": "1", "ranks": [0, 1]}]),
        2: facts(groups=[default, {"name": "1", "ranks": [2]}]),
    }
    rows = [{"rank": rank, "group": group, "created": rank} for rank in range(3) for group in ("0", "1")]
    table, groups = build(rows, facts_of)
    assert groups == [
        Group(0, "0", "default_pg", [0, 1, 2]),
        Group(1, "1", None, [0, 1]),
        Group(2, "1", None, [2]),
    ]
    assert table.select("rank", "group").rows() == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 2)]


def test_a_group_that_the_ranks_facts_do_not_list() -> None:
    facts_of = {0: facts(groups=[{"name": "0", "ranks": [0, 1]}]), 1: Facts(), 2: Facts()}
    rows = [{"rank": 1, "group": "0", "created": 1}, {"rank": 1, "group": "7", "created": 2}]
    table, groups = build([*rows, {"rank": 2, "group": "7", "created": 3}], facts_of)
    assert [(group.name, group.members) for group in groups] == [("0", [0, 1]), ("7", [1, 2])]
    assert table["group"].to_list() == [0, 1, 1]


def test_zone_and_step() -> None:
    zones = [
        (0, "zone", "mine", 0, 100, 200),
        (0, "forward", "Net#0", 0, 110, 150),
        (0, "gc", "generation 2", 1, 100, 900),
        (1, "backward", "backward", 0, 0, 999),
    ]
    steps = [(0, 0, 100, 180, 1, None), (0, 1, 180, 300, 1, None)]
    created = [50, 100, 120, 150, 180, 250, 300]
    table, _ = build([{"created": time} for time in created], zones=zones, steps=steps)
    assert table["zone"].to_list() == [None, "zone", "forward", "zone", "zone", None, None]
    assert table["step"].to_list() == [None, 0, 0, 0, 1, 1, None]


def test_point_to_point_is_left_out() -> None:
    table, _ = build([{"created": 1}, {"created": 2, "op": "nccl:send 0->1", "p2p": True}])
    assert table["created"].to_list() == [1]


def test_times_of_the_backend_are_kept() -> None:
    table, _ = build([{"created": 1, "op": "nccl:all_reduce", "started": 5, "ended": 9}])
    assert table.select("started", "ended").rows() == [(5, 9)]


# Buckets


def ddp(name: str, *sizes: int) -> DdpFacts:
    return DdpFacts(name, list(sizes) if sizes else None)


def numbered(sizes: list[int | None], *models: DdpFacts, groups: list[int] | None = None) -> list[Any]:
    return number_buckets(sizes, groups or [0] * len(sizes), models)


def test_buckets_are_numbered_in_order() -> None:
    assert numbered([10, 20, 5], ddp("A", 10, 20, 5)) == [("A", 0), ("A", 1), ("A", 2)]


def test_buckets_before_the_rebuild_have_other_sizes_and_the_same_sum() -> None:
    assert numbered([30, 5], ddp("A", 10, 20, 5)) == [("A", 0), ("A", 1)]
    assert numbered([30, 6], ddp("A", 10, 20, 5)) == [None, None]


def test_sizes_that_were_never_told() -> None:
    assert numbered([30, 5], ddp("A")) == [("A", 0), ("A", 1)]
    assert numbered([30, 5], ddp("A"), groups=[0, 1]) == [None, None]
    assert numbered([30, 5], ddp("A"), ddp("B", 30)) == [None, None]


def test_other_reductions_between_the_buckets() -> None:
    assert numbered([7, 10, 7, 20], ddp("A", 10, 20)) == [None, ("A", 0), None, ("A", 1)]
    assert numbered([10, 10, 20], ddp("A", 10, 20)) == [None, None, None], "which 10 is the bucket?"
    assert numbered([10, 10, 20], ddp("A", 10, 20), groups=[1, 0, 0]) == [None, ("A", 0), ("A", 1)]


def test_two_models() -> None:
    a, b = ddp("A", 10, 20), ddp("B", 30, 5)
    assert numbered([30, 5], a, b) == [("B", 0), ("B", 1)]
    assert numbered([30, 10, 5, 20], a, b) == [("B", 0), ("A", 0), ("B", 1), ("A", 1)]
    assert numbered([10, 20, 30, 5], a, b) == [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
    assert numbered([10, 20], ddp("A", 10, 20), ddp("B", 10, 20)) == [None, None], "whose are they?"
    assert numbered([25, 10], a, b) == [("B", 0), ("B", 1)], "B before its rebuild, by the sum"


def test_no_model_no_bucket() -> None:
    assert numbered([10, 20]) == [None, None]
    assert numbered([10, None], ddp("A", 10, 20)) == [None, None]


def test_buckets_are_found_inside_backward() -> None:
    zones = [(0, "forward", "A", 0, 0, 100), (0, "backward", "backward", 0, 100, 200), (0, "gc", "g", 0, 110, 130)]
    rows: list[dict[str, Any]] = [
        {"created": 50, "bytes": 10},
        {"created": 120, "bytes": 10},
        {"created": 140, "bytes": 10, "op": "gloo:broadcast"},
        {"created": 150, "bytes": 20},
        {"created": 190, "bytes": 20, "dtype": "Int"},
        {"created": 210, "bytes": 10},
    ]
    model = {"name": "A", "bucket_bytes": [10, 20]}
    table, _ = build(rows, {0: facts(ddp=[model])}, zones=zones)
    assert table["bucket"].to_list() == [None, 0, None, 1, None, None]
    assert table["model"].to_list() == [None, "A", None, "A", None, None]
    without, _ = build(rows, {0: facts(ddp=[])}, zones=zones)
    assert without["bucket"].null_count() == len(rows)


# Joining gloo's spans. A span: (operation, thread, start, end), times in us.

Span = tuple[str, int, int, int]


def join(created: Sequence[tuple[str, str, int]], spans: Sequence[Span], window: tuple[int, int]) -> dict[int, int]:
    """Join entries (group, operation, created) with spans; groups were made in the order of their names."""
    table = entries([{"group": g, "op": f"gloo:{op}", "created": time * US} for g, op, time in created])
    return joined(table, spans, window)


def joined(table: pl.DataFrame, spans: Sequence[Span], window: tuple[int, int]) -> dict[int, int]:
    rows = [(0, 0, "user_annotation", f"gloo:{op}", t, a * US, b * US, False, True) for op, t, a, b in spans]
    events = pl.DataFrame(rows, schema=KINETO_EVENTS, orient="row")
    return join_spans(table.with_columns(made=pl.col("group").cast(pl.Int32)), events, window[0] * US, window[1] * US)


def reduces(*created: int) -> list[tuple[str, str, int]]:
    return [("0", "all_reduce", time) for time in created]


def test_spans_follow_the_order_of_creation() -> None:
    # Two workers: the third all-reduce waits for the first free one.
    spans = [("all_reduce", 1, 1010, 3000), ("all_reduce", 2, 1110, 2500), ("all_reduce", 2, 2510, 4000)]
    assert join(reduces(1000, 1100, 1200), spans, (0, 9000)) == {0: 0, 1: 1, 2: 2}


def test_what_began_before_the_window_has_no_span() -> None:
    # 0 and 1 were over before; 2 was under way when the window opened at 1000 and occupies a worker.
    spans = [("all_reduce", 2, 1510, 1900), ("all_reduce", 2, 2010, 2400)]
    assert join(reduces(100, 300, 990, 1500, 2000), spans, (1000, 9000)) == {3: 0, 4: 1}


def test_what_waited_for_a_worker_when_the_window_opened_has_one() -> None:
    # Both workers are busy until 1800; entries 2 and 3, created before 1000, begin then.
    spans = [("all_reduce", 1, 1800, 2200), ("all_reduce", 2, 1810, 2300), ("all_reduce", 1, 5010, 5100)]
    assert join(reduces(800, 850, 900, 950, 5000), spans, (1000, 9000)) == {2: 0, 3: 1, 4: 2}


def test_kinds_find_the_shift() -> None:
    created = [("0", "all_reduce", 900), ("0", "barrier", 950), ("0", "all_reduce", 1500)]
    spans = [("barrier", 1, 1200, 1300), ("all_reduce", 1, 1510, 1600)]
    assert join(created, spans, (1000, 9000)) == {1: 0, 2: 1}


def test_a_span_before_its_entry_is_no_match() -> None:
    assert join(reduces(2000), [("all_reduce", 1, 1500, 1600)], (1000, 9000)) == {}
    assert join(reduces(2000), [("all_gather", 1, 2010, 2100)], (1000, 9000)) == {}


def test_what_cannot_be_told_stays_unjoined() -> None:
    # Two entries wait when the window opens, and one span begins in it: either may be the one that was cut.
    assert join(reduces(900, 990), [("all_reduce", 1, 1020, 1500)], (1000, 9000)) == {}


def test_the_last_may_not_have_begun() -> None:
    spans = [("all_reduce", 1, 1010, 1900), ("all_reduce", 1, 1910, 2000)]
    assert join(reduces(1000, 1500, 1990), spans, (500, 2000)) == {0: 0, 1: 1}


def test_point_to_point_spans_are_no_collectives() -> None:
    spans = [("send", 7, 1005, 1006), ("all_reduce", 1, 1010, 1900), ("recv", 7, 1950, 1990)]
    assert join(reduces(1000), spans, (500, 2000)) == {0: 1}


def test_groups_are_told_apart_by_their_threads() -> None:
    # Group 0 has threads 1 and 2, group 1 has 3 and 4. In the first round 1's thread begins after everything.
    created = [
        ("0", "all_reduce", 1000),
        ("1", "all_reduce", 1010),
        ("1", "all_reduce", 3000),
        ("0", "all_reduce", 3500),
    ]
    spans = [
        ("all_reduce", 3, 1100, 1500),
        ("all_reduce", 1, 1120, 2000),
        ("all_reduce", 4, 3010, 3900),
        ("all_reduce", 2, 3510, 3800),
    ]
    assert join(created, spans, (500, 9000)) == {0: 1, 1: 0, 2: 2, 3: 3}


def test_groups_that_cannot_be_told_apart_stay_unjoined() -> None:
    # One of the two has not begun when the window closes: which?
    created = [("0", "all_reduce", 1000), ("1", "all_reduce", 1010)]
    assert join(created, [("all_reduce", 1, 1030, 1500)], (500, 1600)) == {}


def test_entries_that_were_lost() -> None:
    spans = [("all_reduce", 1, 1010, 1100), ("all_reduce", 1, 2010, 2100)]
    table = entries([{"created": time * US} for time in (100, 1000, 2000)])
    assert joined(table, spans, (500, 9000)) == {1: 0, 2: 1}
    inside = table.with_columns(record=pl.Series([0, 1, 3]))
    assert joined(inside, spans, (500, 9000)) == {}
    at_the_edge = table.with_columns(record=pl.Series([0, 2, 3]))
    assert joined(at_the_edge, spans, (500, 9000)) == {}
    long_before = entries([{"created": time * US} for time in (100, 200, 1000, 2000)])
    long_before = long_before.with_columns(record=pl.Series([0, 7, 8, 9]))
    assert joined(long_before, spans, (500, 9000)) == {2: 0, 3: 1}


def test_started_and_ended_come_from_the_window() -> None:
    rows = [{"created": time * US} for time in (100, 1000, 2000)]
    events = [
        (0, 0, "user_annotation", "gloo:all_reduce", 1, 1010 * US, 1500 * US, False, True),
        (0, 0, "user_annotation", "gloo:all_reduce", 1, 2010 * US, 2500 * US, False, False),
    ]
    table, _ = build(rows, events=events, windows=[(0, 0, 500 * US, 2500 * US)])
    assert table.select("started", "ended").rows() == [(None, None), (1010 * US, 1500 * US), (2010 * US, None)]
