"""A few bytes that would make much work: what is done and what is written stays in proportion to what is read."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.analyze.listed import ranks
from distprof.cli import compare as compare_command
from distprof.experiment.compare import compare
from distprof.pipeline import build
from distprof.report import tables, words
from distprof.report.lanes import DisjointLanes, NestingLanes
from distprof.report.timeline import write_timeline
from distprof.result import Lateness, to_json
from distprof.run.directory import RunDirectory
from distprof.trace import inflate, intervals
from tests.unit.proportion import PROPORTIONATE, growth
from tests.unit.results import healthy
from tests.worlds import World, write

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=30)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    write(World(ranks=2, steps=6, windows=[(2, 4)]), tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def crossing(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Intervals each of which crosses all others."""
    start = np.arange(count)
    return start, start + count


# Worlds of which nearly all ranks are missing.


def test_a_world_of_missing_ranks_is_told_in_one_row(run: RunDirectory) -> None:
    edit(run.manifest, world_size=100_000)
    result = build(distprof.load(run.path))
    assert [(row.rank, row.status) for row in result.ranks] == [(0, "complete"), (1, "complete"), (2, "missing")]
    told = "it left no recording; the same is known of ranks 3–99999, which have no rows of their own"
    assert result.ranks[2].reason == told
    assert [(row.ranks, row.reason) for row in result.not_observed if row.what == "ranks"] == [([2], told)]
    assert result.run.world_size == 100_000
    assert words.incomplete(result.ranks) == [("missing", f"Rank 2 is missing: {told}.")]
    assert len(to_json(result)) < 1_000_000


def test_a_thousand_missing_ranks_have_rows(run: RunDirectory) -> None:
    edit(run.manifest, world_size=1002)
    result = build(distprof.load(run.path))
    assert [row.rank for row in result.ranks] == list(range(1002))
    assert {row.reason for row in result.ranks[2:]} == {"it left no recording"}
    assert [row.ranks for row in result.not_observed if row.what == "ranks"] == [[rank] for rank in range(2, 1002)]


def test_missing_ranks_of_which_more_is_known_are_told_apart(run: RunDirectory) -> None:
    (run.attempt(0) / "rank00001.json").rename(run.attempt(0) / "rank01500.json")
    edit(run.attempt(0) / "rank01500.json", rank=1500)
    for path in run.attempt(0).glob("rank00001.*"):
        path.unlink()
    absent = {"7": "its host is gone", "8": "its host is gone", "2000": "its host is gone"}
    failures = {"9": {"exit_code": 3}}
    edit(run.manifest, world_size=3000, ended={"exit_code": 3, "failures": failures, "absent": absent})
    result = build(distprof.load(run.path))
    assert [(row.rank, row.status) for row in result.ranks] == [
        (0, "complete"),
        (1, "missing"),
        (7, "missing"),
        (9, "missing"),
        (1500, "complete"),
    ]
    reasons = {row.rank: row.reason for row in result.ranks}
    own = "which have no rows of their own"
    others = "ranks 2–6, 10–1499, 1501–1999, 2001–2999"
    assert reasons[1] == f"it left no recording; the same is known of {others}, {own}"
    assert reasons[7] == f"its host is gone; the same is known of ranks 8, 2000, {own}"
    assert reasons[9] == "it exited with 3"


def test_as_many_reasons_as_missing_ranks_are_bounded(run: RunDirectory) -> None:
    absent = {str(rank): f"reason {rank}" for rank in range(2, 5000)}
    edit(run.manifest, world_size=5000, ended={"exit_code": 1, "failures": {}, "absent": absent})
    rows = build(distprof.load(run.path)).ranks
    assert len(rows) == 1003
    assert rows[1001].reason == "reason 1001"
    assert (rows[1002].rank, rows[1002].reason) == (
        1002,
        "it left no recording; the same is known of ranks 1003–4999, which have no rows of their own",
    )


def test_ranges_of_ranks_in_words() -> None:
    assert ranks([4]) == "rank 4"
    assert ranks([4, 5]) == "ranks 4, 5"
    assert ranks([*range(34), *range(35, 300)]) == "ranks 0–33, 35–299"
    assert ranks([1, 4, 5, 6, 9]) == "ranks 1, 4–6, 9"
    assert ranks(range(0, 1000, 2)).endswith(", 196, 198, …")


