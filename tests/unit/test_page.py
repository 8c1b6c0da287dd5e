"""The page: whole, harmless, and well formed."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import plotly.graph_objects
import pytest
from plotly.offline import get_plotlyjs

from distprof.report.figures import breakdown
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
        if self.open and self.open[-1] not in ("style", "title", "script"):
            self.texts.append(" ".join(data.split()))
        if "table" in self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data.strip()


@pytest.mark.parametrize("make", EVERY)
def test_is_self_contained_and_well_formed(make: Callable[[], Result]) -> None:
    text = page(make())
    seen = Page(text)
    names = [tag for tag, _ in seen.tags]
    assert not {"link", "img", "iframe", "object", "form"}.intersection(names)
    written = text.split("<script", 1)[0]
    assert "http://" not in written and "https://" not in written and "url(" not in written
    assert not any({"src", "srcset", "action"}.intersection(attributes) for _, attributes in seen.tags)
    links = [attributes["href"] or "" for tag, attributes in seen.tags if tag == "a"]
    places = {attributes.get("id") for _, attributes in seen.tags}
    assert all(link.startswith("#") and link[1:] in places for link in links)
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert names.count("h1") == 1
    assert all("scope" in attributes for tag, attributes in seen.tags if tag == "th")
    assert names.count("caption") == names.count("table") > 0
    assert all("aria-label" in a for _, a in seen.tags if a.get("role") == "img" and a["id"] != "gantt-picture")


def test_the_verdict_comes_first_and_figures_are_there() -> None:
    seen = Page(page(results.straggler()))
    texts = [text for text in seen.texts if text]
    assert texts[2] == "Verdict"
    assert texts[3].startswith("Rank 2 holds the others up: data loading (DataLoader#0), +48.2 ms in each step")
    assert ["2", "101.3", "50.7", "41.2", "0.40", "4.20", "4.00"] in seen.rows
    assert ["1", "1.0 MiB", "38", "1.20", "3.45", "–", "–"] in seen.rows
    assert ["2", "50.7", "50%", "120.0", "2", "no"] in seen.rows
    assert ["0", "812.3", "38", "52.9", "50.1", "55.5"] in seen.rows
    assert ["3", "0.0", "–", "–", "–"] in seen.rows  # a clock
    everything = " ".join(texts)
    assert "Critical: Rank 2 spends 50.7 ms per step in DataLoader#0. [rank 2; steps 1–3]" in everything
    assert "delay_ms = 48.2" in everything
    assert "train.py --epochs '2 3'" in everything
    assert "kernels, totals: not recorded" in everything
    assert "pin_memory no" in everything


def test_a_healthy_an_undecided_and_a_missing_rank() -> None:
    assert "No rank holds the others up (below the noise of 3.10 ms per step)." in page(results.healthy())
    assert "Undecided whether a rank holds the others up: the clocks are not aligned." in page(results.undecided())
    missing = [text for text in Page(page(results.missing_rank())).texts if text]
    assert missing[2] == "Rank 3 is missing: it left no files."
    assert "Rank 1 is partial: it was killed by signal 9." in missing


def pictures(text: str) -> dict[str, Any]:
    """What the page's script draws."""
    found = re.search(r'<script type="application/json" id="pictures">(.*?)</script>', text, re.DOTALL)
    assert found
    drawn: dict[str, Any] = json.loads(found[1])
    return drawn


