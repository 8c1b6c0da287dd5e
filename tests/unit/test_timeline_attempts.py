"""Attempts of a run in its timeline: each has lanes of its own, on one clock as far as clocks are comparable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distprof.pipeline import build
from distprof.report.selection import NothingSelectedError, Selection
from distprof.report.timeline import write_timeline
from distprof.run.directory import RunDirectory
from distprof.trace.load import load
from tests.unit.timelines import Timeline, chrome, read_timeline
from tests.worlds import Clock, Probes, World, write

US, MS = 1000, 1_000_000
RANKS = 4
Draw = Callable[..., Timeline]


def attempt(ahead_ms: float, steps: int, *, probes: bool = True) -> World:
    """Two hosts, the second of which is so far ahead."""
    return World(
        ranks=RANKS,
        steps=steps,
        ranks_per_host=2,
        clocks=[Clock(), Clock(offset_ms=ahead_ms)],
        probes=Probes() if probes else None,
        windows=[(3, 5)],
    )


def rename_hosts(folder: Path, names: dict[str, str]) -> None:
    """Give hosts of an attempt other names."""
    for path in folder.glob("rank?????.json"):
        facts = json.loads(path.read_text())
        host = names.get(facts["host"], facts["host"])
        path.write_text(json.dumps({**facts, "host": host, "boot_id": f"boot-of-{host}"}))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a run of two attempts; in the first one the hosts had `names`, and the second host was 7 ms ahead."""

    def record(names: dict[str, str], ahead_ms: float = 7.0, **first: Any) -> Path:
        path = tmp_path_factory.mktemp("attempts")
        write(attempt(ahead_ms, 8, **first), path / "run")
        write(attempt(5.0, 6), path / "second")
        run, second = RunDirectory(path / "run"), RunDirectory(path / "second")
        second.attempt(0).rename(run.attempt(1))
        rename_hosts(run.attempt(0), names)
        return run.path

    return record


@pytest.fixture(params=["all.json", "all.pftrace"])
def draw(request: pytest.FixtureRequest, tmp_path: Path) -> Draw:
    """Writes a run's timeline and reads it back."""

    def draw(path: Path, **chosen: Any) -> Timeline:
        run = load(path)
        write_timeline(run, build(run), tmp_path / request.param, Selection(**chosen))
        return read_timeline(tmp_path / request.param)

    return draw


@pytest.fixture(scope="module")
def restarted(recorded: Callable[..., Path]) -> Path:
    """Both attempts ran on the same hosts."""
    return recorded({}, ahead_ms=5.0)


def process(timeline: Timeline, *parts: str) -> int:
    """The process whose name has these parts."""
    [number] = [number for number, name in timeline.processes.items() if set(parts) <= set(name.split(" · "))]
    return number


def apart_ms(timeline: Timeline, name: str, one: int, other: int) -> float:
    """How far the ends of a slice lie apart in two processes."""
    ends = {each.rank: each.end for each in timeline.named(name) if each.rank in (one, other)}
    return abs(ends[one] - ends[other]) / MS


def test_each_rank_is_drawn_in_each_attempt(restarted: Path, draw: Draw) -> None:
    timeline = draw(restarted)
    assert list(timeline.processes.values()) == [
        f"rank {rank} · host{rank // 2} · attempt {number}" for rank in range(RANKS) for number in (0, 1)
    ]
    for number, steps in ((0, 8), (1, 6)):
        for rank in range(RANKS):
            of = process(timeline, f"rank {rank}", f"attempt {number}")
            assert [one.name for one in timeline.on(of, "steps")] == [f"step {step}" for step in range(steps)]
            lanes = {lane.partition(":")[0] for lane in timeline.lanes[of]}
            assert {"steps", "zones", "collectives"} < lanes
            assert any(one.category == "cpu_op" for one in timeline.slices if one.rank == of), "its window"
    assert process(timeline, "rank 3", "attempt 1") == 3, "in the attempt that was read, ranks are their own numbers"


