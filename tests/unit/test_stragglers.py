"""Who is named, for what, and how much: jobs made by hand (see `jobs`); times are ms."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from distprof.analyze.stragglers import stragglers
from distprof.result import Straggler, Stragglers
from distprof.trace.tables import BATCHES, COLLECTIVES, Tables
from tests.unit.jobs import Delays, always, job
from tests.unit.tables import inputs, tables


def judge(of: Tables) -> Stragglers:
    return stragglers(inputs(of))[0]


def only(of: Tables) -> Straggler:
    found = judge(of)
    assert found.verdict == "straggler", found.why
    (row,) = found.ranks
    return row


def named(of: Tables) -> dict[int, tuple[str, float]]:
    return {row.rank: (row.cause, row.delay) for row in judge(of).ranks}


def test_eight_buckets_after_one_delay_are_late_once() -> None:
    row = only(job(always({2: {"backward": 60}}), buckets=8))
    assert (row.rank, row.cause, row.zone, row.pattern) == (2, "backward", "backward", "persistent")
    assert row.delay == 60, "and not 480"
    assert row.imposed_wait == 60
    assert (row.last_arrivals, row.of_collectives) == (9, 9), "one synchronisation in each of nine steady steps"
    assert row.group == 0
    assert row.steps == list(range(1, 10))


def test_the_culprit_has_the_shortest_backward_and_its_victims_are_not_named() -> None:
    of = job(always({1: {"data_loading": 60}}))
    backward = of.zones.filter(kind="backward").select("rank", ms=(pl.col("end") - pl.col("start")) / 1e6)
    assert dict(backward.unique().rows()) == {0: 75, 1: 15, 2: 75, 3: 75}
    row = only(of)
    assert (row.rank, row.cause, row.delay) == (1, "data_loading", 60)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("cause", "zone"),
    [
        ("data_loading", "DataLoader#0"),
        ("forward", "Net#0"),
        ("backward", "backward"),
        ("optimizer", "SGD#0"),
        ("gc", "generation 2"),
        ("zone", "augment"),
        ("host", None),
    ],
)
def test_cause_zone_and_amount(cause: str, zone: str | None, ranks: int) -> None:
    row = only(job(always({ranks - 1: {cause: 20}}), ranks=range(ranks)))
    assert (row.rank, row.cause, row.zone, row.delay) == (ranks - 1, cause, zone, 20)
    assert row.imposed_wait == 20


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("loader_first", "data_loading"), ("evaluation", "forward"), ("checkpoint", "host")],
)
def test_other_kinds_of_zones_have_their_cause(kind: str, cause: str) -> None:
    of = job(always({3: {"zone": 20}}))
    as_kind = pl.when(pl.col("name") == "augment").then(pl.lit(kind)).otherwise("kind").alias("kind")
    row = only(replace(of, zones=of.zones.with_columns(as_kind)))
    assert (row.cause, row.zone, row.delay) == (cause, "augment", 20)


def test_distprofs_own_work_is_nobodys_delay() -> None:
    of = job(always({3: {"gc": 20}}))
    as_own = pl.when(pl.col("kind") == "gc").then(pl.lit("own")).otherwise("kind").alias("kind")
    assert judge(replace(of, zones=of.zones.with_columns(as_own))).verdict == "none"


def test_of_several_causes_the_largest_is_named_with_the_whole_delay() -> None:
    assert named(job(always({0: {"forward": 10, "backward": 30, "data_loading": -5}}))) == {0: ("backward", 35)}


def test_a_zone_is_named_by_its_excess_and_not_by_its_length() -> None:
    """The first 9 ms of every fetch are another loader's; on rank 0 the other one takes 5 ms instead of 1."""
    of = job(always({0: {"data_loading": 4}}))
    loading, middle = pl.col("kind") == "data_loading", pl.col("start") + 9_000_000
    long = of.zones.filter(loading).with_columns(end=middle, name=pl.lit("DataLoader#1"))
    short = of.zones.filter(loading).with_columns(start=middle)
    row = only(replace(of, zones=pl.concat([of.zones.filter(~loading), long, short]).sort("rank", "start")))
    assert (row.cause, row.zone, row.delay) == ("data_loading", "DataLoader#0", 4)


