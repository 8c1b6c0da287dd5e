"""Real traces with bytes changed, lost and put in: never a traceback, and never more lost than was touched."""

from __future__ import annotations

import gzip
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import distprof
from distprof.pipeline import build
from distprof.report.timeline import write_timeline
from distprof.run.manifest import RunDirectoryError
from distprof.scrub.copy import scrub
from distprof.trace.chunks import NoTraceError
from distprof.trace.kineto import read_trace

SMALL = "single/mi250-rocm.json.gz"
JOB = "torchrec4-straggler"
COLUMNS = ["cat", "name", "thread", "start", "end"]

# (place as a share of the text, what is done there)
CHANGES = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.one_of(
        st.integers(0, 255).map(lambda value: ("set", value)),
        st.integers(0, 7).map(lambda bit: ("flip", bit)),
        st.sampled_from([b'"', b"\\", b"}", b"{", b"]", b"[", b",", b"\x00", b"\xff", b"NaN"]).map(
            lambda b: ("insert", b)
        ),
        st.integers(1, 40).map(lambda count: ("delete", count)),
    ),
)
FUZZ = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], database=None
)


def changed(data: bytes, changes: list[tuple[float, tuple[str, Any]]], *, first: int = 0) -> bytes:
    result = bytearray(data)
    for share, (what, value) in changes:
        at = first + int(share * (len(result) - first))
        if what == "set":
            result[at] = value
        elif what == "flip":
            result[at] ^= 1 << value
        elif what == "insert":
            result[at:at] = value
        else:
            del result[at : at + value]
    return bytes(result)


def text_of(shared: Path, name: str) -> bytes:
    return gzip.decompress((shared / "traces" / name).read_bytes())


@settings(FUZZ, max_examples=150)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
@example(changes=[(0.5625, ("insert", b"}")), (0.5625, ("insert", b"]"))])
def test_changed_text(shared: Path, changes: list[tuple[float, tuple[str, Any]]]) -> None:
    data = text_of(shared, SMALL)
    begin = data.index(b'"traceEvents"') + 20
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_bytes(data)
        original = read_trace(path)
        path.write_bytes(changed(data, changes, first=begin))
        try:
            trace = read_trace(path)
        except NoTraceError:
            return
    whole = original.events
    kept = trace.events.join(whole, on=COLUMNS, how="semi", nulls_equal=True).unique(COLUMNS).height
    # A change can cost the event it is in, or hide that it ends: then the next is lost, too. And it can end the list.
    if not trace.cut and trace.header.base == original.header.base:
        assert kept >= whole.unique(COLUMNS).height - 3 * len(changes)


@settings(FUZZ, max_examples=60)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_changed_gzip_files(shared: Path, changes: list[tuple[float, tuple[str, Any]]]) -> None:
    data = (shared / "traces" / SMALL).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json.gz"
        path.write_bytes(changed(data, changes))
        with suppress(NoTraceError):
            read_trace(path)


@settings(FUZZ, max_examples=50)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_scrubbing_changed_text(shared: Path, changes: list[tuple[float, tuple[str, Any]]]) -> None:
    data = changed(text_of(shared, SMALL), changes, first=1)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "rank0.json", Path(folder) / "out"
        path.write_bytes(data)
        try:
            told = read_trace(path)
        except NoTraceError:
            told = None
        try:
            scrub([path], out)
        except RunDirectoryError as error:
            assert "nothing can be copied" in str(error) and not out.exists()
            assert told is None
            return
        (copied,) = out.iterdir()
        if told is not None:
            times = ["thread", "start", "end"]
            assert read_trace(copied).events.select(times).equals(told.events.select(times))


@settings(FUZZ, max_examples=12)
@given(changes=st.lists(CHANGES, min_size=1, max_size=20), rank=st.integers(0, 3))
def test_a_whole_job_with_one_changed_trace(
    shared: Path, changes: list[tuple[float, tuple[str, Any]]], rank: int
) -> None:
    files = sorted((shared / "traces" / JOB).glob("*.gz"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, file in enumerate(files):
            data = gzip.decompress(file.read_bytes())
            (folder / f"rank{number}.json").write_bytes(changed(data, changes) if number == rank else data)
        try:
            run = distprof.load(folder)
        except RunDirectoryError as error:
            assert "different jobs" in str(error)
            return
        result = build(run)
        write_timeline(run, result, folder / "all.json.gz")
    others = {row.rank: row for row in result.totals if row.rank != rank}
    exact = {0: 3_036_374, 1: 3_033_490, 2: 31_718, 3: 3_032_381}
    for other, row in others.items():
        assert row.exposed == pytest.approx(exact[other] / 1e3, rel=1e-3), "a broken trace costs the others nothing"
    assert run.tables.steps.filter(pl.col("rank") != rank).height == 9
