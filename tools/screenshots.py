"""Photograph the report page for `docs/`: on a desktop, light and dark, and on a phone. It takes Chromium.

The run is made by the tests' generator, so that the pictures are the same each time: of eight ranks one loads slowly,
and another one is stopped now and then by Python's garbage collector.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

from distprof.pipeline import build
from distprof.report.page import write_page
from distprof.trace.load import load
from tests.worlds import Delay, World, write

ROOT = Path(__file__).parents[1]
WORLD = World(
    ranks=8,
    steps=40,
    jitter=0.06,
    windows=((8, 14),),
    delays=[
        Delay(rank=2, kind="data_loading", ms=42.0),
        Delay(rank=5, kind="gc", ms=65.0, steps=(12, 17, 25, 31, 36)),
    ],
)
# name: width and height in pixels, colour scheme, and whether it is held in a hand
SIZES: dict[str, tuple[int, int, Literal["light", "dark"], bool]] = {
    "report-desktop": (1400, 900, "light", False),
    "report-dark": (1400, 900, "dark", False),
    "report-phone": (420, 900, "light", True),
}


def chromium_path() -> str | None:
    """The installed Chromium; None: there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A browser without a window; it has no sandbox, since that needs more than a container allows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


def photograph(browser: Browser, page: Path, folder: Path) -> None:
    """Leave a picture of the page's beginning, up to the step across ranks, in `folder` for each of `SIZES`."""
    for name, (width, height, scheme, hand) in SIZES.items():
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=hand, is_mobile=hand
        )
        tab = context.new_page()
        tab.goto(page.as_uri())
        end = tab.locator("#steps").evaluate("heading => heading.getBoundingClientRect().top")
        tab.screenshot(
            path=folder / f"{name}.png", full_page=True, clip={"x": 0, "y": 0, "width": width, "height": end}
        )
        context.close()


def main() -> int:
    """Make a run, report, photograph."""
    path = chromium_path()
    if path is None:
        print("no Chromium is installed: apt-get install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "slow-loader"
        write(WORLD, run)
        page = Path(folder) / "report.html"
        write_page(build(load(run)), page)
        with chromium(path) as browser:
            photograph(browser, page, ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