def test_two_culprits_are_both_named_the_costliest_first() -> None:
    both = judge(job(always({1: {"forward": 30}, 2: {"forward": 60}}))).ranks
    assert [(row.rank, row.cause, row.delay) for row in both] == [(2, "forward", 60), (1, "forward", 30)]
    # Ranks 0 and 3 wait 60 ms for rank 2, and rank 1 waits 30. Nobody waits for rank 1: rank 2 comes after it.
    assert [row.imposed_wait for row in both] == [50, 0]
    assert [row.last_arrivals for row in both] == [9, 0]
    assert [row.group for row in both] == [0, None]
    apart = always({0: {"data_loading": 20}, 3: {"optimizer": 20}})
    assert named(job(apart)) == {0: ("data_loading", 20), 3: ("optimizer", 20)}


def test_half_of_the_ranks_can_be_late() -> None:
    late: dict[int, Delays] = {rank: {"forward": 20} for rank in (1, 2, 5, 7)}
    assert named(job(always(late), ranks=range(8))) == dict.fromkeys(late, ("forward", 20))


def test_what_most_ranks_do_is_usual() -> None:
    most: dict[int, Delays] = {rank: {"forward": 20} for rank in (0, 1, 2)}
    assert judge(job(always(most))).verdict == "none"
    assert judge(job(always({0: {"forward": -15}}))).verdict == "none", "a fast rank makes nobody late"


def test_ranks_that_are_fast_in_turn_make_nobody_late() -> None:
    """In each step one of three ranks is 12 ms faster: each is later than the fastest in most steps."""
    assert judge(job(lambda rank, step: {} if step % 3 == rank else {"forward": 12}, ranks=range(3))).verdict == "none"


def test_what_hits_all_ranks_alike_is_nobodys() -> None:
    found = judge(job(lambda rank, step: {"forward": 7 * (step % 4), "backward": 20 if rank == 2 else 0}))
    (row,) = found.ranks
    assert (row.rank, row.cause, row.delay) == (2, "backward", 20)
    assert judge(job(lambda rank, step: {"forward": 40 * (step % 4)})).verdict == "none"


def test_below_a_twentieth_of_the_step_nobody_is_named() -> None:
    assert judge(job()).noise == 2.5
    assert judge(job(always({2: {"forward": 2}}))).verdict == "none"
    assert named(job(always({2: {"forward": 3}}))) == {2: ("forward", 3)}


def test_noise_grows_with_the_spread_and_with_few_steps() -> None:
    """In every five steps each rank is 0, 6, 12, 18 and 24 ms late, in an order of its own: one spread throughout."""

    def wobbly(rank: int, step: int) -> Delays:
        return {"forward": 6 * ((rank + 1) * step % 5)}

    found = [judge(job(wobbly, steps=steps)) for steps in (41, 6)]
    noise = [each.noise for each in found]
    # The error of a median falls with the root of its steps, and few of them tell the spread badly: by Student's
    # distribution three standard deviations are 6.62 with five steps and 3.2 with forty. That would be 5.9 times as
    # much, and more than what a single step may be by chance, which holds then.
    assert noise[0] is not None and noise[1] is not None and found[0].noise_of_a_step is not None
    assert noise[1] == found[1].noise_of_a_step
    assert 4 < noise[1] / noise[0] < 8**0.5 * 6.62 / 3.2
    assert noise[0] < found[0].noise_of_a_step / 3
    assert {judge(job(wobbly, steps=steps)).verdict for steps in (41, 6)} == {"none"}