def test_no_group_has_ranks_that_the_job_does_not_have(run: RunDirectory) -> None:
    facts = run.rank(0, 1).facts
    groups = json.loads(facts.read_text())["groups"]
    edit(facts, groups=[*groups, {"name": "1", "desc": "x", "ranks": list(range(50_000))}])
    loaded = distprof.load(run.path)
    assert [group.members for group in loaded.tables.groups if group.name == "1"] == [[0, 1]]
    (note,) = loaded.notes
    assert (note.rank, note.file, note.place) == (1, facts, "$.groups")
    assert "ranks that a job of 2 does not have" in note.text
    edit(facts, groups=[*groups, {"name": "1", "desc": "x", "ranks": [1] * 50_000}])
    assert [group.members for group in distprof.load(run.path).tables.groups if group.name == "1"] == [[1]]


def test_groups_stay_as_they_are_where_nobody_tells_the_size_of_the_job(run: RunDirectory) -> None:
    edit(run.manifest, world_size=None)
    for rank in (0, 1):
        edit(run.rank(0, rank).facts, world_size=None)
    edit(run.rank(0, 1).facts, groups=[{"name": "1", "desc": None, "ranks": [1, 5]}])
    loaded = distprof.load(run.path)
    assert [group.members for group in loaded.tables.groups if group.name == "1"] == [[1, 5]]
    assert loaded.notes == []


# Many attempts.


def test_each_attempt_is_listed_a_few_times(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 40):
        (run.attempt(number)).mkdir()
    for number in (3, 5):
        (run.attempt(number) / "rank00000.json").write_bytes(run.rank(0, 0).facts.read_bytes())
    listed: Counter[int] = Counter()
    ranks = RunDirectory.ranks

    def counted(directory: RunDirectory, attempt: int) -> Any:
        listed[attempt] += 1
        return ranks(directory, attempt)

    monkeypatch.setattr(RunDirectory, "ranks", counted)
    loaded = distprof.load(run.path)
    write_timeline(loaded, build(loaded), tmp_path / "timeline.json")
    assert set(listed) == set(range(40))
    assert max(listed.values()) <= 3
    drawn = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in drawn if event["name"] == "process_name"]
    assert sorted(name.rpartition("attempt ")[2] for name in names) == ["0", "0", "3", "5"]


# Steps numbered as nobody numbers them.


@pytest.mark.parametrize(("last", "shown"), [(7, "7"), (8, "7, 8"), (9, "7–9"), (10**15, "7–1000000000000000")])
def test_a_column_of_steps_is_named_by_its_ends(last: int, shown: str) -> None:
    picture = Lateness(basis="zones", steps_used=2, first_steps=[7], last_steps=[last], ranks=[])
    assert tables.lateness_by_step(picture).rows == [[shown]]
    if last < 1000:
        assert shown == words.some(range(7, last + 1))


# Slices that cross.


@given(pairs)
def test_a_slice_is_in_the_first_lane_that_it_crosses_nobody_in(slices: list[tuple[int, int]]) -> None:
    ordered = sorted(((start, start + length) for start, length in slices), key=lambda one: (one[0], -one[1]))
    for lanes, fits in ((NestingLanes(), nests), (DisjointLanes(), is_free)):
        placed: list[list[tuple[int, int]]] = []
        for one in ordered:
            expected = next((lane for lane, there in enumerate(placed) if fits(one, there)), len(placed))
            assert lanes.place(*one) == expected
            placed += [[]] * (expected == len(placed))
            placed[expected] = [*placed[expected], one]


def nests(one: tuple[int, int], there: list[tuple[int, int]]) -> bool:
    return all(end <= one[0] or one[1] <= end for _, end in there)


def is_free(one: tuple[int, int], there: list[tuple[int, int]]) -> bool:
    return all(end <= one[0] for _, end in there)


@pytest.mark.parametrize("kind", [NestingLanes, DisjointLanes])
def test_a_lane_is_found_without_a_look_at_each(kind: type[NestingLanes] | type[DisjointLanes]) -> None:
    def work(count: int) -> None:
        lanes = kind()
        found = [lanes.place(int(start), int(end)) for start, end in zip(*crossing(count), strict=True)]
        assert found == list(range(count))

    assert growth(work, 3000) < PROPORTIONATE


