"""The page in a browser: it draws what the report says, reaches for nothing, and obeys the keyboard."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from distprof.report.page import write_page
from distprof.result import Result
from tests.conftest import skip_but_in_ci
from tests.unit import results
from tools.screenshots import chromium, chromium_path

HEADING = "#gantt"


@dataclass
class Opened:
    """A page in a browser, and what happened in it."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        skip_but_in_ci("no Chromium is installed")
    with chromium(path) as opened:
        yield opened


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens a result's page; `options` are the context's."""
    contexts = []

    def open_page(result: Result, **options: Any) -> Opened:
        file = tmp_path / "report.html"
        write_page(result, file)
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        contexts.append(context)
        one = Opened(context.new_page())
        one.page.on("console", lambda message: one.troubles.append(f"{message.type}: {message.text}"))
        one.page.on("pageerror", lambda error: one.troubles.append(str(error)))
        one.page.on("dialog", lambda dialog: (one.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.goto(file.as_uri())
        return one

    yield open_page
    for context in contexts:
        context.close()


def drawn(page: Page, picture: str) -> Any:
    """What plotly has drawn in a place of the page, by its own account."""
    return page.evaluate(
        "id => document.getElementById(id)._fullData.map(trace => "
        "({name: trace.name, type: trace.type, x: Array.from(trace.x), base: trace.base && Array.from(trace.base)}))",
        f"{picture}-picture",
    )


def wait_until(page: Page, expression: str) -> None:
    """Wait for what the page does by and by. Playwright's own way evaluates texts inside the page, whose policy forbids
    that."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"it never came to be that {expression}")


def chosen_step(page: Page) -> str:
    """The step that the view across ranks shows."""
    return str(page.locator("#gantt-step").input_value())


def test_pictures_are_drawn_without_a_complaint_or_a_request(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler())
    assert one.troubles == []
    assert len(one.requests) == 1 and one.requests[0].startswith("file://")
    for picture in ("lateness", "breakdown", "buckets", "kinds", "gantt"):
        assert one.page.locator(f"#{picture}-picture svg.main-svg").first.is_visible()
    bars = {trace["name"]: trace["x"] for trace in drawn(one.page, "breakdown")}
    assert bars["data (waiting for data)"] == [2.5, 2.5, 50.7, 2.5]
    assert one.page.locator("#breakdown-picture .bars .point").count() == 4 * len(bars)
    names = [label.strip() for label in one.page.locator("#gantt-picture .yaxislayer-above text").all_text_contents()]
    assert names == ["rank 0", "rank 1", "▸ rank 2", "rank 3"]


