"""Who is whose peer: programs of collectives by rank, each called in every step. Times are ms."""

from __future__ import annotations

import pytest

from distprof.analyze.evidence import of_run
from distprof.analyze.roles import Roles, roles
from tests.unit.tables import Call, Kernel, Step, Zone, inputs, tables

STEPS = (1, 2, 3, 4)
BIG, SMALL = 100_000, 4
Program = list[tuple[str, int, int | None]]  # kind, group, bytes; `send` and `recv` are kernels, as of NCCL


def found(
    programs: dict[int, Program], groups: list[list[int]], *, buckets: int | None = None, named: bool = True
) -> Roles:
    """The roles of ranks with these programs; collectives of the group `buckets` are DDP's."""
    calls, kernels = [], []
    for rank, program in programs.items():
        seqs: dict[int, int] = {}
        for step in STEPS:
            for place, (kind, group, size) in enumerate(program):
                at = 100.0 * step + 5 * place + 1
                if kind in ("send", "recv"):
                    what = kind if named else "send_recv"
                    kernels.append(Kernel(rank, at, at + 1, collective=what, launched=at - 0.5))
                else:
                    seqs[group] = seqs.get(group, 0) + 1
                    bucket = 0 if group == buckets else None
                    calls.append(
                        Call(rank, seqs[group], at, kind=kind, group=group, bytes=size, step=step, bucket=bucket)
                    )
    steps = [Step(rank, step, 100.0 * step, 100.0 * step + 100) for rank in programs for step in STEPS]
    of = tables(ranks=sorted(programs), calls=calls, kernels=kernels, steps=steps, groups=groups)
    return roles(of_run(inputs(of)))


def every(ranks: int, program: Program) -> dict[int, Program]:
    return dict.fromkeys(range(ranks), program)


def test_ranks_that_only_meet_all_together_do_the_same() -> None:
    one = found(every(4, [("all_reduce", 0, SMALL)]), [[0, 1, 2, 3]])
    assert (one.members, one.alone, one.certain) == ([[0, 1, 2, 3]], [], True)