def test_nothing_of_two_attempts_is_taken_for_one(restarted: Path, draw: Draw, tmp_path: Path) -> None:
    timeline = draw(restarted)  # checks that no flow is begun twice and that no lane is two processes'
    of_attempt = {number: int(name[-1]) for number, name in timeline.processes.items()}
    last = [arrow for arrow in timeline.arrows if arrow.category == "last_arrival"]
    assert {of_attempt[arrow.leaves.rank] for arrow in last} == {0, 1}
    assert all(of_attempt[arrow.leaves.rank] == of_attempt[arrow.arrives.rank] for arrow in last)
    ids: dict[Any, int] = {}
    for one in timeline.slices:
        for key in ("External id", "correlation"):
            if key in one.args:
                assert ids.setdefault((key, one.args[key]), one.rank) == one.rank
    assert {of_attempt[rank] for rank in ids.values()} == {0, 1}


def test_no_process_or_thread_number_is_used_twice(restarted: Path, tmp_path: Path) -> None:
    run = load(restarted)
    write_timeline(run, build(run), tmp_path / "all.json")
    events = chrome(tmp_path / "all.json")["traceEvents"]
    threads = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert len({thread for _, thread in threads}) == len(threads)
    assert len({process for process, _ in threads}) == 2 * RANKS


def test_attempts_on_the_same_hosts_share_a_clock(restarted: Path, draw: Draw) -> None:
    timeline = draw(restarted, parts=frozenset({"steps", "zones"}))
    for number in (0, 1):
        near, far = (process(timeline, f"rank {rank}", f"attempt {number}") for rank in (0, 3))
        assert apart_ms(timeline, "step 2", near, far) < 1
    # Both worlds begin at one moment, so what happens in both of them at first has one time.
    one, other = (process(timeline, "rank 3", f"attempt {number}") for number in (0, 1))
    assert apart_ms(timeline, "step 0", one, other) < 1


def test_a_host_that_was_replaced_is_placed_by_the_attempts_own_alignment(
    recorded: Callable[..., Path], draw: Draw
) -> None:
    timeline = draw(recorded({"host1": "broken"}), parts=frozenset({"steps"}))
    replaced = process(timeline, "rank 3", "broken", "attempt 0")
    assert timeline.processes[replaced] == "rank 3 · broken · attempt 0"
    assert apart_ms(timeline, "step 2", process(timeline, "rank 0", "attempt 0"), replaced) < 1
    assert apart_ms(timeline, "step 0", process(timeline, "rank 3", "attempt 1"), replaced) < 1


def test_a_clock_that_cannot_be_compared_is_said_to_be_the_hosts(recorded: Callable[..., Path], draw: Draw) -> None:
    timeline = draw(recorded({"host0": "gone", "host1": "broken"}), parts=frozenset({"steps", "collectives"}))
    names = [name for name in timeline.processes.values() if "attempt 0" in name]
    assert names == [
        f"rank {rank} · {'broken' if rank > 1 else 'gone'} · attempt 0 · on its host's clock" for rank in range(RANKS)
    ]
    near, far = (process(timeline, f"rank {rank}", "attempt 0") for rank in (0, 3))
    assert apart_ms(timeline, "step 2", near, far) == pytest.approx(7, abs=1)
    told = {number: {one.name.partition(":")[0] for one in timeline.on(number, "collectives")} for number in (near, 0)}
    assert {"wait", "transfer"} <= told[0] and not {"wait", "transfer"} & told[near], "nobody knows who came last"


def test_chosen_steps_are_those_of_the_attempt_that_was_read(restarted: Path, draw: Draw) -> None:
    timeline = draw(restarted, steps=(2, 4), ranks=frozenset({1}))
    assert list(timeline.processes.values()) == ["rank 1 · host0 · attempt 1"]
    with pytest.raises(NothingSelectedError, match="no step in 7:; the run has 0–5"):
        draw(restarted, steps=(7, None))


def test_a_rank_of_one_attempt_alone_is_drawn_there(recorded: Callable[..., Path], draw: Draw) -> None:
    path = recorded({}, ahead_ms=5.0)
    for file in RunDirectory(path).attempt(1).glob("rank00003*"):
        file.unlink()
    timeline = draw(path, ranks=frozenset({3}), parts=frozenset({"zones"}))
    assert list(timeline.processes.values()) == ["rank 3 · host1 · attempt 0"]
    with pytest.raises(NothingSelectedError, match="no recordings of rank 4; there are of 0–3"):
        draw(path, ranks=frozenset({4}))
