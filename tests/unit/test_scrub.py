"""Scrubbed copies: nothing private is left in them, and they analyse to the same figures."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distprof
from distprof.cli.scrub import main
from distprof.pipeline import build
from distprof.result import to_json
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.run.secrets import SECRET_NAMES
from distprof.run.settings import SETTINGS
from distprof.scrub import copy, fields, names
from distprof.scrub.copy import scrub
from distprof.scrub.known import Known
from distprof.scrub.rewrite import Rewriter
from distprof.scrub.shapes import replace_shapes
from distprof.trace import tables
from distprof.trace.recordings import Facts
from tests.unit.handmade import mark, nccl, operator, span, write_trace
from tests.unit.private import Plant, all_text, plant, plants
from tests.worlds import Delay, Probes, World, write


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A small run, to be copied and not to be changed."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    write(World(ranks=2, steps=4, windows=[(2, 3)]), path)
    return RunDirectory(path)


@pytest.fixture
def run(recorded: RunDirectory, tmp_path: Path) -> RunDirectory:
    return RunDirectory(shutil.copytree(recorded.path, tmp_path / "run"))


def figures(*paths: Path) -> Any:
    """The report without its texts, and without what depends on the files' sizes."""
    report = json.loads(to_json(build(distprof.load(*paths))))
    report["overhead"]["trace_bytes"] = None
    return _without_texts(report)


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_texts(inner) for inner in value]
    return "" if isinstance(value, str) else value


@settings(max_examples=100)
@given(planted=st.lists(plants(), min_size=1, max_size=6))
def test_what_is_private_is_nowhere_in_the_copy(recorded: RunDirectory, planted: list[Plant]) -> None:
    with TemporaryDirectory() as folder:
        run = RunDirectory(shutil.copytree(recorded.path, Path(folder) / "run"))
        plant(run, planted)
        before = {one.marker for one in planted if any(one.marker in text for _, text in all_but_digests(run.path))}
        scrub([run.path], Path(folder) / "out")
        for file, text in all_text(Path(folder) / "out"):
            found = [one for one in planted if one.marker.lower() in text.lower()]
            assert not found, (file, found)
        assert before or all(one.place == "digest" for one in planted), "something was planted"


@settings(max_examples=15)
@given(planted=st.lists(plants().filter(lambda one: one.place != "digest"), min_size=1, max_size=6))
def test_whatever_is_replaced_the_figures_are_the_same(recorded: RunDirectory, planted: list[Plant]) -> None:
    with TemporaryDirectory() as folder:
        run = RunDirectory(shutil.copytree(recorded.path, Path(folder) / "run"))
        plant(run, planted)
        scrub([run.path], Path(folder) / "out")
        assert figures(Path(folder) / "out") == figures(run.path)


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
    assert sorted(fields.ZONE_KINDS) == sorted(kinds_of_zones())
    capture = "".join(path.read_text() for path in Path(distprof.__file__).parent.glob("capture/*.py"))
    assert set(re.findall(r'(?:recorder|zones)\.zone\("(\w+)"', capture)) <= fields.ZONE_KINDS
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


@pytest.mark.parametrize(
    "told",
    [
        '{"Call stack":"C:\\\\Users\\\\zqbobq\\\\x.py"}',
        '{"Call stack":"/users/zqbobq/x.py"}',
        '{"Call stack":"\\/home\\/zqbobq\\/x.py"}',
        '{"Call stack":"\\u002fhome\\u002fzqbobq\\u002fx.py"}',
        '{"Call stack":"\\u005c\\u005cUsers\\u005czqbobq\\u005cx.py"}',
        '{"host_name":"\\u007aqbobq"}',
        '{"host\\u005fname":"zqb\\u006fbq"}',
        '{"user":"zqbob\\u0071"}',
    ],
)
def test_users_and_hosts_are_learned_however_they_are_written(tmp_path: Path, told: str) -> None:
    trace = write_trace(tmp_path / "rank0.json", [mark(1, 0, 10), operator("zone of zqbobq", 2, 3)])
    trace.write_text(trace.read_text().replace('"args": {}', f'"args": {told}', 1).replace("{", f'{{"x": {told}, ', 1))
    json.loads(trace.read_text())
    scrub([trace], tmp_path / "out")
    (copied,) = (tmp_path / "out").iterdir()
    assert "zone of " in copied.read_text()
    assert "zqbobq" not in copied.read_text()