def test_bars_and_heat_map_have_the_figures_of_the_report() -> None:
    drawn = pictures(page(results.straggler()))
    wait = next(trace for trace in drawn["figures"]["breakdown"]["data"] if trace["name"].startswith("comm wait"))
    assert wait["y"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert wait["x"] == [48.1, 48.1, 0.4, 48.1]
    heat = drawn["figures"]["lateness"]["data"][0]
    assert heat["y"] == ["0", "1", "2", "3"] and heat["x"] == [str(step) for step in range(1, 39)]
    assert heat["z"][2] == [48.2] * 38 and max(heat["z"][0]) < 0.05
    assert heat["zmax"] == 48.2


def test_communication_whose_waits_are_not_known_has_a_bar_of_its_own() -> None:
    base = results.healthy(2)
    row = replace(base.breakdown[0], step=100.0, compute=50.0, comm_wait=None, comm_transfer=None, comm_exposed=20.0)
    rows = [row, replace(row, rank=1, comm_wait=5.0, comm_transfer=15.0)]
    figure = breakdown(rows)
    assert figure is not None
    drawn = {trace["name"]: trace["x"] for trace in figure["data"]}
    assert drawn["communication"] == [20.0, None]
    assert drawn["not told apart"] == [pytest.approx(100 - 50 - 20 - 2.5 - 4.0), pytest.approx(100 - 50 - 20 - 2.5 - 4)]


def test_a_healthy_run_looks_healthy() -> None:
    heat = pictures(page(results.healthy()))["figures"]["lateness"]["data"][0]
    assert max(map(max, heat["z"])) < 0.02 * heat["zmax"]


def test_the_step_across_ranks_has_their_bars() -> None:
    drawn = pictures(page(results.straggler()))["gantt"]
    assert list(drawn) == ["9", "20"]
    by_name = {trace["name"]: trace for trace in drawn["9"]["data"]}
    loading = by_name["data loading"]
    assert loading["base"] == [0, 0, 0, 0] and loading["x"] == [2.5, 2.5, 50.7, 2.5] and loading["y"] == [0, 1, 2, 3]
    wait = by_name["waiting for other ranks"]
    assert wait["y"] == [0, 1, 3] and wait["base"] == [43.7] * 3 and wait["x"] == [48.2] * 3
    assert drawn["9"]["layout"]["yaxis"]["ticktext"][2] == "<b>▸ rank 2</b>"
    seen = Page(page(results.straggler()))
    assert ["2", "thread", "data_loading", "DataLoader#0", "0.00", "50.70", "50.7"] in seen.rows


def test_a_finding_leads_to_the_step_that_shows_it() -> None:
    seen = Page(page(results.straggler()))
    links = [attributes for tag, attributes in seen.tags if "data-step" in attributes]
    assert [(link["data-step"], link["href"]) for link in links] == [("9", "#step-9")]


@pytest.mark.parametrize("make", EVERY)
def test_plotly_knows_all_that_the_pictures_ask_for(make: Callable[[], Result]) -> None:
    drawn = pictures(page(make()))
    for figure in [*drawn["figures"].values(), *drawn["gantt"].values()]:
        plotly.graph_objects.Figure(figure)  # raises for what it does not know


def test_only_the_pages_own_scripts_may_run() -> None:
    text = page(results.hostile())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    allowed = dict(part.split(" ", 1) for part in html.unescape(policy[1]).split("; "))
    assert allowed["default-src"] == "'none'" and "unsafe" not in allowed["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert allowed["script-src"].split() == [f"'sha256-{code}'" for code in hashes]
    assert len(scripts) == 2
    assert text.count("<script") == text.count("</script>") == 3


def test_eight_ranks_take_less_than_6_mb_and_1024_less_than_20() -> None:
    eight = len(page(results.healthy(8)).encode())
    assert eight < 6e6
    assert eight < 1.25 * len(get_plotlyjs().encode())
    assert len(page(results.many(1024)).encode()) < 20e6


def test_many_ranks_share_rows_and_the_latest_have_their_own() -> None:
    drawn = pictures(page(results.many(1024)))["figures"]
    everybody, latest = drawn["lateness"]["data"][0], drawn["latest"]["data"][0]
    assert len(everybody["y"]) == 64 and everybody["y"][0] == "0–15"
    assert everybody["z"][0] == [48.2] * 128 and max(map(max, everybody["z"][1:])) < 0.05
    assert len(latest["y"]) == 24 and latest["y"][0] == "2"
    some, everything = drawn["breakdown"]["data"], drawn["breakdown-all"]["data"]
    assert some[0]["y"][0] == "rank 2" and len(some[0]["y"]) == 24
    assert everything[0]["x"][0] == "2" and len(everything[0]["x"]) == 1024


def test_long_tables_are_folded() -> None:
    assert "<summary>Duration of a step, in ms: 100 rows</summary>" in page(results.healthy(100))
    assert "<summary>Duration of a step" not in page(results.healthy())


def test_null_is_a_dash_and_never_zero() -> None:
    base = results.healthy()
    rows = [
        replace(row, step=None, data_wait=None, compute=None, comm_wait=None, comm_transfer=None, other=None)
        for row in base.breakdown
    ]
    seen = Page(page(replace(base, breakdown=rows)))
    assert ["1", "–", "–", "–", "–", "–", "–"] in seen.rows
    assert "None" not in " ".join(seen.texts)


def test_hostile_names_are_neutralised() -> None:
    text = page(results.hostile())
    assert "<script>alert" not in text and "\x1b" not in text and "\x07" not in text and "\x00" not in text
    assert "\u202e" not in text and "&lt;script&gt;alert(1)" in text
    text.encode()  # no lone surrogates
    drawn = json.dumps(pictures(text))
    assert "<script" not in drawn and "&lt;script&gt;alert(1)" in drawn
    assert not any(0xD800 <= ord(char) < 0xE000 or char == "\x1b" for char in str(pictures(text)))


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
