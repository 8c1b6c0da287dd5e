"""Clocks in worlds whose truth is known: the bound holds every time, and what follows from it for the verdicts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import distprof
from distprof.clock.align import align
from distprof.clock.shift import corrections, shifted
from distprof.pipeline import build
from distprof.result import Clock as Found
from distprof.result import Result
from distprof.trace.tables import Tables
from tests.conftest import Tell
from tests.worlds import Clock, Collective, Compute, Delay, Probes, Segment, World, Zone, ddp_step, write
from tests.worlds.play import Played, play
from tests.worlds.recorded import local, tables_of

WORLDS = 50
SOAKED = 500


def chain_step(world: World, rank: int, step: int) -> list[Segment]:
    """Ranks in a chain reduce with those beside them only: most never meet rank 0."""
    groups = [str(number) for number, members in enumerate(world.groups, start=1) if rank in members]
    return [Zone("backward", "backward", (Compute(3.0), *(Collective(group=group) for group in groups)))]


def drawn(seed: int) -> World:
    """A world of any size, with clocks, delays and evidence of any kind."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 32, 64])
    steps = draw.randint(4, 20) if ranks < 16 else draw.randint(4, 6)
    per_host = draw.choice([1, 1, 2, 4])
    hosts = -(-ranks // per_host)
    drift = draw.choice([0.0, 20.0, 200.0])
    chain = draw.random() < 0.2
    probes = None
    if draw.random() < 0.5:
        there, back = draw.uniform(0.01, 1.0), draw.uniform(0.01, 1.0)
        probes = Probes(
            every=draw.uniform(5, 200), there=there, back=draw.choice([there, back]), delay=draw.uniform(0, 2)
        )
    first = draw.randrange(steps - 1)
    late = Delay(rank=draw.randrange(ranks), kind="forward", ms=draw.choice([0.5, 5.0, 50.0]))
    sometimes = [Delay(rank=draw.randrange(ranks), kind="forward", ms=20.0, steps=range(0, steps, 2)) for _ in range(2)]
    return World(
        ranks=ranks,
        steps=steps,
        seed=seed,
        ranks_per_host=per_host,
        clocks=[Clock(draw.uniform(-5000, 5000), draw.uniform(-drift, drift)) for _ in range(hosts)],
        jitter=draw.choice([0.02, 0.2, 0.5]),
        ends_apart=draw.choice([0.0, 0.0, 0.05, 0.5]),
        delays=[] if chain else draw.choice([[], [late], sometimes]),
        probes=probes,
        windows=draw.choice([((first, steps),), ((first, first + 1),), ()]),
        broadcast_buffers=draw.random() < 0.3,
        groups=[(rank, rank + 1) for rank in range(ranks - 1)] if chain else (),
        source="backward" if chain else "optimizer",
        script=chain_step if chain else ddp_step,
    )


@dataclass(frozen=True)
class Checked:
    """A rank's clock in one world, in us: `wrong` is the most that it is at any time of the run, `midway` the same of
    the middle of the tightest constraint between the rank and the reference, None without any."""

    wrong: float
    midway: float | None
    bound: float | None
    error: float | None


def check(played: Played, tables: Tables, clock: Found) -> list[Checked]:
    """Compare what was found with the truth; ranks of the reference's host are left out."""
    reference = played.ranks[clock.reference_rank or 0]
    by = corrections(clock)
    rows = []
    for row in clock.ranks:
        rank = played.ranks[row.rank]
        if row.offset_us is None or played.world.host_of(row.rank) == played.world.host_of(reference.number):
            continue
        times = [int(time) for time in np.linspace(rank.begin, rank.end, 25)]
        own = np.array([local(played.world, rank, time) for time in times])
        true = np.array([local(played.world, reference, time) for time in times])
        midway = midpoint(played.world, tables, row.rank, reference.number)
        rows.append(
            Checked(
                wrong=float(np.abs(by.of(row.rank)(own) - true).max()) / 1e3,
                midway=None if midway is None else float(np.abs(own - true - midway).max()) / 1e3,
                bound=row.bound_us,
                error=row.error_us,
            )
        )
    return rows


def midpoint(world: World, tables: Tables, rank: int, reference: int) -> float | None:
    """The middle, in ns, of the tightest single probe or collective between a rank and the reference, found naively."""
    probes = tables.probes.filter((pl.col("rank") == rank) & (pl.col("peer") == reference))
    most, least = probes["received"] - probes["peer_sent"], probes["sent"] - probes["peer_received"]
    calls = tables.collectives.filter(pl.col("ended").is_not_null() & (pl.col("kind") == "all_reduce"))
    both = calls.filter(rank=rank).join(calls.filter(rank=reference), on=["group", "seq", "kind"], suffix="_ref")
    most = pl.concat([most, both["ended"] - both["started_ref"]])
    least = pl.concat([least, both["started"] - both["ended_ref"]])
    if not len(most):
        return None
    tightest = (most - least).arg_min()
    assert tightest is not None
    return (most[tightest] + least[tightest]) / 2


def truth_holds(seeds: Sequence[int]) -> dict[str, float]:
    """Check these worlds; returns figures on all of them."""
    rows: list[Checked] = []
    aligned = 0
    for seed in seeds:
        world = drawn(seed)
        played = play(world)
        tables = tables_of(played)
        clock, missing = align(tables)
        assert not any("was set" in row.reason for row in missing), f"world {seed} has no step"
        of_world = check(played, tables, clock)
        for row in of_world:
            assert row.bound is None or row.wrong <= row.bound + 0.01, f"world {seed}: {row}"
            assert row.bound is None or row.error is None or row.error <= row.bound, f"world {seed}: {row}"
            agree = world.ends_apart == 0
            assert not agree or row.error is None or row.wrong <= row.error + 1, f"world {seed}: {row}"
        rows += of_world
        aligned += clock.verdict != "unaligned"
    bounded = [row for row in rows if row.bound is not None]
    compared = [(row.wrong, row.midway) for row in bounded if row.midway is not None]
    return {
        "worlds": len(seeds),
        "aligned": aligned,
        "clocks": len(rows),
        "bounded": len(bounded),
        "median bound": float(np.median([row.bound for row in bounded])),
        "median wrong": float(np.median([row.wrong for row in bounded])),
        "most of its bound": max(row.wrong / row.bound for row in bounded if row.bound),
        "median midway": float(np.median([midway for _, midway in compared])),
        "mean wrong of compared": float(np.mean([wrong for wrong, _ in compared])),
        "mean midway": float(np.mean([midway for _, midway in compared])),
    }


def test_the_truth_lies_within_the_bound_in_50_worlds() -> None:
    figures = truth_holds(range(WORLDS))
    assert figures["aligned"] > 0.6 * WORLDS
    assert figures["bounded"] > 100
    assert figures["mean wrong of compared"] <= figures["mean midway"]


@pytest.mark.soak
def test_the_truth_lies_within_the_bound_in_500_worlds(tell: Tell) -> None:
    figures = truth_holds(range(1000, 1000 + SOAKED))
    tell(f"clocks, in us: {', '.join(f'{name} {figure:.4g}' for name, figure in figures.items())}")
    assert figures["mean wrong of compared"] <= figures["mean midway"]


@pytest.mark.parametrize("by", [-30.0, 30.0, 400.0])
@pytest.mark.parametrize("host", [0, 1, 2])
@pytest.mark.parametrize("evidence", ["probes", "collectives"])
def test_a_clock_that_was_set_is_named_with_the_time(evidence: str, host: int, by: float) -> None:
    clocks = [Clock(), Clock(offset_ms=-2500, drift_ppm=55), Clock(drift_ppm=-100)]
    clocks[host] = replace(clocks[host], set_by=by, set_at=700.0)
    probes, windows = (Probes(), ()) if evidence == "probes" else (None, ((1, 39),))
    world = World(ranks=6, steps=40, ranks_per_host=2, clocks=clocks, probes=probes, windows=windows)
    clock, missing = align(tables_of(play(world)))
    assert clock.verdict == "unaligned"
    [note] = [row for row in missing if "was set" in row.reason]
    assert note.ranks == [2 * host, 2 * host + 1]
    found = re.search(r"between (\S+) and (\S+) s after its first record, by about (\S+) ms", note.reason)
    assert found is not None
    first, last, size = map(float, found.groups())
    assert size == pytest.approx(by, abs=1)
    jump = abs(by) / 1e3
    assert first - jump <= 0.7 <= last + jump
    assert last - first < 0.15 + jump
    assert clock.ranks[2 * host].offset_us is None


def test_what_was_set_on_one_of_two_hosts_is_not_blamed_on_either() -> None:
    clocks = [Clock(), Clock(offset_ms=-2500, set_by=30.0, set_at=700.0)]
    world = World(ranks=2, steps=40, ranks_per_host=1, clocks=clocks, probes=Probes())
    clock, missing = align(tables_of(play(world)))
    assert clock.verdict == "unaligned"
    assert any("its clock, or that of rank 0, was set" in row.reason for row in missing)


SLOW = Delay(rank=2, kind="forward", ms=8.0)
TWO_HOSTS = World(
    steps=60,
    ranks_per_host=2,
    clocks=[Clock(), Clock(offset_ms=250, drift_ppm=20)],
    delays=[SLOW],
)


def result_of(world: World, path: Path) -> Result:
    write(world, path / "run")
    return build(distprof.load(path / "run"))


@pytest.mark.parametrize(
    ("changed", "confidence"),
    [
        ({"clocks": (), "ranks_per_host": None}, "same_clock"),
        ({"probes": Probes()}, "bound"),
        # By causality alone, one who always comes last by 8 ms may as well have a clock that is 8 ms ahead.
        ({"windows": ((5, 30),)}, "ends_agree"),
    ],
    ids=["one host", "probes", "ends in a window"],
)
def test_what_a_verdict_stands_on(changed: dict[str, Any], confidence: str, tmp_path: Path) -> None:
    result = result_of(replace(TWO_HOSTS, **changed), tmp_path)
    [row] = result.stragglers.ranks
    assert (row.rank, row.cause, row.confidence) == (2, "forward", confidence)
    assert row.imposed_wait == pytest.approx(8, rel=0.1)


def test_lateness_below_what_the_clocks_may_be_wrong_by_is_undecided(tmp_path: Path) -> None:
    """A window at the beginning of 9 s, so that nobody knows how far the clocks have drifted at the end."""
    result = result_of(replace(TWO_HOSTS, steps=250, windows=((2, 3),)), tmp_path)
    assert result.stragglers.verdict == "undecided"
    assert "what the clocks of the ranks may be wrong by" in result.stragglers.why


def test_without_evidence_all_of_it_is_undecided(tmp_path: Path) -> None:
    result = result_of(replace(TWO_HOSTS, windows=()), tmp_path)
    assert result.clock.verdict == "unaligned"
    assert result.stragglers.verdict == "undecided"
    assert result.communication.wait is None


def test_probes_are_read_and_broken_lines_noted(tmp_path: Path) -> None:
    world = replace(TWO_HOSTS, probes=Probes(), windows=())
    write(world, tmp_path / "run")
    path = tmp_path / "run" / "attempt0" / "rank00003.clock.jsonl"
    with path.open("a") as file:
        file.write('{"peer": [0], "sent": [1], "peer_received": [], "peer_sent": [1], "received": [1]}\n{"peer": [0')
    run = distprof.load(tmp_path / "run")
    assert run.tables.probes.equals(tables_of(play(world)).probes)
    assert sorted((note.rank, note.place) for note in run.notes) == [(3, "line 3"), (3, "line 4")]
    result = build(run)
    assert result.clock.verdict == "aligned"
    assert all(row.bound_us is not None and row.bound_us < 150 for row in result.clock.ranks)
    assert {row.what for row in result.not_observed} >= {"clock.ranks.error_us"}, "no window holds ends of collectives"


def test_one_host_is_believed_until_its_ranks_contradict_it() -> None:
    told = World(ranks=4, steps=30, ranks_per_host=1, one_boot=True)
    assert align(tables_of(play(told)))[0].verdict == "same_host"
    played = play(replace(told, clocks=[Clock(), Clock(offset_ms=2500, drift_ppm=100)]))
    tables = tables_of(played)
    clock, missing = align(tables)
    assert clock.verdict == "aligned"
    assert clock.ranks[1].offset_us == pytest.approx(2_500_000, abs=30)
    assert clock.ranks[1].drift_ppm == pytest.approx(100, abs=1)
    assert any(row.what == "clock.ranks.same_as" for row in missing)


@pytest.mark.parametrize(
    ("case", "key", "offset_us"),
    [
        ("clock-skew-two-hosts", "offset_us", 3_217_000),
        ("time-mixed-bases", "offset_us_rank1_minus_rank0", 0),
    ],
)
def test_handed_traces_of_two_clocks(shared: Path, case: str, key: str, offset_us: float) -> None:
    expected = json.loads((shared / "cases" / case / "expected.json").read_text())
    assert expected[key] == offset_us
    result = build(distprof.load(shared / "cases" / case))
    for row in (result.clock.ranks[1], result.clock.devices[1]):
        assert row.offset_us == pytest.approx(offset_us, abs=2)
    assert result.clock.devices[1].error_us == pytest.approx(0, abs=2)
    assert result.clock.devices[1].bound_us is not None
    assert result.clock.ends_apart_us == pytest.approx(0, abs=2)
    late = expected.get("late_rank")
    assert (f"rank {late} was the last to arrive at 2 of 2" in result.stragglers.why) == (late is not None)


def test_a_handed_trace_of_a_device_that_is_behind(shared: Path) -> None:
    folder = shared / "cases" / "gpu-clock-behind-cpu"
    expected = json.loads((folder / "expected.json").read_text())
    run = distprof.load(folder)
    result = build(run)
    device = result.clock.devices[1]
    assert device.behind_host_us == pytest.approx(expected["min_gpu_shift_us_rank1"])
    assert device.offset_us == pytest.approx(-expected["true_shift_us"], abs=1)
    assert result.clock.ranks[1].offset_us == 0
    moved = shifted(run.tables, corrections(result.clock))
    assert (moved.kernels["start"] >= moved.kernels["launched"]).all(), "no launch delay is negative"
    assert "was the last to arrive" not in result.stragglers.why
