"""Of what stands in recordings our own words are kept, and the rest is what it stands under."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distprof
from distprof.run.directory import RunDirectory
from distprof.run.secrets import SECRET_NAMES
from distprof.run.settings import SETTINGS
from distprof.scrub import fields, names
from distprof.scrub.copy import scrub
from distprof.scrub.known import Known
from distprof.scrub.rewrite import Rewriter
from distprof.trace import tables
from distprof.trace.recordings import Facts
from tests.unit.private import figures
from tests.worlds import Delay, Probes, World, write


def kinds_of_zones() -> list[str]:
    """As the reader's tables list them."""
    source = Path(tables.__file__).read_text()
    return re.findall(r"(?:kind:|\|)\s+(\w+)", source[source.index("#   kind: ") : source.index("\nZONES")])


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that tells much of what distprof reads."""
    path = tmp_path_factory.mktemp("telling") / "run"
    delays = [Delay(rank=2, kind="data_loading", ms=60)]
    world = World(ranks=3, steps=8, ranks_per_host=2, probes=Probes(), windows=[(3, 5), (6, 7)], delays=delays)
    write(world, path)
    run = RunDirectory(path)
    for rank in range(3):
        files = run.rank(0, rank)
        facts = json.loads(files.facts.read_text())
        loader = {"name": "DataLoader#0", "num_workers": 4, "pin_memory": False, "prefetch_factor": 2}
        asked = dict.fromkeys(SETTINGS, 4)
        met = {
            "setting": "loader.num_workers",
            "target": "DataLoader#0",
            "place": "x:1",
            "had": 2,
            "took": 4,
            "why": None,
        }
        facts |= {
            "loaders": [{**loader, "persistent_workers": False}],
            "settings": {"asked": asked, "met": [met], "unmet": {"ddp.static_graph": "no such object"}},
            "own_cost": {"ns_per_zone": 900.0, "zones": 500, "drain_s": 0.25, "lost_collectives": 1},
            "peak_resident_bytes": 123456789 + rank,
            "windows": [{**window, "export_s": 0.5, "stop_s": 0.25} for window in facts["windows"]],
            "batches": [{"shapes": ["[8, 3]"]}],
            "checksums": {"SGD#0": "abcdef"},
        }
        files.facts.write_text(json.dumps(facts))
        origin = json.loads(files.zones.read_text().splitlines()[1])["anchors"][0][0]
        kinds = kinds_of_zones()
        named = {str(1000 + number): [kind, f"one of {kind}"] for number, kind in enumerate(kinds)}
        rows = [value for key in named for value in (int(key), 0, origin + int(key) * 1000, 500)]
        with files.zones.open("a") as file:
            file.write(json.dumps({"names": named, "rows": rows}) + "\n")
    failure = {"exit_code": 1, "signal": None, "message": "it failed", "unix_s": 1.0, "first": True}
    ended = {"unix_ns": 5, "error": "a rank failed", "exit_code": 1, "failures": {"1": failure}, "absent": {}}
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "ended": ended}))
    attempts = [{"attempt": 0, "node_rank": 0, "nodes": 1, "unix_ns": 1}]
    node = {"schema": "distprof.node.v1", "host": "host0", "boot_id": "b", "pid": 17, "started_unix_ns": 1}
    node |= {"scheduler": {}, "attempts": attempts, "told": [], "ended": ended}
    run.nodes.mkdir()
    (run.nodes / "host0-17.json").write_text(json.dumps(node))
    return run


def keys_and_kinds(value: Any, key: str = "") -> Iterator[str]:
    """All keys in a document, its schema, and kinds of zones."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from keys_and_kinds(inner, key if name.isdigit() else name)
    elif isinstance(value, list):
        if key == "names":
            yield value[0]
        for inner in value if key != "names" else ():
            yield from keys_and_kinds(inner, key)
    elif key == "schema":
        yield value


def documents(run: RunDirectory) -> Iterator[str]:
    for path in sorted(run.path.rglob("*.json*")):
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        yield from text.splitlines() if path.suffix == ".jsonl" else [text]


def words_of_ours(run: RunDirectory) -> list[str]:
    """Every key and kind that stands in a run or could."""
    found = {word for text in documents(run) for word in keys_and_kinds(json.loads(text))}
    found |= fields.KEYS | set(kinds_of_zones())
    return sorted(word for word in found if len(word) > 3 and "#" not in word)  # SGD#0 is the script's


def with_arguments(recorded: RunDirectory, folder: Path, arguments: list[str]) -> RunDirectory:
    run = RunDirectory(shutil.copytree(recorded.path, folder / "run"))
    for path, key in ((run.manifest, "command"), *((run.rank(0, rank).facts, "argv") for rank in range(3))):
        path.write_text(json.dumps({**json.loads(path.read_text()), key: ["train.py", *arguments]}))
    return run


def test_keys_and_kinds_are_all_known(telling: RunDirectory) -> None:
    assert sorted(tables.ZONE_KINDS) == sorted(kinds_of_zones())
    capture = "".join(path.read_text() for path in Path(distprof.__file__).parent.glob("capture/*.py"))
    assert set(re.findall(r'(?:recorder|zones)\.zone\("(\w+)"', capture)) <= tables.ZONE_KINDS
    assert set(re.findall(r'^ +"([a-z_]+)":', capture, re.MULTILINE)) <= fields.KEYS
    assert set(Facts.__struct_fields__) | set(json.loads(telling.manifest.read_text())) <= fields.KEYS
    assert {"bucket_bytes", "peer_received", "anchors", "exit_code", "Process Group Name", "num_workers"} <= fields.KEYS
    assert not [key for key in fields.KEYS if SECRET_NAMES.search(key)]


