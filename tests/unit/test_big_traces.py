"""Traces of millions of events: the known answer, from each step of it that fits into memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import distprof
from distprof.pipeline import build
from distprof.trace import columns

STEPS = 20
COMPUTE_MS, COMM_MS, LATE_MS = 6.0, 2.0, 0.5


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    generator = shared / "cases" / "gen_big" / "gen_big.py"
    subprocess.run([sys.executable, generator, tmp_path / "traces", "2", str(STEPS * 200), "gz"], check=True)
    return tmp_path / "traces"


@pytest.mark.parametrize("most", [columns._MOST_EVENTS, 1000])
def test_the_answer_is_the_known_one_with_and_without_operators(
    most: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_MOST_EVENTS", most)
    monkeypatch.setattr("distprof.trace.chunks.BLOCK", 1 << 16)
    monkeypatch.setattr("distprof.trace.inflate.BLOCK", 1 << 16)
    run = distprof.load(folder)
    result = build(run)
    for row, late in zip(result.totals, (LATE_MS, 0), strict=True):
        assert row.compute == pytest.approx(STEPS * COMPUTE_MS)
        assert row.comm == row.exposed == pytest.approx(STEPS * (COMM_MS - late))
    operators = run.tables.events.filter(cat="cpu_op").height
    told = [note.text for note in run.notes if "operators of the host were left out" in note.text]
    if most == 1000:
        assert operators == 0
        assert told == [f"it has more than 1000 events: {STEPS * 197} operators of the host were left out"] * 2
    else:
        assert (operators, told) == (2 * STEPS * 197, [])


def test_an_operator_with_a_collective_stays(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(columns, "_MOST_EVENTS", 2)
    rows = [
        ("record_param_comms", "cpu_op", '{"Collective name":"allreduce","In msg nelems":4}'),
        ("k", "kernel", "{}"),
    ]
    rows = [("aten::mm", "cpu_op", "{}"), *rows, *rows]
    events = ",".join(
        f'{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":1,"ts":{place},"dur":1,"args":{args}}}'
        for place, (name, cat, args) in enumerate(rows)
    )
    path = tmp_path / "rank0.json"
    path.write_text(
        f'{{"distributedInfo":{{"rank":0}},"baseTimeNanoseconds":1790857026000000000,"traceEvents":[{events}]}}'
    )
    from distprof.trace.kineto import read_trace

    trace = read_trace(path)
    assert trace.events["name"].to_list() == ["record_param_comms", "k"] * 2
    assert trace.calls.select("row", "elements").rows() == [(0, 4), (2, 4)]
    assert not trace.events.filter(pl.col("leaf")).height
