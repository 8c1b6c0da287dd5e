"""Step tables of zones made by hand; times are ns."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.trace.columns import KINETO_EVENTS
from distprof.trace.steps import build_steps, outermost_backwards
from distprof.trace.tables import WINDOWS, ZONES

MS = 1_000_000
Zone = tuple[str, str, int, int]


def zones(*by_rank: list[Zone], thread: int = 0) -> pl.DataFrame:
    rows = [(rank, z[0], z[1], thread, z[2], z[3]) for rank, own in enumerate(by_rank) for z in own]
    return pl.DataFrame(rows, schema=ZONES, orient="row").sort("rank", "start")


def build(
    zones: pl.DataFrame,
    *,
    reductions: list[tuple[int, int]] | None = None,
    annotations: list[tuple[int, str, int, int]] | None = None,
    windows: list[tuple[int, int, int, int]] | None = None,
) -> tuple[str, pl.DataFrame]:
    created = pl.DataFrame(reductions or [], schema={"rank": pl.Int32, "created": pl.Int64}, orient="row")
    events = pl.DataFrame(
        [(rank, 0, "user_annotation", name, 7, a, b, False, True) for rank, name, a, b in annotations or []],
        schema=KINETO_EVENTS,
        orient="row",
    )
    return build_steps(zones, created, events, pl.DataFrame(windows or [], schema=WINDOWS, orient="row"))


def times(steps: pl.DataFrame, rank: int = 0) -> list[tuple[Any, ...]]:
    return steps.filter(pl.col("rank") == rank).select("step", "start", "end").rows()


def loop(count: int, *, begin: int = 100, last: Zone | None = None) -> list[Zone]:
    """`count` steps of 100 ns: loading, forward, backward, optimizer, which returns at 90 of each hundred."""
    own: list[Zone] = [("loader_start", "DataLoader#0", begin - 20, begin)]
    for start in range(begin, begin + 100 * count, 100):
        own += [
            ("data_loading", "DataLoader#0", start, start + 10),
            ("forward", "Net#0", start + 10, start + 40),
            ("backward", "backward", start + 40, start + 80),
            ("optimizer", "SGD#0", start + 80, start + 90),
        ]
    return own


def test_a_step_begins_where_the_one_before_ended() -> None:
    source, steps = build(zones(loop(3)))
    assert source == "optimizer"
    assert times(steps) == [(0, 80, 190), (1, 190, 290), (2, 290, 390)]
    assert steps["backwards"].to_list() == [1, 1, 1]
    assert steps["excluded"].to_list() == ["first", None, None]


def test_the_users_mark_goes_first() -> None:
    marks = [("step", "distprof.step", end, end) for end in (195, 395)]
    source, steps = build(zones(loop(4) + marks))
    assert source == "user"
    assert times(steps) == [(0, 80, 195), (1, 195, 395)]
    assert steps["backwards"].to_list() == [1, 2]


def test_all_ranks_share_one_source() -> None:
    mark = [("step", "distprof.step", 195, 195)]
    source, steps = build(zones(loop(2) + mark, loop(2)))
    assert source == "optimizer"
    assert times(steps, 0) == times(steps, 1) == [(0, 80, 190), (1, 190, 290)]


def test_a_rank_that_was_cut_off_before_its_first_step_has_none() -> None:
    source, steps = build(zones(loop(2), [("loader_start", "DataLoader#0", 80, 100)]))
    assert source == "optimizer"
    assert times(steps, 1) == []


def test_a_backward_that_reduces_is_a_boundary() -> None:
    own = [zone for zone in loop(4) if zone[0] != "optimizer"]
    source, steps = build(zones(own), reductions=[(0, 260), (0, 265), (0, 470), (0, 199), (1, 150)])
    assert source == "backward"
    assert times(steps) == [(0, 80, 280), (1, 280, 480)]
    assert steps["backwards"].to_list() == [2, 2]


def test_the_outermost_backward_counts() -> None:
    training = zones([("backward", "backward", 0, 50), ("backward", "backward", 10, 20), ("backward", "b", 50, 60)])
    start, end = outermost_backwards(training)
    assert (start.tolist(), end.tolist()) == ([0, 50], [50, 60])


def test_of_two_optimizers_the_one_that_steps_least_often() -> None:
    critic = [("optimizer", "Adam#0", start, start + 2) for start in (110, 130, 150, 210, 230, 250)]
    generator = [("optimizer", "Adam#1", start, start + 2) for start in (160, 260)]
    assert times(build(zones(critic + generator))[1]) == [(0, 110, 162), (1, 162, 262)]


def test_of_two_optimizers_in_turn_the_last_within_a_period() -> None:
    first = [("optimizer", "B#0", start, start + 2) for start in (110, 210, 310)]
    last = [("optimizer", "A#0", start, start + 2) for start in (150, 250, 350)]
    assert times(build(zones(first + last))[1]) == [(0, 110, 152), (1, 152, 252), (2, 252, 352)]
    assert times(build(zones(first[:1] + last[:1]))[1]) == [(0, 110, 152)]


def test_an_optimizer_that_takes_over_has_steps_of_its_own() -> None:
    first = [("optimizer", "SGD#0", start, start + 2) for start in (110, 120, 130)]
    second = [("optimizer", "SGD#1", start, start + 2) for start in (210, 220)]
    assert [end for _, _, end in times(build(zones(first + second))[1])] == [112, 122, 132, 212, 222]


def test_other_threads_mark_no_step() -> None:
    source, steps = build(zones([("optimizer", "SGD#0", 10, 20)], thread=1))
    assert (source, len(steps)) == ("none", 0)


def test_annotations_serve_where_there_is_nothing_else() -> None:
    annotations = [(0, "ProfilerStep#7", 100, 190), (0, "ProfilerStep#8", 191, 290), (0, "ProfilerStep#8", 191, 289)]
    annotations += [(1, "ProfilerStep#8", 195, 295), (1, "ProfilerStep#x", 1, 2)]
    source, steps = build(zones([]), annotations=annotations)
    assert source == "annotation"
    assert steps.select("rank", "step", "start", "end", "backwards", "excluded").rows() == [
        (0, 7, 100, 190, 0, None),
        (0, 8, 191, 290, 0, None),
        (1, 8, 195, 295, 0, None),
    ]
    assert build(zones(loop(1)), annotations=annotations)[0] == "optimizer"


def test_no_boundary() -> None:
    source, steps = build(zones([("forward", "Net#0", 0, 10)]))
    assert (source, len(steps), steps.columns[:4]) == ("none", 0, ["rank", "step", "start", "end"])


def excluded(own: list[Zone], windows: list[tuple[int, int, int, int]]) -> list[Any]:
    """Of rank 0's four steps, while rank 1 has `own` zones as well."""
    marks = [("step", "distprof.step", end * MS, end * MS) for end in (10, 20, 30, 40)]
    begin = [("loader_start", "DataLoader#0", 0, 1)]
    _, steps = build(zones(begin + marks, begin + marks + own), windows=windows)
    assert steps.filter(pl.col("rank") == 1)["excluded"].to_list() == steps["excluded"].to_list()[:4]
    return steps["excluded"].to_list()[:4]


