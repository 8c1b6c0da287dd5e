"""Own time by step and zone; times are ms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distprof.analyze.own_time import DEVICE, HOST, OwnTime, own_time
from distprof.analyze.ranks import of_rank
from distprof.analyze.waits import match, waits_in
from distprof.analyze.work import work_of
from distprof.trace.intervals import EMPTY, subtract
from tests.unit.jobs import always, job
from tests.unit.tables import Call, Kernel, Step, Zone, inputs, tables


def ms(own: OwnTime, rank: int, step: int) -> dict[str, float]:
    """What is not zero, by the kind of zone."""
    found: dict[str, float] = {}
    cell = own.own[own.ranks.index(rank), own.steps.index(step)]
    for (kind, _), value in zip(own.zones, cell.tolist(), strict=True):
        if value:
            found[kind] = found.get(kind, 0) + value / 1e6
    return found


HEALTHY = {"optimizer": 5, "data_loading": 10, "forward": 20, "backward": 10}


def test_own_time_is_net_of_waits_and_transfers() -> None:
    own = inputs(job(always({2: {"data_loading": 60}}))).own
    assert own.steps == list(range(1, 10)), "the first step is none of them"
    for step in own.steps:
        assert ms(own, 2, step) == HEALTHY | {"data_loading": 70}
        assert ms(own, 0, step) == HEALTHY, "its backward zone takes 75 ms, of which 65 are the wait and the transfer"


@pytest.mark.parametrize("kind", ["optimizer", "data_loading", "forward", "backward", "zone", "gc", "host"])
def test_a_delay_lies_where_it_was(kind: str) -> None:
    own = inputs(job(always({1: {kind: 30}}))).own
    assert ms(own, 1, 4) == HEALTHY | {kind: HEALTHY.get(kind, 0) + 30}
    assert ms(own, 3, 4) == HEALTHY


def test_a_delay_after_backward_is_in_the_step_whose_collectives_it_holds_up() -> None:
    """The optimizer that ends step 3 is slow; the others wait in step 4."""
    own = inputs(job(lambda rank, step: {"optimizer": 40} if (rank, step) == (0, 4) else {})).own
    total = own.own.sum(axis=2) / 1e6
    assert total[0].tolist() == [45, 45, 45, 85, 45, 45, 45, 45, 45]
    assert ms(own, 0, 4)["optimizer"] == 45
    assert (total[1:] == 45).all()


def test_the_innermost_zone_wins() -> None:
    zones = [
        Zone(0, "zone", 0, 100, "all"),
        Zone(0, "forward", 10, 60, "Net#0"),
        Zone(0, "zone", 20, 50, "part"),
        Zone(0, "gc", 30, 35, "generation 2"),
        Zone(0, "backward", 70, 90, "backward", thread=1),
    ]
    own = inputs(tables(ranks=[0], zones=zones, steps=[Step(0, 1, 0, 110)])).own
    by_name = dict(zip(own.zones, (own.own[0, 0] / 1e6).tolist(), strict=True))
    assert by_name == {
        HOST: 10,
        ("zone", "all"): 50,  # 10 before forward and 40 after it: what another thread does meanwhile is not looked at
        ("forward", "Net#0"): 20,
        ("zone", "part"): 25,
        ("gc", "generation 2"): 5,
    }


def test_steps_are_cut_at_the_last_release_in_each() -> None:
    """Waits end at 20, 50 (step 1) and 140 (step 2); there is none in step 3."""
    zones = [Zone(0, "wait", 10, 20), Zone(0, "wait", 45, 50), Zone(0, "wait", 120, 140)]
    steps = [Step(0, step, 100 * step - 100, 100 * step) for step in (1, 2, 3)]
    own = inputs(tables(ranks=[0], zones=zones, steps=steps)).own
    assert (own.own[0, :, 0] / 1e6).tolist() == [
        35,  # 0 to 50, less 10 and 5
        70,  # 50 to 140, less 20
        160,  # 140 to 300: nothing met in this step, so it goes to its end
    ]


def test_a_step_after_one_that_is_kept_out_begins_at_its_release() -> None:
    zones = [Zone(0, "wait", 40, 50), Zone(0, "wait", 140, 150)]
    steps = [Step(0, 1, 0, 100, "export"), Step(0, 2, 100, 200)]
    own = inputs(tables(ranks=[0], zones=zones, steps=steps)).own
    assert own.steps == [2]
    assert (own.own / 1e6).tolist() == [[[90]]], "from 50 to 150, less 10"


def test_only_steps_that_are_steady_on_all_ranks_count() -> None:
    steps = [Step(rank, step, 100 * step, 100 * step + 100) for rank in (0, 1) for step in range(3 - rank)]
    own = inputs(tables(ranks=[0, 1], steps=steps)).own
    assert own.steps == [0, 1]
    assert own.own.shape == (2, 2, 1)


def test_a_rank_that_recorded_no_step_is_left_out() -> None:
    own = inputs(tables(ranks=[0, 1], zones=[Zone(1, "forward", 0, 9)], steps=[Step(0, 5, 0, 10)])).own
    assert (own.ranks, own.steps) == ([0], [5])
    assert own.of_kind("host").tolist() == [[10_000_000]]


def test_of_kind_adds_zones_of_these_kinds() -> None:
    zones = [Zone(0, "optimizer", 0, 5, "A#0"), Zone(0, "optimizer", 5, 8, "A#1"), Zone(0, "gc", 10, 11)]
    own = inputs(tables(ranks=[0], zones=zones, steps=[Step(0, 1, 0, 20)])).own
    assert own.of_kind("optimizer").tolist() == [[8_000_000]]
    assert own.of_kind("optimizer", "gc").tolist() == [[9_000_000]]
    assert own.of_kind("forward").tolist() == [[0]]


def test_a_rank_without_zones_has_host_time() -> None:
    own = inputs(tables(ranks=[0], steps=[Step(0, 1, 0, 20)], calls=[Call(0, 1, 5)], groups=[(0, 1)])).own
    assert own.zones == [HOST]
    assert np.array_equal(own.own, [[[20_000_000]]])


def on_devices(starts: dict[int, float], *, told: tuple[float, float] | None = None) -> OwnTime:
    """Two ranks' devices compute 50 and 25 ms in each of three steps, with a collective after either; on rank 1 the
    second takes 10 ms more. The last one ends at 101 ms of a step, when rank 0's host has marked the next one and rank
    1's has not.

    Args:
        starts: when each host began its first step.
        told: when each rank's trace says that the second collective of a step was launched, wrongly, after its start.
    """
    steps, calls, kernels = [], [], []
    for rank, ahead in ((0, 0.0), (1, 2.0)):
        edges = [starts[rank], *(100.0 * step + ahead for step in (2, 3, 4))]
        steps += [Step(rank, step, *edges[step - 1 : step + 1]) for step in (1, 2, 3)]
        for step in (1, 2, 3):
            for half, (begin, work, end) in enumerate(((1, 50, 61), (61, 25 + 10 * rank, 101))):
                at, seq = 100.0 * step, 2 * step + half
                arrived = at + begin + work
                created = at + told[rank] if told and half else max(at + 10, starts[rank] + 1) + half
                number = next((n for n in (1, 2, 3) if edges[n - 1] <= created < edges[n]), None)
                calls.append(Call(rank, seq, created, at + end, arrived, step=number))
                kernels.append(Kernel(rank, at + begin, arrived))
                kernels.append(Kernel(rank, arrived, at + end, collective="all_reduce"))
    of = replace(
        tables(ranks=[0, 1], steps=steps, calls=calls, kernels=kernels),
        arrival="started",
    )
    matched = match(of)
    work = {rank: work_of(of, rank) for rank in (0, 1)}
    waits = {rank: waits_in(of_rank(matched, rank), subtract(work[rank].comm, work[rank].compute)) for rank in (0, 1)}
    return own_time(of, waits, [1, 2, 3], {rank: work[rank].compute for rank in (0, 1)}, matched)


@pytest.mark.parametrize("told", [None, (99, 102.5), (99, 104)])
def test_a_device_is_cut_where_the_last_collective_of_a_step_ended(told: tuple[float, float] | None) -> None:
    own = on_devices({0: 100, 1: 101}, told=told)
    device = own.zones.index(DEVICE)
    assert (own.own[:, :, device] / 1e6).tolist() == [[75, 75, 75], [85, 85, 85]]
    assert [(pieces.span[0] / 1e6, pieces.span[1] / 1e6) for pieces in own.pieces] == [(100, 401), (101, 401)]


def test_windows_that_open_apart_begin_with_the_first_release() -> None:
    """Rank 1's shows nothing of the first half of step 1."""
    own = on_devices({0: 100, 1: 130})
    device = own.zones.index(DEVICE)
    assert (own.own[:, :, device] / 1e6).tolist() == [[25, 75, 75], [35, 85, 85]]
    assert [pieces.span[0] / 1e6 for pieces in own.pieces] == [161, 161]


def test_a_device_that_met_nobody_is_cut_where_its_host_ends_the_step() -> None:
    steps = [Step(0, step, 100.0 * step, 100.0 * step + 100) for step in (1, 2)]
    of = replace(tables(ranks=[0], steps=steps, kernels=[Kernel(0, 150, 250)]), arrival="started")
    matched = match(of)
    computing = {0: work_of(of, 0).compute}
    own = own_time(of, {0: waits_in(matched, EMPTY)}, [1, 2], computing, matched)
    assert (own.own[0] / 1e6).tolist() == [[50, 50], [50, 50]], "between zones, and on the device"
