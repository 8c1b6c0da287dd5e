"""Scrubbed copies: nothing private is left in them, and they analyse to the same figures."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distprof
from distprof.cli.scrub import main
from distprof.pipeline import build
from distprof.result import to_json
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.scrub import copy, names
from distprof.scrub.copy import scrub
from distprof.scrub.known import Known
from tests.unit.handmade import mark, nccl, operator, span, write_trace
from tests.unit.private import Plant, all_text, figures, plant, plants
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
    assert f"{tmp_path / 'out'} cannot be read or written (No space left on device): free space there, or give" in error
    assert ".tmp" not in error
    with pytest.raises(SystemExit):
        main([str(run.path), "-o", "/proc/out"])
    assert "/proc/out cannot be read or written" in capsys.readouterr().err


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
