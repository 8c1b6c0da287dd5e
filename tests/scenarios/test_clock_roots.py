"""Clocks in worlds that meet in collectives with a root: what one root tells is one-sided, and the truth is covered."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from distprof.clock.align import align
from tests.scenarios.test_clocks import Checked, check
from tests.worlds import Clock, Collective, Compute, Delay, Segment, World, Zone
from tests.worlds.play import play
from tests.worlds.recorded import tables_of

KINDS = ("broadcast", "scatter", "reduce", "gather")


def rooted(kinds: tuple[str, ...], roots: tuple[int, ...], *, reduces_each: int | None) -> World:
    """Ranks on hosts of their own, which in each step meet once for each of `roots`, and all in an all-reduce in every
    `reduces_each`-th step."""

    def script(world: World, rank: int, step: int) -> list[Segment]:
        met = [Collective(kind, root=root, bytes=512, transfer=0.05) for kind in kinds for root in roots]
        if reduces_each is not None and step % reduces_each == 0:
            met.append(Collective())
        body = [segment for one in met for segment in (Compute(2.0), one)]
        return [Zone("backward", "backward", tuple(body))]

    return World(
        ranks=4,
        steps=12,
        ranks_per_host=1,
        clocks=[Clock(), Clock(1500, 80), Clock(-40, -120), Clock(3, 15)],
        source="backward",
        jitter=0.2,
        windows=((0, 12),),
        script=script,
    )


def checked(world: World) -> list[Checked]:
    played = play(world)
    tables = tables_of(played)
    clock, missing = align(tables)
    assert not any("was set" in row.reason for row in missing)
    rows = check(played, tables, clock)
    for row in rows:
        assert row.bound is None or row.wrong <= row.bound + 0.01, row
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_roots_that_change_bound_clocks_from_both_sides(kind: str, seed: int) -> None:
    """There is nothing else, so that no ends are known to be one moment: there is a bound, and no error."""
    rows = checked(replace(rooted((kind,), (0, 1, 2, 3), reduces_each=None), seed=seed))
    assert [row.error for row in rows] == [None] * 3
    for row in rows:
        assert row.bound is not None
        assert 0 < row.bound < 5_000


@pytest.mark.parametrize("kind", KINDS)
def test_one_root_alone_tells_one_side_and_no_offset(kind: str) -> None:
    assert checked(rooted((kind,), (0,), reduces_each=None)) == []


@pytest.mark.parametrize("kinds", [("broadcast", "reduce"), ("scatter", "gather")])
def test_to_and_from_one_root_are_both_sides(kinds: tuple[str, ...]) -> None:
    assert [row.bound is not None for row in checked(rooted(kinds, (0,), reduces_each=None))] == [True] * 3


def test_broadcasts_beside_all_reduces_narrow_the_bound() -> None:
    """Rank 2 comes late to every all-reduce; only broadcasts from it tell that its clock is not ahead."""
    late = Delay(rank=2, kind="host", ms=20.0, before="backward")
    bounds = []
    for roots in ((), (0, 2)):
        world = replace(rooted(("broadcast",), roots, reduces_each=2), delays=[late])
        rows = checked(world)
        bounds.append([row.bound for row in rows])
    without, with_them = bounds
    assert all(narrow < wide for narrow, wide in zip(with_them, without, strict=True) if narrow and wide)
    assert None not in without + with_them
    assert min(without) > 2 * max(with_them)  # type: ignore[type-var, operator]


@pytest.mark.parametrize("seed", range(12))
def test_the_truth_lies_within_the_bound_whatever_is_drawn(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    roots = tuple(draw.sample(range(size), draw.randint(1, size)))
    kinds = tuple(draw.sample(KINDS, draw.randint(1, 4)))
    world = replace(
        rooted(kinds, roots, reduces_each=draw.choice([1, 5])),
        ranks=size,
        seed=seed,
        clocks=[Clock(draw.uniform(-5000, 5000), draw.uniform(-200, 200)) for _ in range(size)],
        ends_apart=draw.choice([0.0, 0.3]),
        delays=[Delay(rank=draw.randrange(size), kind="host", ms=draw.choice([1.0, 30.0]), before="backward")],
    )
    rows = checked(world)
    assert [row.bound is not None for row in rows] == [True] * (size - 1)


def test_members_that_tell_different_roots_tell_none() -> None:
    played = play(rooted(("broadcast",), (0, 1, 2, 3), reduces_each=None))
    tables = tables_of(played)
    own = tables.collectives.with_columns(root=tables.collectives["rank"])
    clock, _ = align(replace(tables, collectives=own))
    assert clock.verdict == "unaligned"
    assert align(tables)[0].verdict == "aligned"
