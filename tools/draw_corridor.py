"""Draw docs/clock.svg: probes of one clock, the corridor that they leave, and the line that is believed.

python tools/draw_corridor.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from distprof.clock.hull import corridor

TARGET = Path(__file__).parents[1] / "docs" / "clock.svg"
WIDTH, HEIGHT, MARGIN = 760, 380, 48
SECONDS, MOST_US = 60.0, 420.0
OFFSET_US, DRIFT_PPM, LEAST_DELAY_US = -80.0, 2.5, 25.0

Floats = npt.NDArray[np.float64]


def place(seconds: Floats | float, us: Floats | float) -> list[str]:
    """Points of the picture, as SVG writes them."""
    x = MARGIN + np.atleast_1d(seconds) / SECONDS * (WIDTH - 2 * MARGIN)
    y = HEIGHT / 2 - np.atleast_1d(us) / MOST_US * (HEIGHT / 2 - 20)
    return [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)]


def line(points: list[str], colour: str, *, dashed: bool = False, width: float = 1.5) -> str:
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def dots(points: list[str], colour: str) -> list[str]:
    centres = (point.split(",") for point in points)
    return [f'<circle cx="{x}" cy="{y}" r="2.2" fill="{colour}"/>' for x, y in centres]


def text(x: float, y: float, words: str, *, colour: str = "#444", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    """Draw it."""
    draw = np.random.default_rng(4)
    sent = np.sort(draw.uniform(4, SECONDS - 4, 90))
    truth = OFFSET_US + DRIFT_PPM * sent
    above, below = (LEAST_DELAY_US + draw.exponential(110, len(sent)) for _ in range(2))
    found = corridor(sent * 1e9, (truth + above) * 1e3, sent * 1e9, (truth - below) * 1e3)
    assert found is not None
    seconds = np.linspace(0, SECONDS, 241)
    most, least = found.most(seconds * 1e9) / 1e3, found.least(seconds * 1e9) / 1e3
    narrow = found.narrowest(SECONDS * 1e9)
    height, slope = found.middle(narrow)
    edges = np.array([0.0, SECONDS])
    middle = (height + slope * (edges * 1e9 - narrow)) / 1e3
    walls = place(seconds, most) + place(seconds[::-1], least[::-1])
    inside = (truth + above < MOST_US, truth - below > -MOST_US)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<polygon points="{" ".join(walls)}" fill="#cfe3d4"/>',
        line(place(edges, np.zeros(2)), "#bbb", width=1),
        *dots(place(sent[inside[0]], (truth + above)[inside[0]]), "#2166ac"),
        *dots(place(sent[inside[1]], (truth - below)[inside[1]]), "#b2622b"),
        line(place(seconds, most), "#2166ac"),
        line(place(seconds, least), "#b2622b"),
        line(place(edges, OFFSET_US + DRIFT_PPM * edges), "#111", dashed=True),
        line(place(edges, middle), "#1a7f37", width=2),
        text(MARGIN, 16, "how far the clock is ahead of the reference, us"),
        text(WIDTH - MARGIN, HEIGHT - 6, "time, 0 to 60 s", anchor="end"),
        text(MARGIN + 8, 60, "replies: received here, less sent there: it is ahead by no more", colour="#2166ac"),
        text(
            MARGIN + 8,
            HEIGHT - 40,
            "requests: sent here, less received there: it is ahead by no less",
            colour="#b2622b",
        ),
        text(WIDTH - MARGIN, HEIGHT - 60, "dashed: the truth", anchor="end"),
        text(WIDTH - MARGIN, HEIGHT - 76, "green: what is subtracted", colour="#1a7f37", anchor="end"),
        "</svg>",
    ]
    TARGET.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
