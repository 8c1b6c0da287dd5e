"""docs/tables.md: its columns are those of the tables, and its code runs on a run directory and on traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distprof.trace import tables
from tests.conftest import ROOT
from tests.worlds import Delay, World, write

PAGE = (ROOT / "docs" / "tables.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SCHEMAS = (
    "zones",
    "steps",
    "batches",
    "device_zones",
    "collectives",
    "events",
    "kernels",
    "memory",
    "shapes",
    "windows",
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_columns_and_dtypes(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))
    schema: dict[str, Any] = getattr(tables, name.upper())
    assert documented == {column: str(dtype) for column, dtype in schema.items()}


def answers(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(
            compile(block.replace('distprof.load("run")', f"distprof.load({path!r})"), "docs/tables.md", "exec"), names
        )
    return names


@pytest.mark.parametrize("path", ["run", "run/attempt0/*.pt.trace.json.gz"])
def test_five_questions(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(World(ranks=3, delays=[Delay(rank=2, kind="data_loading", ms=60)]), tmp_path / "run")
    names = answers(path, tmp_path, monkeypatch)
    assert len(BLOCKS) == 6
    assert names["step_ms"]["rank"].to_list() == [0, 1, 2]
    assert all(90 < ms < 110 for ms in names["step_ms"]["ms"])
    busiest = names["last"].sort("len")[-1].row(0, named=True)
    assert busiest["last"] == 2
    assert 50 < busiest["late_ms"] < 70
    loading = names["zone_ms"].filter(kind="data_loading").sort("rank")["ms"].to_list()
    assert loading[2] > 10 * loading[0]
    assert set(names["exposed_ms"]) == {0, 1, 2}
    assert names["exposed_ms"][2] < names["exposed_ms"][0]
    assert names["operators"]["ms"].max() > 0


def test_five_questions_of_a_job_on_devices(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = answers("torchrec4-straggler", shared / "traces", monkeypatch)
    assert names["exposed_ms"] == pytest.approx({0: 3036.374, 1: 3033.490, 2: 31.718, 3: 3032.381})
    assert names["last"].filter(last=2)["len"].item() == 12
