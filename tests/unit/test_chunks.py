"""Splitting a trace's text into events, and what is saved of a broken one."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.trace import borders, inflate
from distprof.trace import chunks as module
from distprof.trace.chunks import EventChunks, NoTraceError
from distprof.trace.repair import repaired


class Event(msgspec.Struct):
    name: str = ""
    ts: float | None = None
    args: dict[str, Any] | None = None


def read(path: Path) -> tuple[list[str], EventChunks[Event]]:
    chunks = EventChunks(path, Event)
    return [event.name for chunk in chunks for event in chunk.events], chunks


def text(
    *events: str, head: str = '{"schemaVersion": 1, "traceEvents": [', tail: str = '], "displayTimeUnit": "ms"}'
) -> str:
    return head + ",\n".join(events) + tail


def plain(name: str) -> str:
    return json.dumps({"ph": "X", "name": name, "ts": 1.5, "args": {"list": [{"ph": 1}, {"name": "}, {"}]}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk holds a few events, so that files of tests have several."""
    for where in (module, inflate):
        monkeypatch.setattr(where, "BLOCK", 200)
    monkeypatch.setattr(borders, "_SEARCHED", 64)


FORMS = {
    "object": (text, '{"schemaVersion": 1, "traceEvents": [],', "ms"),
    "list": (lambda *events: text(*events, head="[", tail="]"), "{}", None),
    "list that ends nowhere": (lambda *events: text(*events, head=" [\n", tail=",\n"), "{}", None),
    "byte order mark": (lambda *events: "\ufeff" + text(*events), "{", "ms"),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 57])
def test_whole_events_in_their_order(path: Path, form: str, count: int) -> None:
    write, _, unit = FORMS[form]
    names = [f"event {number}" for number in range(count)]
    path.write_text(write(*map(plain, names)))
    found, chunks = read(path)
    assert found == names
    assert (chunks.kept, chunks.dropped, chunks.repaired) == (count, 0, 0)
    assert json.loads(chunks.header).get("displayTimeUnit") == unit
    assert (chunks.cut is None) == (form != "list that ends nowhere")