@pytest.mark.parametrize(("late_steps", "pattern"), [(3, "intermittent"), (5, "intermittent"), (6, "persistent")])
def test_persistent_is_what_three_of_five_steps_show(late_steps: int, pattern: str) -> None:
    """The first step, which is step 0, is no steady one: nine are."""
    row = only(job(lambda rank, step: {"forward": 60} if rank == 2 and 1 <= step <= late_steps else {}))
    assert (row.rank, row.cause, row.pattern, row.delay) == (2, "forward", pattern, 60)
    assert row.steps == list(range(1, late_steps + 1))
    assert row.imposed_wait == pytest.approx(60 if pattern == "intermittent" else 40)
    assert row.saved_if_fixed == pytest.approx(60 * late_steps / 9 if pattern == "intermittent" else 40)


def test_where_ranks_share_cores_only_alike_delays_are_a_ranks_own() -> None:
    differ = dict(zip(range(2, 16, 2), (30, 90, 40, 60, 75, 35, 50), strict=True))

    def late(delays: dict[int, float], cpus: int | None) -> Stragglers:
        facts = {rank: {"host": "h", "boot_id": "b", "cpus": cpus} for rank in range(4)}
        return judge(
            job(lambda rank, step: {"backward": delays.get(step, 0)} if rank == 2 else {}, steps=19, facts=facts)
        )

    assert [[row.rank for row in late(differ, cpus).ranks] for cpus in (None, 8)] == [[2], [2]]
    crowded = late(differ, 7)
    assert (crowded.verdict, crowded.ranks) == ("none", [])
    assert crowded.why.endswith(
        "; rank 2 took longer in some of them, by amounts that differ: the host has fewer than two CPUs for each "
        "rank and its threads, which take them from each other"
    )
    (row,) = late(dict.fromkeys(differ, 60), 7).ranks
    assert (row.rank, row.pattern, row.delay) == (2, "intermittent", 60)


def test_once_or_twice_is_an_accident() -> None:
    found = judge(job(lambda rank, step: {"gc": 60} if rank == 2 and step in (3, 6) else {}))
    assert (found.verdict, found.ranks) == ("none", [])


def test_what_happens_to_all_ranks_now_and_then_is_nobodys() -> None:
    """In 29 steps each rank is late three times, by different times, at random."""
    first, second = {3: 21, 9: 40, 20: 12}, {4: 35, 11: 10, 26: 60}
    when = {0: first, 1: second, 2: {6: 14, 7: 25, 15: 41}, 3: {5: 30, 17: 11, 28: 50}}
    found = judge(job(lambda rank, step: {"host": when[rank].get(step, 0)}, steps=30))
    assert (found.verdict, found.ranks) == ("none", [])


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("every", [1, 2])
def test_ranks_that_take_turns(ranks: int, every: int) -> None:
    steps = 20 if every == 1 else 40
    of = job(
        lambda rank, step: {"data_loading": 20} if step % every == 0 and step // every % ranks == rank else {},
        ranks=range(ranks),
        steps=steps,
    )
    rows = judge(of).ranks
    assert {row.rank for row in rows} == set(range(ranks))
    assert {(row.pattern, row.cause, row.delay) for row in rows} == {("rotating", "data_loading", 20)}
    assert sorted(step for row in rows for step in row.steps) == [s for s in range(1, steps) if s % every == 0]


def test_two_that_are_late_at_times_for_reasons_of_their_own_take_no_turns() -> None:
    plants = {1: ("gc", 30, {2, 6, 10, 14}), 2: ("optimizer", 20, {4, 8, 12, 16})}

    def late(rank: int, step: int) -> Delays:
        cause, ms, steps = plants.get(rank, ("gc", 0, set()))
        return {cause: ms if step in steps else 0}

    rows = {row.rank: row for row in judge(job(late, steps=20)).ranks}
    assert {rank: (row.cause, row.delay, set(row.steps), row.pattern) for rank, row in rows.items()} == {
        rank: (*plant, "intermittent") for rank, plant in plants.items()
    }


