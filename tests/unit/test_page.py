"""The page: whole, harmless, and well formed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from distprof.report.page import page, write_page
from distprof.result import Result, from_json, json_schema, to_json
from tests.unit import results

EVERY = [results.healthy, results.straggler, results.undecided, results.missing_rank, results.hostile]

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that elements nest; keeps texts, tags and the tables' cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(" ".join(data.split()))
        if "table" in self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data.strip()


@pytest.mark.parametrize("make", EVERY)
def test_is_self_contained_and_well_formed(make: Callable[[], Result]) -> None:
    text = page(make())
    seen = Page(text)
    names = [tag for tag, _ in seen.tags]
    assert "script" not in names and "link" not in names and "img" not in names
    assert "http://" not in text and "https://" not in text and "url(" not in text
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert names.count("h1") == 1
    assert all("scope" in attributes for tag, attributes in seen.tags if tag == "th")
    assert names.count("caption") == names.count("table") > 0


def test_the_verdict_comes_first_and_figures_are_there() -> None:
    seen = Page(page(results.straggler()))
    texts = [text for text in seen.texts if text]
    assert texts[2].startswith("Rank 2 holds the others up: data loading (DataLoader#0), +48.2 ms in each step")
    assert ["2", "101.3", "50.7", "41.2", "0.40", "4.20", "4.00", ""] in seen.rows
    assert ["1", "1.0 MiB", "38", "1.20", "3.45", "–", "–"] in seen.rows
    assert ["2", "50.7", "50%", "120.0", "2", "no"] in seen.rows
    assert ["0", "812.3", "38", "52.9", "50.1", "55.5"] in seen.rows
    assert ["3", "0.0", "–", "–", "–"] in seen.rows  # a clock
    everything = " ".join(texts)
    assert "Critical: Rank 2 spends 50.7 ms per step in DataLoader#0. [rank 2; steps 1–3]" in everything
    assert "delay_ms = 48.2" in everything
    assert "train.py --epochs '2 3'" in everything
    assert "memory, operators: not recorded" in everything
    assert "pin_memory no" in everything


def test_a_healthy_an_undecided_and_a_missing_rank() -> None:
    assert "No rank holds the others up (below the noise of 3.10 ms per step)." in page(results.healthy())
    assert "Undecided whether a rank holds the others up: the clocks are not aligned." in page(results.undecided())
    missing = [text for text in Page(page(results.missing_rank())).texts if text]
    assert missing[2] == "Rank 3 is missing: it left no files."
    assert "Rank 1 is partial: it was killed by signal 9." in missing


def test_bars_are_to_scale() -> None:
    seen = Page(page(results.straggler()))
    wait = [float(a["width"] or 0) for tag, a in seen.tags if tag == "rect" and a["class"] == "comm_wait" and "x" in a]
    assert len(wait) == 4
    assert wait[0] == pytest.approx(100 * 48.1 / (2.5 + 41.2 + 48.1 + 4.2 + 4.0), rel=0.01)
    assert wait[2] < 1


def test_null_is_a_dash_and_never_zero() -> None:
    base = results.healthy()
    rows = [
        replace(row, step=None, data_wait=None, compute=None, comm_wait=None, comm_transfer=None, other=None)
        for row in base.breakdown
    ]
    seen = Page(page(replace(base, breakdown=rows)))
    assert ["1", "–", "–", "–", "–", "–", "–", ""] in seen.rows
    assert "None" not in " ".join(seen.texts)


def test_hostile_names_are_neutralised() -> None:
    text = page(results.hostile())
    assert "<script" not in text and "\x1b" not in text and "\x07" not in text and "\x00" not in text
    assert "\u202e" not in text and "&lt;script&gt;alert(1)" in text
    text.encode()  # no lone surrogates


def test_an_empty_result_is_a_page() -> None:
    base = results.healthy(0)
    Page(page(replace(base, run=replace(base.run, command=None, world_size=None, nnodes=None))))


def test_is_written_atomically(tmp_path: Path) -> None:
    write_page(results.healthy(), tmp_path / "report.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(results.healthy())


@pytest.mark.parametrize("make", EVERY[:-1])
def test_json_round_trip_and_schema(make: Callable[[], Result]) -> None:
    result = make()
    data = to_json(result)
    assert from_json(data) == result
    assert to_json(from_json(data)) == data
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(data))