def test_tensor_and_data_parallel_groups_make_one_role() -> None:
    """Each rank is in one of either."""
    groups = [[0, 1, 2, 3], [0, 1], [2, 3], [0, 2], [1, 3]]
    programs: dict[int, Program] = {
        rank: [("all_reduce", 1 + rank // 2, 5000), ("all_reduce", 3 + rank % 2, BIG), ("barrier", 0, 0)]
        for rank in range(4)
    }
    one = found(programs, groups)
    assert (one.members, one.alone, one.certain) == ([[0, 1, 2, 3]], [], False)


@pytest.mark.parametrize("size", [BIG, None])
def test_replicas_of_a_stage_are_peers_and_stages_are_not(size: int | None) -> None:
    """What is handed on is called by the one at its end and by the other one at its beginning."""
    groups = [[0, 1, 2, 3], [0, 1], [2, 3], [0, 2], [1, 3]]
    programs: dict[int, Program] = {
        rank: [("all_reduce", 3 + rank % 2, 2000)]
        + ([("all_gather", 1, size)] if rank < 2 else [("all_gather", 2, size)])
        for rank in range(4)
    }
    programs |= {rank: [programs[rank][1], programs[rank][0]] for rank in (0, 1)}
    assert sorted(found(programs, groups).members) == [[0, 1], [2, 3]]


def test_a_norm_that_stages_add_up_makes_them_no_peers() -> None:
    groups = [[0, 1, 2, 3], [0, 1], [2, 3], [0, 2], [1, 3]]
    programs: dict[int, Program] = {
        rank: [("all_reduce", 1 + rank // 2, BIG), ("all_reduce", 3 + rank % 2, SMALL)] for rank in range(4)
    }
    assert sorted(found(programs, groups).members) == [[0, 1], [2, 3]]


def test_all_are_peers_who_reduce_as_much_together_as_in_their_groups() -> None:
    groups = [[0, 1, 2, 3], [0, 1], [2, 3]]
    for size, members in ((BIG, [[0, 1, 2, 3]]), (2 * SMALL, [[0, 1], [2, 3]]), (None, [[0, 1], [2, 3]])):
        programs: dict[int, Program] = {
            rank: [("all_gather", 1 + rank // 2, 5000), ("all_reduce", 0, size)] for rank in range(4)
        }
        assert sorted(found(programs, groups).members) == members


def test_a_barrier_of_each_host_takes_nobody_apart() -> None:
    groups = [[0, 1, 2, 3], [0, 1], [2, 3]]
    programs: dict[int, Program] = {rank: [("barrier", 1 + rank // 2, 0), ("all_reduce", 0, 4096)] for rank in range(4)}
    assert found(programs, groups).members == [[0, 1, 2, 3]]


@pytest.mark.parametrize("named", [True, False])
def test_stages_of_one_rank_each_are_alone(named: bool) -> None:
    """The first sends before it receives, and the last receives first; a loss is added up by both."""
    first: Program = [("send", 0, None), ("recv", 0, None), ("all_reduce", 0, SMALL)]
    last: Program = [("recv", 0, None), ("send", 0, None), ("all_reduce", 0, SMALL)]
    one = found({0: first, 1: last}, [[0, 1]], named=named)
    assert (sorted(one.members), one.alone, one.certain) == ([[0], [1]], [0, 1], False)


def test_the_first_and_the_last_stage_that_share_an_embedding_are_no_peers() -> None:
    first: Program = [("send", 0, None), ("recv", 0, None), ("all_reduce", 1, BIG), ("all_reduce", 0, SMALL)]
    last: Program = [("recv", 0, None), ("send", 0, None), ("all_reduce", 1, BIG), ("all_reduce", 0, SMALL)]
    middle: Program = [("recv", 0, None), ("send", 0, None), ("recv", 0, None), ("send", 0, None)]
    middle = [*middle, ("all_reduce", 0, SMALL)]
    one = found({0: first, 1: middle, 2: last}, [[0, 1, 2], [0, 2]])
    assert sorted(one.members) == [[0], [1], [2]]


def test_ranks_that_send_in_a_ring_and_reduce_gradients_are_peers() -> None:
    ring: Program = [("send", 0, None), ("recv", 0, None), ("all_reduce", 0, BIG)]
    assert found(every(4, ring), [[0, 1, 2, 3]]).members == [[0, 1, 2, 3]]
    assert len(found(every(4, [*ring[:2], ("all_reduce", 0, SMALL)]), [[0, 1, 2, 3]]).members) == 4


def test_who_reduces_ddps_buckets_together_is_a_replica_whatever_else_there_is() -> None:
    programs = every(4, [("send", 0, None), ("recv", 0, None), ("all_reduce", 0, SMALL)])
    one = found(programs, [[0, 1, 2, 3]], buckets=0)
    assert (one.members, one.alone, one.certain) == ([[0, 1, 2, 3]], [], True)


def test_what_is_sent_in_few_steps_only_tells_nothing() -> None:
    """Each step adds up a loss and waits for it; rank 0 waits for something else before that."""

    def certain(steps: tuple[int, ...]) -> bool:
        zones = [Zone(rank, "wait", 100.0 * step + 60, 100.0 * step + 61) for rank in (0, 1) for step in STEPS]
        zones += [Zone(0, "wait", 100.0 * step + 20, 100.0 * step + 30) for step in steps]
        calls = [Call(rank, step, 100.0 * step + 59, step=step) for rank in (0, 1) for step in STEPS]
        made = [Step(rank, step, 100.0 * step, 100.0 * step + 100) for rank in (0, 1) for step in STEPS]
        return roles(of_run(inputs(tables(ranks=[0, 1], calls=calls, steps=made, zones=zones)))).certain

    assert certain(()) and certain((2,))
    assert not certain((1, 3)) and not certain(STEPS)