def test_the_page_can_not_reach_the_network(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        image = (
            "new Promise(done => { const image = new Image(); image.onload = () => done('sent'); "
            f"image.onerror = () => done('blocked'); image.src = '{address}/x.png'; }})"
        )
        assert one.page.evaluate(f"fetch('{address}').then(() => 'sent', () => 'blocked')") == "blocked"
        assert one.page.evaluate(image) == "blocked"
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    added = "script => { script.textContent = 'window.ran = 1'; document.body.append(script); return window.ran ?? 0; }"
    assert one.page.evaluate(f"({added})(document.createElement('script'))") == 0
    assert one.troubles and all("Content Security Policy" in trouble for trouble in one.troubles)


def test_a_click_on_a_finding_shows_its_step(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler())
    one.page.select_option("#gantt-step", "20")
    assert "waiting for other ranks" in {trace["name"] for trace in drawn(one.page, "gantt")}
    assert one.page.locator("#gantt-now").text_content() == "step 20, 96.1 ms: it takes as long as most"
    one.page.click("article a[data-step='9']")
    assert chosen_step(one.page) == "9"
    loading = next(trace for trace in drawn(one.page, "gantt") if trace["name"] == "data loading")
    assert loading["x"] == [2.5, 2.5, 50.7, 2.5]
    assert one.page.locator(HEADING).evaluate("heading => heading.getBoundingClientRect().top") < 900
    assert one.troubles == []


def test_the_keyboard_alone_reaches_a_finding_and_the_steps(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler())
    one.page.select_option("#gantt-step", "20")
    one.page.locator("body").press("Home")
    for _ in range(40):
        one.page.keyboard.press("Tab")
        if one.page.evaluate("document.activeElement.dataset.step") == "9":
            break
    outline = one.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    one.page.keyboard.press("Enter")
    assert chosen_step(one.page) == "9"
    assert one.page.evaluate("document.activeElement.id") == "gantt"
    one.page.keyboard.press("Tab")
    assert one.page.evaluate("document.activeElement.id") == "gantt-step"
    one.page.keyboard.press("ArrowDown")
    assert chosen_step(one.page) == "20"


def test_names_that_try_to_do_harm_are_only_shown(opened: Callable[..., Opened]) -> None:
    one = opened(results.hostile())
    assert one.troubles == []
    texts = one.page.evaluate("Array.from(document.querySelectorAll('#gantt-picture, main'), node => node.textContent)")
    assert any("<script>alert(1)</script>" in text for text in texts)
    assert one.page.evaluate("document.scripts.length") == 3
    bar = one.page.locator("#gantt-picture .bars .point path").first
    bar.hover(force=True)
    one.page.wait_for_selector("#gantt-picture .hovertext")
    assert "<script>alert(1)" in (one.page.locator("#gantt-picture .hovertext").first.text_content() or "")
    assert one.troubles == []


def test_colours_follow_the_reader(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler(), color_scheme="light")
    ink = "document.getElementById('gantt-picture')._fullLayout.font.color"
    look = f"[getComputedStyle(document.body).backgroundColor, {ink}]"
    assert one.page.evaluate(look) == ["rgb(255, 255, 255)", "#1b1f24"]
    one.page.emulate_media(color_scheme="dark")
    wait_until(one.page, f"{ink} === '#e6edf3'")
    assert one.page.evaluate(look) == ["rgb(13, 17, 23)", "#e6edf3"]
    assert one.troubles == []


def test_prints_light_and_narrow(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler(), color_scheme="dark")
    assert one.page.pdf()[:5] == b"%PDF-"
    one.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = "document.getElementById('breakdown-picture')._fullLayout"
    assert one.page.evaluate(f"[{printed}.font.color, {printed}.width]") == ["#1b1f24", 680]
    one.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert one.page.evaluate(f"{printed}.font.color") == "#e6edf3"
    assert one.page.evaluate(f"{printed}.width") > 680


@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_is_wider_than_the_screen(opened: Callable[..., Opened], width: int) -> None:
    one = opened(results.straggler(), viewport={"width": width, "height": 900}, is_mobile=width < 500, has_touch=True)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.page.locator(".modebar-btn").count() == 0 or width > 500


def test_texts_and_tables_need_no_script(opened: Callable[..., Opened]) -> None:
    one = opened(results.straggler(), java_script_enabled=False)
    assert one.page.get_by_text("drawn by JavaScript").is_visible()
    assert one.page.get_by_role("heading", name="Findings").is_visible()
    assert not one.page.locator("#gantt-step").is_visible()
    one.page.click("article a[data-step='9']")
    assert one.page.get_by_role("row", name="2 thread data_loading DataLoader#0 0.00 50.70 50.7").is_visible()


def test_a_reader_that_hears_finds_headings_tables_and_names(opened: Callable[..., Opened]) -> None:
    page = opened(results.straggler()).page
    headings = page.get_by_role("heading", level=2).all_text_contents()
    assert headings[:5] == ["Verdict", "Findings", "Who was late when", "Where a step goes", "A step across ranks"]
    assert page.get_by_role("table", name="Parts of a step").is_visible()
    assert page.get_by_label("Show", exact=True).is_visible()
    for name in ("A step, cut into parts", "All ranks, step by step", "step 9, 96.1 ms: rank 2 as in the findings"):
        assert page.get_by_role("img", name=name).count() == 1


def test_1024_ranks_are_drawn(opened: Callable[..., Opened]) -> None:
    one = opened(results.many(1024))
    assert one.troubles == []
    assert [trace["type"] for trace in drawn(one.page, "latest")] == ["heatmap"]
    assert one.page.locator("#gantt-picture .yaxislayer-above text").count() == 16