def test_of_three_ranks_two_are_late_for_different_reasons() -> None:
    """Most ranks are late in all, and yet loading is usual for two and the optimizer for two."""
    apart = always({1: {"data_loading": 20}, 2: {"optimizer": 30}})
    assert named(job(apart, ranks=range(3))) == {1: ("data_loading", 20), 2: ("optimizer", 30)}
    alike = always({1: {"optimizer": 20}, 2: {"optimizer": 30}})
    assert named(job(alike, ranks=range(3))) == {2: ("optimizer", 10)}


def test_nobody_is_late_where_nobody_waits() -> None:
    """Three ranks lose as much, each in another place."""
    apart = always({0: {"forward": 20}, 1: {"data_loading": 20}, 2: {"optimizer": 20}})
    assert judge(job(apart, ranks=range(3))).verdict == "none"


def test_what_is_saved_is_not_credited_twice() -> None:
    both = judge(job(always({1: {"forward": 30}, 2: {"forward": 60}})))
    assert [row.saved_if_fixed for row in both.ranks] == pytest.approx([30, 0])
    assert both.saved_if_all_fixed == pytest.approx(60)


@pytest.mark.parametrize(("elements", "cause"), [(1000, "backward"), (1020, "backward"), (1500, "uneven_work")])
def test_more_elements_in_a_batch_are_a_cause_of_their_own(elements: int, cause: str) -> None:
    """Forward and backward take 30 ms, so that half as many elements again explain 15 of 20 ms."""
    of = job(always({3: {"backward": 15, "forward": 5}}))
    rows = [(rank, step, step, elements if rank == 3 else 1000, step) for rank in range(4) for step in range(10)]
    row = only(replace(of, batches=pl.DataFrame(rows, schema=BATCHES, orient="row")))
    assert (row.rank, row.cause, row.zone, row.delay) == (3, cause, "backward", 20)


@pytest.mark.parametrize(("elements", "cause"), [(1500, "backward"), (3000, "uneven_work"), (2000, "backward")])
def test_long_work_may_take_longer_than_in_proportion(elements: int, cause: str) -> None:
    """Three times as many explain 60 of 240 ms: a busy machine interrupts long work more often."""
    of = job(always({3: {"backward": 180, "forward": 60}}))
    rows = [(rank, step, step, elements if rank == 3 else 1000, step) for rank in range(4) for step in range(10)]
    row = only(replace(of, batches=pl.DataFrame(rows, schema=BATCHES, orient="row")))
    assert (row.rank, row.cause, row.delay) == (3, cause, 240)


def test_a_delay_that_work_does_not_explain_keeps_its_cause() -> None:
    of = job(always({3: {"gc": 20}}))
    rows = [(rank, step, step, 1500 if rank == 3 else 1000, step) for rank in range(4) for step in range(10)]
    assert only(replace(of, batches=pl.DataFrame(rows, schema=BATCHES, orient="row"))).cause == "gc"


def test_ranks_of_another_role_are_no_peers() -> None:
    """Ranks 2 and 3 gather among themselves, and their forward takes 60 ms longer: they do other work."""
    of = job(always({2: {"forward": 60}, 3: {"forward": 60}}), groups=[range(4), (2, 3)])
    gathers = [
        (rank, 1, step, "all_gather", 8, "Float", step, None, None, step, None, None, None, None)
        for rank in (2, 3)
        for step in range(1, 10)
    ]
    more = pl.DataFrame(gathers, schema=COLLECTIVES, orient="row")
    assert named(of) == {2: ("forward", 60), 3: ("forward", 60)}
    assert judge(replace(of, collectives=pl.concat([of.collectives, more]))).verdict == "none"
    # Out of the steps that are judged it says nothing: all ranks may not have lived to the end.
    at_the_end = more.with_columns(step=pl.lit(None, dtype=pl.Int64))
    assert set(named(replace(of, collectives=pl.concat([of.collectives, at_the_end])))) == {2, 3}


