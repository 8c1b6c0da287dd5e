"""Our own recordings, written by hand: whole, cut, broken and misplaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.trace.notes import RecordingError
from distprof.trace.recordings import Facts, read_collectives, read_facts, read_zones, to_unix

HEADER = {"schema": "distprof.zones.v1", "rank": 3, "pid": 99}
BASE = 1_790_857_026_000_000_000


def lines(path: Path, *blocks: Any, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(block) + "\n" for block in blocks) + tail)
    return path


@pytest.fixture
def zones_file(tmp_path: Path) -> Path:
    return tmp_path / "rank00003.zones.jsonl"


def test_monotonic_becomes_unix_by_the_anchors_around_it() -> None:
    # The Unix clock gains 10 ns from the first anchor to the second, and loses 4 to the third.
    anchors = [(1000, BASE + 1000), (2000, BASE + 2010), (4000, BASE + 4006)]
    times = np.array([0, 1000, 1500, 2000, 3000, 4000, 9_999])
    assert (to_unix(times, anchors) - BASE).tolist() == [0, 1000, 1505, 2010, 3008, 4006, 10_005]


def test_no_nanosecond_is_lost() -> None:
    anchors = [(10**15 + 1, BASE + 123_456_789), (10**15 + 10**9 + 1, BASE + 10**9 + 123_456_789)]
    times = 10**15 + np.array([2, 3, 999_999_999])
    assert (to_unix(times, anchors) - BASE - 123_456_789).tolist() == [1, 2, 999_999_998]


def test_anchors_may_come_in_any_order() -> None:
    assert to_unix(np.array([1500]), [(2000, BASE + 2010), (1000, BASE + 1000)]).tolist() == [BASE + 1505]


def test_zones(zones_file: Path) -> None:
    lines(
        zones_file,
        HEADER,
        {"names": {"7": ["data_loading", "DataLoader#0"], "0": ["forward", "Net#0"]}, "anchors": [[0, BASE]]},
        {"rows": [7, 0, 100, 50, 0, 0, 210, 20], "names": {"9": ["zone", "outer"]}},
        {"rows": [9, 0, 200, 100, 7, 2, 150, 10]},
    )
    timeline, notes = read_zones(zones_file, 3)
    zones = timeline.zones
    assert notes == []
    assert zones.rows() == [
        (3, "data_loading", "DataLoader#0", 0, BASE + 100, BASE + 150),
        (3, "data_loading", "DataLoader#0", 2, BASE + 150, BASE + 160),
        (3, "zone", "outer", 0, BASE + 200, BASE + 300),
        (3, "forward", "Net#0", 0, BASE + 210, BASE + 230),
    ]


def test_a_zone_comes_before_those_that_begin_with_it(zones_file: Path) -> None:
    block = {"names": {"0": ["zone", "inner"], "1": ["zone", "outer"]}, "anchors": [[0, BASE]]}
    lines(zones_file, HEADER, {**block, "rows": [0, 0, 100, 10, 1, 0, 100, 50]})
    assert read_zones(zones_file, 3)[0].zones["name"].to_list() == ["outer", "inner"]


def test_a_cut_last_line_is_left_out_and_noted(zones_file: Path) -> None:
    block = {"names": {"0": ["gc", "generation 2"]}, "anchors": [[0, BASE]], "rows": [0, 0, 5, 1]}
    lines(zones_file, HEADER, block, tail='{"rows": [0, 0, 17')
    timeline, [note] = read_zones(zones_file, 3)
    zones = timeline.zones
    assert zones["start"].to_list() == [BASE + 5]
    assert (note.rank, note.file, note.place) == (3, zones_file, "line 3")
    assert "its process was killed" in note.text
    assert str(zones_file) in str(note)


def test_a_whole_last_line_without_its_newline_counts(zones_file: Path) -> None:
    block = {"names": {"0": ["gc", "generation 2"]}, "anchors": [[0, BASE]], "rows": [0, 0, 5, 1]}
    lines(zones_file, HEADER, tail=json.dumps(block))
    timeline, notes = read_zones(zones_file, 3)
    zones = timeline.zones
    assert (len(zones), notes) == (1, [])


def test_a_broken_line_costs_only_what_needs_it(zones_file: Path) -> None:
    lines(zones_file, HEADER, {"names": {"0": ["forward", "a"]}, "anchors": [[0, BASE]], "rows": [0, 0, 1, 1]})
    with zones_file.open("a") as file:
        file.write('{"names": {"1": ["backward", \n')
        file.write('{"rows": [0, 0, 3, 1, 1, 0, 5, 1]}\n{"rows": [0, 0, 7]}\n')
    timeline, notes = read_zones(zones_file, 3)
    zones = timeline.zones
    assert zones["start"].to_list() == [BASE + 1, BASE + 3]
    assert [note.place for note in notes] == ["line 3", "line 5", None]
    assert notes[2].text.startswith("1 zones were left out")


def test_bytes_that_are_no_text_are_a_broken_line(zones_file: Path) -> None:
    lines(zones_file, HEADER)
    zones_file.write_bytes(zones_file.read_bytes() + b'{"names": {"1": ["\xff", "b"]}}\n')
    assert [note.place for note in read_zones(zones_file, 3)[1]] == ["line 2"]


def test_zones_without_a_clock_reading_have_no_place(zones_file: Path) -> None:
    lines(zones_file, HEADER, {"names": {"0": ["gc", "generation 2"]}, "rows": [0, 0, 5, 1]})
    timeline, [note] = read_zones(zones_file, 3)
    zones = timeline.zones
    assert len(zones) == 0
    assert "no place in time" in note.text


def test_a_stream_that_holds_only_its_header_is_empty(zones_file: Path) -> None:
    timeline, notes = read_zones(lines(zones_file, HEADER), 3)
    zones = timeline.zones
    assert (len(zones), notes) == (0, [])


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ('{"schema": "distprof.zones.v2", "rank": 3}\n', "use the distprof version that recorded it"),
        ('{"schema": "distprof.zones.v1", "rank": 1}\n', "it was recorded by rank 1"),
        ('{"schema": "distprof.zones.v1"}\n', "the header is broken"),
        ('{"schema": "distprof', "the header is broken"),
        ("", "it is empty"),
    ],
)
def test_a_wrong_header_is_an_error_that_says_what_to_do(zones_file: Path, header: str, says: str) -> None:
    zones_file.write_text(header)
    with pytest.raises(RecordingError) as caught:
        read_zones(zones_file, 3)
    assert str(caught.value).startswith(f"{zones_file}, line 1: ")
    assert says in str(caught.value)
    assert caught.value.note.rank == 3


COLLECTIVES = {"schema": "distprof.collectives.v1", "rank": 0, "pid": 1}
BLOCK = {
    "record": [0, 1],
    "group": ["0", "5"],
    "seq": [1, 7],
    "op": ["gloo:all_reduce", "gloo:barrier"],
    "bytes": [4096, None],
    "dtype": ["Float", ""],
    "created": [BASE + 1, BASE + 2],
    "started": [None, BASE + 3],
    "ended": [None, BASE + 4],
    "p2p": [False, False],
}


def test_collectives(tmp_path: Path) -> None:
    entries, notes = read_collectives(lines(tmp_path / "c", COLLECTIVES, BLOCK), 0)
    assert notes == []
    assert entries.rows() == [
        (0, 0, "0", 1, "gloo:all_reduce", 4096, "Float", BASE + 1, None, None, False),
        (0, 1, "5", 7, "gloo:barrier", None, None, BASE + 2, BASE + 3, BASE + 4, False),
    ]


def test_lost_collectives_are_noted(tmp_path: Path) -> None:
    later = {**BLOCK, "record": [4, 5]}
    entries, [note] = read_collectives(lines(tmp_path / "c", COLLECTIVES, BLOCK, later), 0)
    assert len(entries) == 4
    assert note.text.startswith("2 collectives are missing")


def test_columns_of_different_length_are_left_out(tmp_path: Path) -> None:
    entries, notes = read_collectives(lines(tmp_path / "c", COLLECTIVES, BLOCK, {**BLOCK, "record": [2]}), 0)
    assert len(entries) == 2
    assert [note.place for note in notes] == ["line 3"]


def test_facts(tmp_path: Path) -> None:
    path = tmp_path / "rank00003.json"
    written = {
        "schema": "distprof.rank.v1",
        "rank": 3,
        "world_size": 4,
        "training_thread": 77,
        "groups": [{"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3], "backend": "gloo"}],
        "windows": [{"index": 0, "start_unix_ns": None, "end_unix_ns": None, "reason": "never opened"}],
        "exit": None,
    }
    path.write_text(json.dumps(written))
    values, notes = read_facts(path, 3)
    assert notes == []
    assert {name: value for name, value in values.items() if name in written and name != "windows"} == {
        name: value for name, value in written.items() if name != "windows"
    }
    assert values["windows"] == [{"stop_s": None, "export_s": None, **written["windows"][0]}]
    facts = Facts.of(values)
    assert (facts.world_size, facts.training_thread, facts.groups[0].ranks) == (4, 77, [0, 1, 2, 3])
    assert facts.windows[0].start_unix_ns is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "distprof.rank.v1", "rank": 2}', "these are the facts of rank 2"),
        ('{"schema": "distprof.rank.v9", "rank": 3}', "use the distprof version that recorded it"),
        ('{"schema": "distprof.rank.v1", "rank": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deep"),
        ('{"schema": "distprof.rank.v1", "rank": "3"}', "these are the facts of rank '3'"),
        ('{"rank": 3}', "its schema is None"),
        ('"' + "x" * (16 << 20) + '"', "longer than 16 MiB"),
        ('{"schema": "distprof.rank.v1", "rank": 3, "host": "\\ud800"}', "not valid JSON"),
        ('{"schema": "distprof.rank.v1", "rank": ' + "1" * 5000 + "}", "not valid JSON"),
        ('{"schema": "dist', "not valid JSON"),
        ("[]", "these are no rank's facts"),
    ],
)
def test_wrong_facts_are_an_error(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rank00003.json"
    path.write_text(text)
    with pytest.raises(RecordingError) as caught:
        read_facts(path, 3)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_what_facts_lack_inside_has_its_default(tmp_path: Path) -> None:
    """As those that another version wrote: analyses look at every row alike."""
    path = tmp_path / "rank00003.json"
    settings = {
        "asked": {"loader.num_workers": 2},
        "met": [{"setting": "loader.num_workers", "target": "DataLoader#0"}],
    }
    path.write_text(json.dumps({"schema": "distprof.rank.v1", "rank": 3, "settings": settings}))
    values, notes = read_facts(path, 3)
    assert notes == []
    missing = dict.fromkeys(("place", "had", "took", "why"))
    assert values["settings"] == {**settings, "met": [{**settings["met"][0], **missing}], "unmet": {}}


WRONG: list[tuple[str, Any, Any]] = [
    ("groups", [{"name": 1}], []),
    ("groups", [{"name": "0", "ranks": [2**20]}], []),
    ("world_size", 3_000_000, None),
    ("world_size", "4", None),
    ("windows", {"index": 0}, []),
    ("windows", [{"index": 2**31}], []),
    ("status", "elsewhere", "running"),
    ("exit", "bad", None),
    ("device", None, "cpu"),
    ("problems", "text", []),
    ("loaders", [{}], []),
    ("own_cost", {"zones": "many"}, None),
    ("training_thread", 10**30, None),
]


@pytest.mark.parametrize(("name", "value", "taken"), WRONG)
def test_a_wrong_fact_is_noted_and_costs_nothing_else(tmp_path: Path, name: str, value: Any, taken: Any) -> None:
    path = tmp_path / "rank00003.json"
    path.write_text(json.dumps({"schema": "distprof.rank.v1", "rank": 3, "host": "a", name: value}))
    values, [note] = read_facts(path, 3)
    assert (values[name], values["host"]) == (taken, "a")
    assert (note.file, note.place) == (path, f"$.{name}")
    Facts.of(values)


@pytest.mark.parametrize(
    "block", ['{"rows": ' + "[" * 5000 + "]" * 5000 + "}", '{"x": ' + "[" * 100_000, '{"rows": [1e400]}']
)
def test_a_hostile_line_is_a_broken_line(zones_file: Path, block: str) -> None:
    lines(zones_file, HEADER, {"names": {"0": ["gc", "g"]}, "anchors": [[0, BASE]], "rows": [0, 0, 5, 1]})
    with zones_file.open("a") as file:
        file.write(block + '\n{"rows": [0, 0, 9, 1]}\n')
    timeline, [note] = read_zones(zones_file, 3)
    assert timeline.zones["start"].to_list() == [BASE + 5, BASE + 9]
    assert note.place == "line 3"


def test_numbers_that_no_table_holds(zones_file: Path) -> None:
    rows = [0, 2**40, 5, 1, 0, -1, 7, 1]
    lines(
        zones_file,
        HEADER,
        {"names": {"0": ["gc", "g"]}, "anchors": [[0, BASE]], "rows": rows},
        {"rows": [0, 0, 2**63, 1]},
        {"names": {str(10**30): ["a", "b"]}},
    )
    timeline, notes = read_zones(zones_file, 3)
    assert len(timeline.zones) == 2
    assert [note.place for note in notes] == ["line 3", "line 4"]


def test_a_header_that_is_nested_too_deep(zones_file: Path) -> None:
    zones_file.write_text('{"schema": ' + "[" * 100_000 + "\n")
    with pytest.raises(RecordingError, match="the header is broken"):
        read_zones(zones_file, 3)


def test_a_line_that_is_too_long_is_left_out(zones_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.trace.jsonlines._LONGEST_LINE", 200)
    monkeypatch.setattr("distprof.trace.jsonlines._SKIPPED", 64)
    block = {"names": {"0": ["gc", "g"]}, "anchors": [[0, BASE]], "rows": [0, 0, 5, 1]}
    lines(zones_file, HEADER, block, {"rows": list(range(400))}, {"rows": [0, 0, 9, 1]})
    timeline, [note] = read_zones(zones_file, 3)
    assert timeline.zones["start"].to_list() == [BASE + 5, BASE + 9]
    assert note.place == "line 3"
    assert "longer than" in note.text


def test_a_pipe_is_not_waited_for(zones_file: Path) -> None:
    os.mkfifo(zones_file)
    for read in (read_zones, read_facts):
        with pytest.raises(RecordingError, match="it is no regular file"):
            read(zones_file, 3)  # type: ignore[operator]