def test_no_argument_renames_a_key_or_a_kind(telling: RunDirectory) -> None:
    texts = [text for text in documents(telling) if len(text) < 20_000]
    assert len(texts) > 10
    words = words_of_ours(telling)

    def told(text: str) -> list[str]:
        return [word for word in keys_and_kinds(json.loads(text)) if word in words]

    before = [told(text) for text in texts]
    renamed = {}
    for argument in {*words, *(part for word in words for part in re.split(r"[\W_]+", word))}:
        known = Known()
        known.add("argument", argument)
        rewriter = Rewriter(known, names.Names())
        after = [told(rewriter.rewrite(text.encode()).decode()) for text in texts]
        if after != before:
            renamed[argument] = {*chain(*before)} - {*chain(*after)}
    assert not renamed


@pytest.mark.parametrize("split", [False, True])
def test_with_arguments_of_our_words_the_figures_are_the_same(
    telling: RunDirectory, tmp_path: Path, split: bool
) -> None:
    words = words_of_ours(telling)
    if split:
        words = sorted({part for word in words for part in re.split(r"[\W_]+", word) if part})
    run = with_arguments(telling, tmp_path, [f"--{word}" for word in words])
    scrub([run.path], tmp_path / "out")
    assert figures(tmp_path / "out") == figures(run.path)


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_with_an_argument_of_our_words_the_figures_are_the_same(telling: RunDirectory, data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(words_of_ours(telling)))
    with TemporaryDirectory() as folder:
        run = with_arguments(telling, Path(folder), [f"--{word}", "1"])
        scrub([run.path], Path(folder) / "out")
        assert figures(Path(folder) / "out") == figures(run.path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"whatever":[{"name":"x"},"MARK"]}', '{"whatever":[{"name":"x"},"value-1"]}'),
        ('{"whatever":[{"status":1},["MARK"]]}', '{"whatever":[{"status":1},["value-1"]]}'),
        ('{"argv":[{"desc":"x"},"MARK"]}', '{"argv":[{"desc":"x"},"argument-1"]}'),
        ('{"argv":[{"desc":"x"}],"name":"y"}', '{"argv":[{"desc":"x"}],"name":"y"}'),
        ('{"names":{"7":["zone","x"],"8":["zone","y"]}}', '{"names":{"7":["zone","x"],"8":["zone","y"]}}'),
        ('{"names":{"7":[[],{"x":1}],"8":["MARK.py"]},"x":["MARK"]}', None),
        ('{"password":[4711,[1.5e3]],"n":4}', '{"password":[null,[null]],"n":4}'),
        ('{"password":{"1":4711},"n":[4]}', '{"password":{"1":null},"n":[4]}'),
        ('{"password":{"value":{"x":[47, 11]}},"n":4}', '{"password":{"value":{"x":[null, null]}},"n":4}'),
        ('{"credentials":{"name":"x"},"name":"y"}', '{"credentials":{"name":"secret-1"},"name":"y"}'),
        ('{"credentials":{"name":[{"cat":"x"}]},"cat":"y"}', '{"credentials":{"name":[{"cat":"secret-1"}]},"cat":"y"}'),
        ('[{"password": -47.5 , "x": [1, {"y": 2}, 3]}, 4]', '[{"password": null , "x": [1, {"y": 2}, 3]}, 4]'),
        ('{"password":["a",1,{"b":2},3],"c":[4]}', '{"password":["secret-1",null,{"b":null},null],"c":[4]}'),
        ('{"a":{"b":{}},"whatever":["MARK",[1,2,[3]],true,"MARK"]}', None),
        ('],"x":"MARK"}', '],"x":"value-1"}'),
    ],
)
def test_what_a_value_is_depends_on_where_it_stands(text: str, expected: str | None) -> None:
    rewritten = Rewriter(Known(), names.Names()).rewrite(text.encode()).decode()
    assert expected is None or rewritten == expected
    assert "MARK" not in rewritten
    assert re.sub(r"-?[0-9.e]+|null|\"[^\"]*\"", "", rewritten) == re.sub(r"-?[0-9.e]+|null|\"[^\"]*\"", "", text)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["x", "[{", "q\\"]),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from(["name", "password", "z", "7"]), inner)),
    max_leaves=25,
)


@given(value=JSON, indent=st.sampled_from([None, 1]))
def test_strings_and_numbers_are_replaced_by_all_that_they_stand_under(value: Any, indent: int | None) -> None:
    def expected(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {
                name: expected(inner, key if key == "password" or name.isdigit() else name)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [expected(inner, key) for inner in value]
        if isinstance(value, str):
            return value if key == "name" else "private"
        return None if key == "password" and type(value) in (int, float) else value

    text = json.dumps(value, indent=indent)
    rewritten = json.loads(Rewriter(Known(), names.Names()).rewrite(text.encode()))
    told = json.loads(re.sub(r'"(secret|value)-[0-9]+"', '"private"', json.dumps(rewritten)))
    assert told == json.loads(json.dumps(expected(value)))
