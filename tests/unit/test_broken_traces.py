"""Broken traces from the ground up: what is kept of them, what is said, and that no figure is silently wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

import distprof
from distprof.cli import main as cli
from distprof.pipeline import build
from distprof.trace import sources
from distprof.trace.loaded import Run
from tests.unit.handmade import BASE, kernel, mark, nccl, write_trace


def expected(case: Path) -> Any:
    return json.loads((case / "expected.json").read_text())


def said(run: Run, name: str) -> list[str]:
    return [f"{note.place}: {note.text}" for note in run.notes if note.file.name == name]


def totals(run: Run) -> dict[int, tuple[float | None, ...]]:
    """rank -> compute, comm, exposed in us."""
    rows = build(run).totals
    return {
        row.rank: tuple(None if x is None else round(x * 1e3, 3) for x in (row.compute, row.comm, row.exposed))
        for row in rows
    }


def test_not_a_number(shared: Path) -> None:
    case = shared / "cases" / "json-nan-infinity"
    run = distprof.load(case)
    assert {str(rank): row[0] for rank, row in totals(run).items()} == expected(case)["compute_us"]
    mended, dropped = said(run, "rank1.json")
    assert mended.endswith("2 events were not valid JSON (quotes, backslashes, NaN, bytes) and were repaired")
    assert f"{expected(case)['dropped_events']} events have no thread number, or no duration" in dropped


def test_killed_while_it_was_written(shared: Path) -> None:
    case = shared / "cases" / "json-truncated-at-kill"
    run = distprof.load(case)
    result = build(run)
    assert result.windows[0].steps == expected(case)["common_steps"]
    assert [row.count for row in result.steps.per_rank] == [1, 1]
    assert {row.rank: row.status for row in result.ranks} == {0: "complete", 1: "partial"}
    [text] = said(run, "rank1.json")
    assert "truncated" in text and "13 whole events were kept" in text
    [text] = said(run, "rank0.json")
    assert "steps 4 were not recorded on all ranks" in text


def test_backslashes_of_windows(shared: Path) -> None:
    case = shared / "cases" / "json-windows-backslash"
    numbers = expected(case)
    run = distprof.load(case)
    assert run.tables.ranks == numbers["ranks"]
    assert set(totals(run).values()) == {(numbers["compute_us"], numbers["comm_us"], numbers["exposed_us"])}
    names = run.tables.events.filter(cat="python_function")["name"].to_list()
    assert names == [r"torch\cuda\__init__.py(219): _lazy_init", r"torch\nn\utils.py(8): \user"]
    assert "were repaired" in said(run, "rank1.json")[0]


def test_durations_that_cannot_be(shared: Path) -> None:
    case = shared / "cases" / "negative-missing-dur"
    numbers = expected(case)
    run = distprof.load(case)
    assert set(totals(run).values()) == {(numbers["compute_us"], numbers["comm_us"], numbers["exposed_us"])}
    counts = [int(text.split(": ")[1].split()[0]) for text in said(run, "rank0.json")]
    assert sum(counts) == numbers["ignored_events"]
    assert all((row.span or 0) * 1e3 <= numbers["span_us_max"] for row in build(run).totals)


def test_nested_marks_and_copies_of_the_device(shared: Path) -> None:
    case = shared / "cases" / "steps-nested-and-gpu-copies"
    run = distprof.load(case)
    steps = {str(row["step"]): (row["end"] - row["start"]) / 1e3 for row in run.tables.steps.iter_rows(named=True)}
    assert steps == expected(case)["steps"]
    assert "2 marks of steps lie inside others" in said(run, "rank0.json")[0]


def test_ids_beyond_63_bits(shared: Path) -> None:
    assert distprof.load(shared / "cases" / "bigint-comms-id").tables.ranks == [0, 1]


def strict(text: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    trace: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return trace


@pytest.mark.parametrize(
    "name",
    [
        "bigint-comms-id",
        "json-nan-infinity",
        "json-truncated-at-kill",
        "json-windows-backslash",
        "negative-missing-dur",
        "time-mixed-bases",
        "clock-skew-two-hosts",
        "sidecar-files",
    ],
)
def test_merged_traces_are_strict_json_on_one_clock(shared: Path, tmp_path: Path, name: str) -> None:
    case = shared / "cases" / name
    target = tmp_path / "all.json.gz"
    assert cli.main(["merge", str(case), "-o", str(target)]) == 0
    merged = strict(gzip.decompress(target.read_bytes()))
    slices = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {0, 1}
    assert all(event["ts"] >= -1 and event["ts"] + event["dur"] <= 2100 for event in slices), "nothing stretches it"
    ids = [event["args"].get("Comms Id") for event in slices if "Comms Id" in event.get("args", {})]
    if name == "bigint-comms-id":
        assert sorted(set(ids)) == sorted(expected(case)["ids"])
    starts = {event["pid"]: event["ts"] for event in slices if event["name"] == "ProfilerStep#3"}
    assert starts[0] == pytest.approx(starts[1], abs=0.5), "as well as so few collectives tell the clocks"


def test_a_merged_trace_that_lost_its_base_stands_beside_the_others(tmp_path: Path) -> None:
    for rank in range(2):
        path = write_trace(tmp_path / f"rank{rank}.json", [mark(3, 0, 1000), nccl(100, 50)], rank=rank)
    path.write_text(path.read_text().replace(f'"baseTimeNanoseconds": {BASE}, ', "").removesuffix("]}"))
    target = tmp_path / "all.json"
    assert cli.main(["merge", str(tmp_path), "-o", str(target)]) == 0
    marks = [event["ts"] for event in strict(target.read_bytes())["traceEvents"] if event["name"] == "ProfilerStep#3"]
    assert marks == pytest.approx([0, 0], abs=0.5)


def test_a_name_without_end_is_cut(tmp_path: Path) -> None:
    run = distprof.load(write_trace(tmp_path / "rank0.json", [mark(3, 0, 1000), kernel("k" * 100_000, 1, 2)]))
    assert run.tables.kernels["name"].str.len_chars().to_list() == [4096]
    assert "1 names were cut" in said(run, "rank0.json")[0]


def test_spans_that_cross_each_other(tmp_path: Path) -> None:
    events = [mark(3, 0, 1000), kernel("a", 100, 200), kernel("b", 200, 200), nccl(250, 300), nccl(500, 100)]
    assert totals(distprof.load(write_trace(tmp_path / "rank0.json", events))) == {0: (300, 350, 200)}


def test_a_file_that_vanishes_while_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(tmp_path / "rank0.json", [mark(3, 0, 1000)])
    gone = tmp_path / "rank1.json"
    find = sources.find_files
    monkeypatch.setattr("distprof.trace.traces.find_files", lambda paths: ([*find(paths)[0], gone], []))
    run = distprof.load(tmp_path)
    assert run.tables.ranks == [0]
    assert said(run, "rank1.json") == ["None: it cannot be read (No such file or directory)"]


@pytest.mark.parametrize("command", [["report"], ["merge", "-o", "all.json"]])
def test_what_cannot_be_read_at_all_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rank0.json").write_bytes(gzip.compress(b"nonsense"))
    Path("rank1.json").write_bytes(gzip.compress(b"")[:10] + b"nonsense")
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "."])
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "rank0.json: it was not read: it is not JSON" in line
    assert "rank1.json: it was not read: the gzip file is damaged" in line