def test_long_own_work_on_any_rank_excludes_the_step_on_all() -> None:
    assert excluded([("own", "drain", 12 * MS, 13 * MS)], []) == ["first", None, None, None]
    assert excluded([("own", "drain", 12 * MS, 13 * MS + 1)], []) == ["first", "export", None, None]
    assert excluded([("own", "window export", 18 * MS, 21 * MS)], []) == ["first", "export", "export", None]
    assert excluded([("own", "window export", 5 * MS, 8 * MS)], []) == ["first", None, None, None]


def test_the_edges_of_a_window_exclude_their_steps() -> None:
    assert excluded([], [(1, 0, 12 * MS, 35 * MS)]) == ["first", "export", None, "export"]
    assert excluded([], [(1, 0, 20 * MS, 40 * MS)]) == ["first", None, "export", None]


def test_a_step_that_compiles_is_not_steady_on_any_rank() -> None:
    compiled = (1, "_compile.compile_inner (dynamo_timed)", 300, 340)
    _, steps = build(zones(loop(4), loop(4)), annotations=[compiled])
    for rank in (0, 1):
        assert steps.filter(rank=rank)["excluded"].to_list() == ["first", None, "compile", None]


def test_what_compiles_in_each_step_is_a_part_of_the_step() -> None:
    each = [(0, "_compile.compile_inner (dynamo_timed)", start, start + 50) for start in range(100, 400, 100)]
    _, steps = build(zones(loop(3)), annotations=each)
    assert steps["excluded"].to_list() == ["first", None, None]
