"""A run's files in, its result out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.analyze.inputs import prepare
from distprof.analyze.registry import analyze
from distprof.clock.align import align
from distprof.clock.shift import corrections, shifted
from distprof.pipeline import build
from distprof.result import Result, from_json, to_json
from tests.worlds import Clock, Delay, World, simulate, write

WORLDS = {
    "plain": World(steps=14),
    "slow": World(
        steps=14,
        broadcast_buffers=True,
        unused_parameters=True,
        delays=[Delay(rank=2, kind="data_loading", ms=30), Delay(rank=0, kind="backward", ms=20)],
    ),
    "no window": World(ranks=2, steps=8, windows=()),
    "a missing rank": World(ranks=3, steps=14, missing=[1], delays=[Delay(rank=2, kind="forward", ms=30)]),
    "two hosts": World(steps=14, ranks_per_host=2, clocks=[Clock(), Clock(offset_ms=250)]),
    "too short": World(ranks=2, steps=1, windows=()),
    "no step": World(ranks=2, steps=0, windows=()),
    "alone": World(ranks=1, steps=14, buckets=()),
    "no optimizer": World(steps=12, optimizer=None, source="backward", micro_steps=2),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    made = {}
    for name, world in WORLDS.items():
        path = tmp_path_factory.mktemp("runs") / "run"
        write(world, path)
        made[name] = build(distprof.load(path))
    return made


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a section that is neither a dataclass nor a list, by its path."""
    if is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    else:
        yield path, value


@pytest.mark.parametrize("name", WORLDS)
def test_the_files_give_what_the_world_gives(name: str, results: dict[str, Result]) -> None:
    tables = simulate(WORLDS[name])
    clock, _ = align(tables)
    expected = analyze(prepare(shifted(tables, corrections(clock)), clock))
    result = results[name]
    # Where the traces lie, and how large they are, only a run has.
    of_files = {
        "ranks": [replace(row, trace=None) for row in result.ranks],
        "overhead": replace(result.overhead, trace_bytes=None),
    }
    for section in set(expected) - {"not_observed"}:
        made = dict(leaves(of_files.get(section, getattr(result, section))))
        wanted = dict(leaves(expected[section]))
        figures = {path: figure for path, figure in wanted.items() if isinstance(figure, float)}
        assert {path: made.get(path) for path in figures} == pytest.approx(figures), section
        assert {**made, **figures} == wanted, section
    assert result.groups == tables.groups


@pytest.mark.parametrize("name", WORLDS)
def test_report_json_is_read_back_as_it_was(name: str, results: dict[str, Result]) -> None:
    data = to_json(results[name])
    assert from_json(data) == results[name]
    assert to_json(from_json(data)) == data


def test_what_run_it_was(results: dict[str, Result]) -> None:
    run = results["slow"].run
    assert (run.name, run.id, run.command) == ("run", "0123456789abcdef", ["train.py"])
    assert (run.world_size, run.nnodes, run.backend, run.device) == (4, 1, "gloo", "cpu")
    assert (run.attempt, run.attempts, run.torch) == (0, [0], "2.13.0+cpu")
    assert run.wall_s == pytest.approx(14 * 0.086 + 0.04, rel=0.05)
    assert results["two hosts"].run.nnodes == 2


def test_traces_are_named_relative_to_the_run(results: dict[str, Result]) -> None:
    assert [row.trace for row in results["a missing rank"].ranks] == [
        "attempt0/rank00000.window0.pt.trace.json.gz",
        None,
        "attempt0/rank00002.window0.pt.trace.json.gz",
    ]
    assert (results["plain"].overhead.trace_bytes or 0) > 1000


def test_what_could_not_be_read_is_not_observed(tmp_path: Path) -> None:
    write(World(ranks=2, steps=6, windows=()), tmp_path / "run")
    stream = tmp_path / "run" / "attempt0" / "rank00001.collectives.jsonl"
    stream.write_text("no JSON\n")
    result = build(distprof.load(tmp_path / "run"))
    assert [row.ranks for row in result.not_observed if row.what.startswith(stream.name)] == [[1]]
    assert result.communication.wait is None
    assert result.breakdown[0].comm_wait is None