def test_nobody_is_named_where_nobody_is_late() -> None:
    found = judge(job())
    assert (found.verdict, found.ranks, found.steps_used, found.basis) == ("none", [], 9, "zones")
    assert found.why == "no rank's own time per step exceeds its peers' by more than 2.5 ms in 9 steps"


def test_one_rank_holds_nobody_up() -> None:
    found = judge(job(ranks=[0], calls=False))
    assert (found.verdict, found.why) == ("none", "there is one rank, and nobody waits for it")


HOSTS = {rank: {"host": f"host{rank % 2}", "boot_id": f"boot{rank % 2}"} for rank in range(4)}
SLOW = always({1: {"forward": 60}})


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (job(SLOW, steps=3), "too few steps: 2 steady on all ranks, and 3 are needed"),
        (job(SLOW, facts=HOSTS), "the ranks' clocks are not aligned"),
        (job(SLOW, source="none"), "no step boundary was found"),
        (job(SLOW, calls=False), "no collective was seen in which ranks wait for each other"),
        (job(missing=[3]), "rank 3 left no recording of steps and may be who the others waited for"),
        (job(missing=[0, 2]), "ranks 0, 2 left no recording of steps and may be who the others waited for"),
        (job(missing=[1, 2, 3]), "ranks 1–3 left no recording of steps and may be who the others waited for"),
        (tables(ranks=[], world_size=4), "no rank left a recording"),
    ],
)
def test_undecided_says_why(of: Tables, why: str) -> None:
    found = judge(of)
    assert (found.verdict, found.why, found.ranks) == ("undecided", why, [])


def test_a_culprit_is_named_though_another_rank_left_nothing() -> None:
    section, missing = stragglers(inputs(job(always({2: {"forward": 60}}), missing=[0])))
    (row,) = section.ranks
    assert (row.rank, row.cause, row.delay) == (2, "forward", 60)
    assert row.imposed_wait is None, "rank 0 may have come even later"
    assert (row.last_arrivals, row.of_collectives, row.group) == (0, 0, None)
    assert {(what.what, tuple(what.ranks or ())) for what in missing} == {
        ("stragglers.ranks.saved_if_fixed", (2,)),
        ("stragglers.ranks.imposed_wait", (2,)),
        ("stragglers.saved_if_all_fixed", ()),
    }
    assert "rank 0 left no recording of steps and may be another" in section.why


def test_a_rank_that_recorded_no_step_is_as_good_as_missing() -> None:
    """Its zones were lost: the others are judged without it."""

    def without_zones_of_rank_3(of: Tables) -> Tables:
        others = pl.col("rank") != 3
        return replace(of, zones=of.zones.filter(others), steps=of.steps.filter(others))

    assert named(without_zones_of_rank_3(job(SLOW))) == {1: ("forward", 60)}
    found = judge(without_zones_of_rank_3(job()))
    assert (found.verdict, found.steps_used) == ("undecided", 9)
    assert found.why == "rank 3 left no recording of steps and may be who the others waited for"


def test_a_rank_without_peers_is_not_judged() -> None:
    """Rank 3's collectives were lost: when it was blocked is not known."""

    def without_collectives_of_rank_3(of: Tables) -> Tables:
        return replace(of, collectives=of.collectives.filter(pl.col("rank") != 3))

    assert named(without_collectives_of_rank_3(job(SLOW))) == {1: ("forward", 60)}
    found = judge(without_collectives_of_rank_3(job()))
    assert found.verdict == "undecided"
    assert found.why == "rank 3 had other collectives than all others, so that there is nobody to compare with"


def test_steps_are_listed_up_to_a_hundred() -> None:
    assert only(job(always({0: {"forward": 20}}), steps=130, buckets=1)).steps == list(range(1, 101))