@given(pairs, st.lists(st.integers(-2, 60), max_size=20))
def test_innermost_of_deep_and_crossing_intervals(rows: list[tuple[int, int]], at: list[int]) -> None:
    start = np.array([begin for begin, _ in rows], dtype=np.int64)
    end = start + np.array([length for _, length in rows], dtype=np.int64)
    found = {}
    for levels in (0, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(intervals, "_FEW_LEVELS", levels)
            found[levels] = intervals.innermost(start, end, at)
    assert found[0].tolist() == found[1000].tolist()
    assert found[0].dtype == found[1000].dtype == np.int64


def test_innermost_of_very_many_levels() -> None:
    count = 1000
    start, end = np.arange(count), 10 * count - np.arange(count)
    shuffled = np.random.default_rng(7).permutation(count)
    at = [-1, 0, 1, 500, count, 9 * count, 9 * count + 1, 10 * count - 1, 10 * count]
    expected = [-1, 0, 1, 500, count - 1, count - 1, count - 2, 0, -1]
    found = intervals.innermost(start[shuffled], end[shuffled], at)
    assert [-1 if row < 0 else int(shuffled[row]) for row in found] == expected


def test_innermost_takes_no_look_at_each_level() -> None:
    def work(count: int) -> None:
        start, end = crossing(count)
        found = intervals.innermost(start, end, start)
        assert found.tolist() == start.tolist()

    assert growth(work, 5000) < PROPORTIONATE


# Files of many members.


def test_what_follows_a_gzip_member_is_not_copied_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_bytes = []
    inflater = inflate.isal_zlib.decompressobj

    class Counted:
        def __init__(self, bits: int) -> None:
            self._inflater = inflater(bits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inflater, name)

        def decompress(self, data: Any, length: int) -> bytes:
            given_bytes.append(len(data))
            return self._inflater.decompress(data, length)

    fake = SimpleNamespace(decompressobj=Counted, error=inflate.isal_zlib.error)
    monkeypatch.setattr(inflate, "isal_zlib", fake)
    members = 3000
    path = tmp_path / "many.gz"
    path.write_bytes(gzip.compress(b"begin") + gzip.compress(b"") * members + b"\0" * 5000 + gzip.compress(b"end"))
    text = inflate.Text(path)
    assert b"".join(text.blocks()) == b"beginend"
    assert text.damage is None
    assert sum(given_bytes) < 2000 * members


@pytest.mark.parametrize("read", [1, 7, 100, 1 << 18])
@pytest.mark.parametrize("first", [1, 5, 1 << 10])
def test_members_of_any_size_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, first: int
) -> None:
    monkeypatch.setattr(inflate, "_READ", read)
    monkeypatch.setattr(inflate, "_FIRST", first)
    parts = [b"", b"x", bytes(range(256)) * 40, b"", np.random.default_rng(3).bytes(3000), b"end"]
    path = tmp_path / "parts.gz"
    path.write_bytes(b"".join(gzip.compress(part) + b"\0" * (3 * len(part) % 11) for part in parts))
    text = inflate.Text(path)
    assert b"".join(text.blocks()) == b"".join(parts)
    assert text.damage is None
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-1])
    text = inflate.Text(path)
    assert b"".join(text.blocks()) == b"".join(parts)
    assert text.damage is not None and "ends early" in text.damage


# Reports that somebody changed.


@pytest.mark.parametrize("name", [{}, [], None, 7])
def test_settings_of_something_without_a_name_are_not_compared(name: Any) -> None:
    before = healthy()
    ddp = [{"name": name, "bucket_cap_mb": 25}]
    after = replace(before, conditions=replace(before.conditions, ddp=[{"name": name, "bucket_cap_mb": 1}]))
    other = replace(before, conditions=replace(before.conditions, ddp=ddp))
    assert compare(other, after).conditions == compare(after, other).conditions == []
    assert compare(before, after).conditions == []


def test_a_report_of_any_length_is_not_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = to_json(healthy())
    path = tmp_path / "report.json"
    path.write_bytes(data)
    monkeypatch.setattr(compare_command, "_MOST_REPORT", len(data))
    assert compare_command.main([str(path), str(path)]) == 0
    capsys.readouterr()
    path.write_bytes(data + b" ")
    with pytest.raises(SystemExit) as end:
        compare_command.main([str(path), str(path)])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"{path} is longer than" in error
    assert error.count("\n") == 1