def test_an_escaped_backslash_before_a_u_is_no_escape(tmp_path: Path) -> None:
    known = Known()
    known.learn_bytes(rb'{"user":"\\u0041bob","x":"\ud83d\u00e9"}')
    assert known.replacer()("Abob", names.Names().of) == "Abob"


def all_but_digests(folder: Path) -> Iterator[tuple[str, str]]:
    shutil.rmtree(folder / "digest", ignore_errors=True)
    return all_text(folder)


def test_a_copy_analyses_to_the_same_figures(tmp_path: Path) -> None:
    world = World(
        ranks=4,
        steps=20,
        ranks_per_host=2,
        probes=Probes(),
        windows=[(5, 8), (10, 12)],
        delays=[Delay(rank=2, kind="data_loading", ms=60)],
    )
    write(world, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    planted = [
        Plant("/home/bob/my data/x.py(3): f", "bob", "name", False),
        Plant("bob@example.org", "bob", "stack", False),
        Plant("bobs-machine", "bobs", "argv", False, "argv"),
    ]
    plant(run, planted)
    done = scrub([run.path], tmp_path / "out")
    assert figures(tmp_path / "out") == figures(run.path)
    straggler = json.loads(to_json(build(distprof.load(tmp_path / "out"))))["stragglers"]["ranks"][0]
    assert (straggler["rank"], straggler["cause"]) == (2, "data_loading")
    hosts = [row["host"] for row in json.loads(to_json(build(distprof.load(tmp_path / "out"))))["ranks"]]
    assert hosts == ["host-1", "host-1", "host-2", "host-2"]
    assert {"host", "path", "argument", "id", "email"} <= set(done.kinds)


@pytest.mark.parametrize("case", ["gloo-cpu-dataloader-stall", "json-windows-backslash", "json-truncated-at-kill"])
def test_copies_of_traces_of_others_give_the_same_figures(shared: Path, tmp_path: Path, case: str) -> None:
    traces = sorted((shared / "cases" / case).glob("*.json*"))
    traces = [path for path in traces if path.name != "expected.json"]
    scrub(traces, tmp_path / "out")
    told, again = figures(*traces), figures(tmp_path / "out")
    # What was mended in the traces is whole in the copies, so that there is less to note.
    assert {**told, "not_observed": None} == {**again, "not_observed": None}


def test_real_traces_keep_their_ranks_hosts_and_figures(shared: Path, tmp_path: Path) -> None:
    traces = shared / "traces" / "torchrec4-straggler"
    scrub([traces], tmp_path / "out")
    assert figures(tmp_path / "out") == figures(traces)


def test_the_same_value_gets_the_same_name_everywhere(run: RunDirectory, tmp_path: Path) -> None:
    plant(run, [Plant("zqhost17 and zqhost17", "zqhost17", place, False) for place in ("name", "stack")])
    told = json.loads(run.rank(0, 1).facts.read_text())
    run.rank(0, 1).facts.write_text(json.dumps({**told, "host": "zqhost17"}))
    scrub([run.path], tmp_path / "out")
    facts = json.loads(RunDirectory(tmp_path / "out").rank(0, 1).facts.read_text())
    trace = gzip.decompress(RunDirectory(tmp_path / "out").rank(0, 1).window(0).read_bytes()).decode()
    assert f'"name":"{facts["host"]} and {facts["host"]}"' in trace
    assert f'"Call stack":"{facts["host"]} and {facts["host"]}"' in trace


def test_numbers_order_and_layout_stay(tmp_path: Path) -> None:
    text = (
        '{"schemaVersion": 1,"big": 123456789012345678901234567890, "tiny": 1e-400,\n "traceEvents": [\n'
        '{"ph":"X","name":"/home/bob/x.py","pid":1,"tid":1,"ts":1700000000000000.123,"dur":0.001,"args":{"Addr":'
        '18446744073709551615,"n":-0.0}},\n{"ph":"X","name":"b","pid":1,"tid":1,"ts":5,"dur":1}],\n "end": 1.50}'
    )
    (tmp_path / "rank0.json").write_text(text)
    scrub([tmp_path / "rank0.json"], tmp_path / "out")
    (copied,) = (tmp_path / "out").iterdir()
    bare = re.sub(r"\s", "", copied.read_text())
    assert bare == re.sub(r"\s", "", text.replace("/home/bob/x.py", "path-1"))


def test_zones_whose_names_match_are_renamed_everywhere(run: RunDirectory, tmp_path: Path) -> None:
    plant(
        run,
        [
            Plant("Acme rollout", "Acme", "zone", False),
            Plant("other zone", "other", "zone", False),
            Plant("Acme eval", "Acme", "annotation", False),
            Plant("in Acme rollout now", "Acme", "stack", False),
        ],
    )
    done = scrub([run.path], tmp_path / "out", [re.compile("^Acme"), re.compile("matches nothing")])
    text = "".join(text for _, text in all_text(tmp_path / "out"))
    assert "Acme" not in text
    assert "other zone" in text
    assert sorted(done.kinds["zone"].values) == ["Acme eval", "Acme rollout"]
    assert figures(tmp_path / "out") == figures(run.path)


def test_marks_of_torch_are_no_zones_to_rename(tmp_path: Path) -> None:
    events = [mark(1, 0, 100), mark(2, 100, 100), span("Optimizer.step#SGD.step", 50, 10), operator("aten::mm", 5, 9)]
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json", [*events, nccl(20, 10)], rank=rank)
    scrub([tmp_path / "rank0.json", tmp_path / "rank1.json"], tmp_path / "out", [re.compile("")])
    assert figures(tmp_path / "out") == figures(tmp_path / "rank0.json", tmp_path / "rank1.json")


def test_broken_recordings_stay_as_broken(run: RunDirectory, tmp_path: Path) -> None:
    files = run.rank(0, 1)
    with files.zones.open("a") as file:
        file.write('{"names": {"7": ["zone", "/home/bob/x"')
    run.rank(0, 0).collectives.write_text(run.rank(0, 0).collectives.read_text() + '{"bob": \n{}\n')
    packed = files.window(0).read_bytes()
    files.window(0).write_bytes(packed[: len(packed) // 2])
    places = [(note.file.name, note.place) for note in distprof.load(run.path).notes]
    scrub([run.path], tmp_path / "out")
    kept = [(note.file.name, note.place) for note in distprof.load(tmp_path / "out").notes]
    files_of = lambda found: sorted({name for name, _ in found})  # noqa: E731
    assert files_of(kept) == files_of(places)
    assert figures(tmp_path / "out")["breakdown"] == figures(run.path)["breakdown"]
    files.facts.write_text('{"host": "bob')
    scrub([run.path], tmp_path / "again")
    assert "rank00001.json" in {note.file.name for note in distprof.load(tmp_path / "again").notes}
    assert all("bob" not in path.read_bytes().decode("latin-1") for path in (tmp_path / "again").rglob("*.json*"))


def test_a_broken_header_keeps_rank_and_base_alone(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank1.json", [mark(1, 0, 10)], rank=1, note="/home/bob/x")
    trace.write_text(trace.read_text().replace('"note"', '"x": bad, "note"'))
    scrub([trace], tmp_path / "out")
    (copied,) = (tmp_path / "out").iterdir()
    assert "bob" not in copied.read_text()
    assert distprof.load(copied).tables.ranks == [1]
    assert distprof.load(copied).tables.events["start"][0] == distprof.load(trace).tables.events["start"][0]


def test_links_are_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    files = run.rank(0, 1)
    files.zones.rename(tmp_path / "elsewhere" / files.zones.name)
    files.zones.symlink_to(tmp_path / "elsewhere" / files.zones.name)
    (run.path / "attempt7").symlink_to(tmp_path / "elsewhere")
    (run.path / "nodes").mkdir()
    os.mkfifo(run.nodes / "host-1.json")
    done = scrub([run.path], tmp_path / "out")
    left_out = dict(done.left_out)
    assert "link" in left_out["attempt0/rank00001.zones.jsonl"]
    assert "link" in left_out["attempt7"]
    assert "regular" in left_out["nodes/host-1.json"]
    assert not (tmp_path / "out" / "attempt7").exists()
    assert not RunDirectory(tmp_path / "out").rank(0, 1).zones.exists()


def test_digests_reports_and_unknown_files_are_left_out(run: RunDirectory, tmp_path: Path) -> None:
    run.digest.mkdir()
    for path in (run.digest / "x", run.report_json, run.report_html, run.timeline, run.path / "log.txt"):
        path.write_text("bob")
    done = scrub([run.path], tmp_path / "out")
    assert {"digest", "report.json", "report.html", "timeline.json.gz", "log.txt"} == {
        name for name, _ in done.left_out
    }
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["attempt0", "run.json"]


def test_what_is_there_is_not_overwritten(run: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    scrub([run.path], out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(RunDirectoryError, match="not empty"):
        scrub([run.path], out)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match="no folder"):
        scrub([run.path], tmp_path / "link")
    with pytest.raises(RunDirectoryError, match="outside"):
        scrub([run.path], run.path / "out")


def test_a_copy_that_fails_leaves_nothing(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(run, [Plant("/data/a /data/b /data/c", "x", "stack", False), Plant("/data/d", "x", "name", False)])
    monkeypatch.setattr(names, "_MOST_VALUES", 3)
    with pytest.raises(RunDirectoryError, match="more than 3 different private values"):
        scrub([run.path], tmp_path / "out")
    monkeypatch.undo()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(copy, "_copy", full)
    with pytest.raises(OSError, match="No space"):
        scrub([run.path], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_names_that_stand_there_already_are_not_given_again(run: RunDirectory, tmp_path: Path) -> None:
    for rank, host in enumerate(("gpu17", "host-1")):
        facts = json.loads(run.rank(0, rank).facts.read_text())
        run.rank(0, rank).facts.write_text(json.dumps({**facts, "host": host}))
    scrub([run.path], tmp_path / "out")
    out = RunDirectory(tmp_path / "out")
    hosts = [json.loads(out.rank(0, rank).facts.read_text())["host"] for rank in (0, 1)]
    assert hosts == ["host-2", "host-1"]


def test_check_lists_and_writes_nothing(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(run, [Plant("bob@example.org\x1b[31m", "bob", "stack", False)])
    assert main([str(run.path), "--check"]) == 3
    printed = capsys.readouterr().out
    assert "e-mail addresses: 1, in 1 places" in printed
    assert "bob@example.org" in printed
    assert "\x1b" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_copy_has_nothing_left_to_replace(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(run, [Plant(f"/home/bob/{place}/x.py(3): f", "bob", place, False) for place in ("name", "key", "argv")])
    assert main([str(run.path), "-o", str(tmp_path / "out")]) == 0
    assert re.search(r"paths and names of files: \d+ replaced, in \d+ places", capsys.readouterr().out)
    assert main([str(tmp_path / "out"), "--check"]) == 0
    assert "nothing looks private" in capsys.readouterr().out


TWICE = [
    'see //server/share/secretdir/x and {"password": "hunter2x"}',
    "a@b.org/d/e/f",
    "{password: hunter2x}, [token=hunter2x]",
    "HOST=10.1.2.3/x DATA=/a/b,/c d",
    "https://a/b c",
    "a/b.py/c.ckpt.gz@x.org",
    "bob@x.org:22/y",
    "C:\\a b\\c.py;D:/x",
    "~bob/a//b/c.txt:/d/e",
    "x.org.com/y/z@w",
    "/a/b c(3): d/e/f.py",
    "Authorization: Bearer aaaa; x=/a/b",
]


@pytest.mark.parametrize("text", TWICE)
def test_a_copy_passes_the_check_whatever_stood_in_it(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    facts = json.loads(run.rank(0, 1).facts.read_text())
    run.rank(0, 1).facts.write_text(json.dumps({**facts, "problems": [text, f"it says {text}"]}))
    assert main([str(run.path), "-o", str(tmp_path / "out")]) == 0
    assert main([str(tmp_path / "out"), "--check"]) == 0, capsys.readouterr().out


def test_a_copy_passes_the_check_whose_keys_were_secrets(recorded: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(recorded.path, tmp_path / "run"))
    plant(run, [Plant("wJalrXUtnFEMIAK7MDENG/bPxRfiCYEXAMPLEKEY", "K7MDENG", "key", escaped=False)])
    scrub([run.path], tmp_path / "out")
    assert scrub([tmp_path / "out"], None).kinds == {}


@settings(max_examples=40, deadline=None)
@given(planted=st.lists(plants(), min_size=1, max_size=6))
def test_every_copy_passes_the_check(recorded: RunDirectory, planted: list[Plant]) -> None:
    with TemporaryDirectory() as folder:
        run = RunDirectory(shutil.copytree(recorded.path, Path(folder) / "run"))
        plant(run, planted)
        scrub([run.path], Path(folder) / "out")
        assert not scrub([Path(folder) / "out"], None).kinds


@pytest.mark.parametrize("case", ["dlrm8", "torchrec4-overlap", "single/mi250-rocm.json.gz"])
def test_copies_of_real_traces_pass_the_check(shared: Path, tmp_path: Path, case: str) -> None:
    scrub([shared / "traces" / case], tmp_path / "out")
    assert not scrub([tmp_path / "out"], None).kinds


def test_quotes_and_brackets_around_a_secret_stay() -> None:
    text = "{\"password\": \"a b\"}, 'token': 'c', {secret: d}, [pwd=e]"
    expected = "{\"password\": \"secret-1\"}, 'token': 'secret-2', {secret: secret-3}, [pwd=secret-4]"
    assert replace_shapes(text, names.Names().of) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("connecting to 10.1.2.3:29500", "connecting to address-1:29500"),
        ("::ffff:10.1.2.3", "address-1"),
        ("on aa-bb-cc-dd-ee-ff", "on address-1"),
        ("at 26-01-31-12-00-00", "at 26-01-31-12-00-00"),
        ("path=/mnt/my data/x", "path=path-1"),
        ("a=/mnt/x,b=/mnt/y", "a=path-1,b=path-2"),
        ("load /mnt/a&b=c/x;f(/d/e)", "load path-1;f(path-2)"),
        ("bob@host:/data/x and git@host:a/b", "address-1 and address-2"),
    ],
)
def test_of_addresses_and_paths_all_is_replaced_and_no_more(text: str, expected: str) -> None:
    replaced = replace_shapes(text, names.Names().of)
    numbers = iter(range(1, 9))
    in_order = re.sub(r"(path|address)-[0-9]", lambda match: f"{match[1]}-{next(numbers)}", replaced)
    assert in_order == expected


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [
        (["gpu17", "gpu17.corp"], "on GPU17.corp, gpu17_x and gpu170", "on host-1, host-2_x and gpu170"),
        (["bob-a", "a"], "xbob-a bob-a-bob-a", "xbob-a host-1-host-1"),
        (["-lead"], "x -lead y-lead", "x host-1 y-lead"),
    ],
)
def test_known_values_are_found_as_whole_words(known: list[str], text: str, expected: str) -> None:
    values, given_names = Known(), names.Names()
    for value in known:
        values.add("host", value)
    assert values.replacer()(text, given_names.of) == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *((text, True) for text in ("", "12", "-1.5e-07", "[1, 2, [3]]", "(16, 16)", "4x8", "True", "***", "0.125")),
        *((text, False) for text in ("10.215.100.1", "2024-01-31", "030 1234567", "5551234567", "fe80::1", "a", "1a")),
    ],
)
def test_of_what_is_unknown_only_numbers_stay(tmp_path: Path, text: str, kept: bool) -> None:
    trace = write_trace(tmp_path / "rank0.json", [mark(1, 0, 10)], unknown={"thing": [text]})
    scrub([trace], tmp_path / "out")
    (copied,) = (tmp_path / "out").iterdir()
    assert json.loads(copied.read_text())["unknown"]["thing"] == [text if kept else "value-1"]


NAMES_OF_TORCH = """
aten::add
c10d::allreduce_
autograd::engine::evaluate_function: AddmmBackward0
gloo:all_reduce
ProfilerStep#12
Optimizer.step#SGD.step
DistributedDataParallel.forward
Memcpy HtoD (Pinned -> Device)
enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
torch/nn/modules/module.py(1501): _call_impl
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
cudaStreamSynchronize
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)
BinaryCrossEntropyWithLogitsBackward0
[memory]
_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_
GPU 0
<built-in method mm of type object at 0x7f0e01de4d20>
cpu:gloo,cuda:nccl
default_pg
2.13.0+cpu
cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8
triton_poi_fused_add_0
token/s
"""


@pytest.mark.parametrize("text", NAMES_OF_TORCH.strip().splitlines())
def test_what_torch_calls_things_is_not_private(text: str) -> None:
    given_names = names.Names()
    assert replace_shapes(text, given_names.of) == text


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "a.",
            "a/",
            "a@",
            "-a",
            "0:",
            '"/',
            "eyJ",
            "; /a ",
            "a1A",
            "A=",
            "--token ",
            "http://",
            "ab.com",
            "\\\\a",
        ),
        *(
            "a@a:",
            "/a,",
            "/a=",
            "a=/",
            "a=/;",
            "$a",
            "%2F",
            "aa-",
            "1.",
            "key:",
            "tokens:",
            "npm_",
            "://:",
            "/a'",
            "=1Aa",
        ),
    ],
)
def test_no_text_takes_more_than_time_in_proportion(piece: str) -> None:
    text = piece * (60_000 // len(piece))
    begin = time.process_time()
    replace_shapes(text, names.Names().of)
    assert time.process_time() - begin < 3


def test_a_big_trace_is_streamed(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d.5,"dur":2,"args":{"Addr":%d}},\n'
    with gzip.open(tmp_path / "rank0.json.gz", "wt", compresslevel=1) as file:
        file.write('{"schemaVersion":1,"traceEvents":[\n')
        for block in range(40):  # 60 MB
            file.write(
                "".join(event % (number, number * 7919) for number in range(block * 15_000, (block + 1) * 15_000))
            )
        file.write(event.rstrip(",\n") % (0, 0) + "]}")
    program = (
        "import re, sys; from pathlib import Path; from distprof.scrub.copy import scrub; "
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]); "
        "before = peak(); scrub([Path(sys.argv[1])], Path(sys.argv[2])); print(peak() - before)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "rank0.json.gz"), str(tmp_path / "out")]
    grown = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert grown < 40_000, f"{grown} kB more for 60 MB of text"


def test_a_disk_that_is_full_is_told_with_the_name_that_was_given(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(source: Path, target: Path, _: Any) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(copy, "scrub_stream", full)
    with pytest.raises(SystemExit) as ended:
        main([str(run.path), "-o", str(tmp_path / "out")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'out'} cannot be written (No space left on device); give" in error
    assert ".tmp" not in error
    with pytest.raises(SystemExit):
        main([str(run.path), "-o", "/proc/out"])
    assert "/proc/out cannot be written" in capsys.readouterr().err


def test_the_folder_of_an_experiment_is_told(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep" / "measured" / "runs").mkdir(parents=True)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    run.path.rename(tmp_path / "sweep" / "measured" / "runs" / "p0-0")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "sweep"), "--check"])
    assert f"give one of the run directories in it, as {tmp_path}/sweep/measured/runs/p0-0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["RUN"], ["RUN", "-o", "x", "--check"], ["RUN", "--check", "--zone", "("]])
def test_wrong_usage_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_without_recordings_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), "--check"])
    assert ended.value.code == 2
    assert "no run.json and no traces" in capsys.readouterr().err