@pytest.mark.usefixtures("small_blocks")
def test_a_gzip_file_is_known_by_its_first_bytes(path: Path) -> None:
    names = [f"event {number}" for number in range(40)]
    whole = text(*map(plain, names)).encode()
    half = len(whole) // 2
    for data in (whole, gzip.compress(whole), gzip.compress(whole[:half]) + gzip.compress(whole[half:]) + b"\0" * 100):
        path.write_bytes(data)
        found, chunks = read(path)
        assert (found, chunks.damage) == (names, None)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_damaged_gzip_file_is_read_up_to_there(path: Path, share: float) -> None:
    names = [f"event {number} {zlib.crc32(bytes([number]))}" for number in range(200)]
    data = gzip.compress(text(*map(plain, names)).encode())
    path.write_bytes(data[: int(len(data) * share)])
    found, chunks = read(path)
    assert found and found == names[: len(found)]
    assert chunks.damage is not None and "ends early" in chunks.damage
    assert chunks.cut is not None or len(found) == 200
    path.write_bytes(data[: len(data) // 2] + b"\xff" * 50 + data[len(data) // 2 :])
    found, chunks = read(path)
    assert chunks.damage is not None and "damaged" in chunks.damage
    assert found[:50] == names[:50]


@pytest.mark.usefixtures("small_blocks")
def test_every_cut_keeps_what_is_whole(path: Path) -> None:
    names = [f"event {number}" for number in range(7)]
    whole = text(*map(plain, names))
    begin = whole.index("[") + 1
    last = whole.rindex("}", 0, whole.index("displayTimeUnit")) + 1
    for cut in range(begin, last):
        path.write_text(whole[:cut])
        found, chunks = read(path)
        assert found == names[: len(found)]
        assert len(found) == whole[:cut].count('"}]}}')
        assert chunks.cut is not None and chunks.cut <= cut
        assert (chunks.dropped, chunks.repaired) == (0, 0)


BROKEN = {
    "NaN": ('{"ph": "X", "name": "a", "ts": NaN}', "a", 1),
    "infinities": ('{"ph": "X", "name": "a", "args": {"x": Infinity, "y": [-Infinity, nan, 1]}}', "a", 1),
    "a word of NaN": ('{"ph": "X", "name": "is NaN", "ts": NaN}', "is NaN", 1),
    "a tab": ('{"ph": "X", "name": "a\tb"}', "a\tb", 1),
    "a control character": ('{"ph": "X", "name": "a\x01b"}', "a\x01b", 1),
    "a line break": ('{"ph": "X", "name": "a\nb"}', "a\nb", 1),
    "quotes": ('{"ph": "X", "name": "say "hello", you", "ts": 1}', None, 0),
    "quotes around a word": ('{"ph": "X", "name": "a "word" b", "ts": 1}', 'a "word" b', 1),
    "a path of Windows": (r'{"ph": "X", "name": "torch\cuda\__init__.py"}', r"torch\cuda\__init__.py", 1),
    "one that looks half legal": (
        r'{"ph": "X", "name": "torch\nn\utils.py(8): \user"}',
        r"torch\nn\utils.py(8): \user",
        1,
    ),
    "legal escapes": (r'{"ph": "X", "name": "a\nb\u00e9"}', "a\nb\u00e9", 0),
    "deep nesting": ('{"ph": "X", "name": "a", "args": ' + "[" * 100_000 + "]" * 100_000 + "}", None, 0),
    "a missing value": ('{"ph": "X", "name": }', None, 0),
    "a number for a name": ('{"ph": "X", "name": 5}', None, 0),
    "large numbers": ('{"ph": "X", "name": "a", "args": {"x": 16159970886766084423, "y": 1e300}}', "a", 0),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_event_is_mended_or_left_out_and_the_others_are_kept(path: Path, what: str, place: int) -> None:
    event, name, mended = BROKEN[what]
    events, names = [plain("first"), plain("second")], ["first", "second"]
    events.insert(place, event)
    if name is not None:
        names.insert(place, name)
    path.write_text(text(*events))
    found, chunks = read(path)
    assert found == names
    assert (chunks.repaired, chunks.dropped) == (mended, 1 if name is None else 0)
    assert json.loads(chunks.header)["displayTimeUnit"] == "ms"
    if mended or name is None:
        assert chunks.first_broken is not None
        assert text(*events)[chunks.first_broken :].lstrip("\n").startswith(event[:20])


def test_bytes_that_are_not_utf8(path: Path) -> None:
    path.write_bytes(text(plain("first"), plain("XX"), plain("last")).encode().replace(b"XX", b"a\xff\xfeb"))
    found, chunks = read(path)
    assert found == ["first", "a\ufffd\ufffdb", "last"]
    assert chunks.repaired == 1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("place", [1, 5, 19, 20])
def test_a_bracket_too_many(path: Path, place: int) -> None:
    names = [f"event {number}" for number in range(20)]
    events = list(map(plain, names))
    events[place - 1] += "]"
    path.write_text(text(*events))
    found, chunks = read(path)
    assert found == names
    assert (chunks.repaired, chunks.dropped) == (place < 20, 0)


@pytest.fixture(params=["small blocks", "one block"])
def any_blocks(request: pytest.FixtureRequest) -> None:
    if request.param == "small blocks":
        request.getfixturevalue("small_blocks")


@pytest.mark.usefixtures("any_blocks")
@pytest.mark.parametrize("brackets", ["}]", "}]}"])
@pytest.mark.parametrize("form", ["object", "list"])
@pytest.mark.parametrize("place", [0, 5, 18])
def test_an_event_that_seems_to_end_the_list(path: Path, brackets: str, form: str, place: int) -> None:
    names = [f"event {number}" for number in range(20)]
    events = [json.dumps({"ph": "X", "name": name, "ts": 1.5}) for name in names]
    events[place] = events[place].replace('"X"', '"X"' + brackets)
    path.write_text(FORMS[form][0](*events))
    found, chunks = read(path)
    assert [name for name in found if name] == names[:place] + names[place + 1 :]
    assert (chunks.repaired, chunks.dropped) == (1, 1)
    assert chunks.first_broken == path.read_text().index(brackets) + 2
    assert ("displayTimeUnit" in json.loads(chunks.header)) == (form == "object")


def test_mending_leaves_valid_json_as_it_is() -> None:
    for event in (plain("a"), plain('say \\"hello\\"'), plain("C:\\\\dir\\\\")):
        assert json.loads(repaired(event.encode()) or b"") == json.loads(event)


@settings(max_examples=300, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=8))
def test_mending_any_valid_event_changes_nothing(value: Any) -> None:
    for ascii_only in (True, False):
        event = json.dumps({"ph": "X", "name": value, "args": {"a": value}}, ensure_ascii=ascii_only)
        if not any(mark in event for mark in ("\ud800", "\udfff")):
            mended = repaired(event.encode("utf-8", "replace"))
            assert mended is not None
            msgspec.json.decode(mended)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "it is empty"),
        ("   \n", "it is empty"),
        ("{}", "no list of events"),
        ('{"traceEvents": {}}', "no list of events"),
        ("hello", "it is not JSON"),
        ("version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (text(plain("a")) + "\n" + text(plain("b")), "several ranks wrote this file"),
        ("[" + plain("a") + "][" + plain("b") + "]", "several ranks wrote this file"),
    ],
)
def test_what_is_no_trace(path: Path, content: str, says: str) -> None:
    path.write_text(content)
    with pytest.raises(NoTraceError, match=says):
        read(path)


def test_a_gzip_bomb_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_BOMB_BYTES", 8 << 20)
    monkeypatch.setattr(inflate, "BLOCK", 1 << 20)
    path.write_bytes(gzip.compress(text(*[plain("a" * 1000)] * 1000, *[" " * 1_000_000] * 32).encode()))
    with pytest.raises(NoTraceError, match="unpacks to more than"):
        read(path)


@pytest.mark.usefixtures("small_blocks")
def test_an_endless_event_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_EVENT", 1000)
    path.write_text(text(plain("a"), plain("b" * 3000)))
    with pytest.raises(NoTraceError, match="is longer than"):
        read(path)


def test_a_file_that_is_gone(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(path)