# Nulls that say something, or that another figure beside them explains.
TELLING = {
    "run.id",
    "run.attempt",
    "groups.desc",
    "conditions.settings",  # none was to be overridden
    "conditions.checksums",  # nobody asked for any
    "conditions.stopped_after",  # it ended by itself
    "ranks.host",  # of a rank that is missing, which its status says
    "ranks.device",
    "ranks.reason",
    "ranks.trace",
    "clock.reference_rank",
    "communication.buckets.last_rank",  # none is the last in most steps
    "communication.buckets.last_share",
    "communication.by_kind.bytes",  # a barrier has none
    "communication.by_kind.algbw_gbps",  # follows from bytes and transfer
    "communication.by_kind.busbw_gbps",
    "communication.buckets.algbw_gbps",
    "communication.buckets.busbw_gbps",
    "gantt.bars.bytes",  # only collectives have any
    "gantt.bars.bucket",
    "memory.zone",  # of a process there is none
    "memory.reserved_bytes",
    "kernels.collective",  # it computes
    "findings.saves",
    "stragglers.noise_of_a_step",  # undecided
    "stragglers.saved_if_all_fixed",  # nobody is late
    "not_observed.ranks",  # all
    "steps.per_rank.p10",  # beside the median
    "steps.per_rank.p90",
    "stragglers.noise",  # nothing was judged, and `why` says so
    "stragglers.ranks.zone",  # between the zones
    "stragglers.ranks.group",  # it was never the last
}


def nulls(value: Any, path: str = "") -> Iterator[tuple[str, int | None]]:
    """Path of each null, without indices, and the rank whose row it is in."""
    if is_dataclass(value):
        rank = getattr(value, "rank", None)
        for field in fields(value):
            below = f"{path}.{field.name}".removeprefix(".")
            for name, inner in nulls(getattr(value, field.name), below):
                yield name, rank if inner is None else inner
    elif isinstance(value, list):
        for item in value:
            yield from nulls(item, path)
    elif value is None:
        yield path, None


@pytest.mark.parametrize("name", WORLDS)
def test_every_null_that_matters_has_its_reason(name: str, results: dict[str, Result]) -> None:
    result = results[name]

    def told(path: str, rank: int | None) -> bool:
        """A reason for a figure holds for those inside it, and for the same figure rank by rank."""
        places = (path, path.replace(".per_rank.", "."))
        return any(
            (row.ranks is None or rank is None or rank in row.ranks)
            and any(place == row.what or place.startswith(f"{row.what}.") for place in places)
            for row in result.not_observed
        )

    missing = {(path, rank) for path, rank in nulls(result) if path not in TELLING and not told(path, rank)}
    assert missing == set()


@pytest.mark.parametrize("name", WORLDS)
def test_not_observed_names_places_of_the_report(name: str, results: dict[str, Result]) -> None:
    for row in results[name].not_observed:
        value: Any = results[name]
        for part in row.what.split("."):
            rows = value if isinstance(value, list) else [value]
            inner = [getattr(item, part) for item in rows]
            assert inner or not rows, row
            value = [item for each in inner for item in (each if isinstance(each, list) else [each])]
        assert row.reason


def test_only_the_steps_that_are_asked_for_are_judged(tmp_path: Path) -> None:
    """Rank 1 is slow in the second half only."""
    world = World(steps=40, delays=[Delay(rank=1, kind="forward", ms=30, steps=range(20, 40))])
    write(world, tmp_path / "run")
    run = distprof.load(tmp_path / "run")
    assert build(run, (None, 20)).stragglers.verdict == "none"
    late = build(run, (20, None))
    assert [row.rank for row in late.stragglers.ranks] == [1]
    assert late.stragglers.steps_used + build(run, (None, 20)).stragglers.steps_used == build(run).stragglers.steps_used
