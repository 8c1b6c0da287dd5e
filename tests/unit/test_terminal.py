"""What the terminal report says, and that names out of a trace do no harm to it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from distprof.report.terminal import render
from distprof.report.words import capital, clean
from distprof.result import Result
from tests.unit import results


def shown(result: Result, *, width: int = 80, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    render(result, console)
    return file.getvalue()


def words(result: Result) -> str:
    """The report without its line breaks."""
    return " ".join(shown(result).split())


EVERY = [results.healthy, results.straggler, results.undecided, results.missing_rank, results.hostile]


@pytest.mark.parametrize("make", EVERY)
def test_fits_into_80_columns_and_is_plain_when_piped(make: Callable[[], Result]) -> None:
    text = shown(make())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text


def test_the_first_ten_lines_answer_who_why_and_how_much() -> None:
    head = " ".join(" ".join(shown(results.straggler()).splitlines()[:10]).split())
    assert "Rank 2 holds the others up: data loading (DataLoader#0), +48.2 ms in each step of 101.3 ms" in head
    assert "the others waited 46.9 ms for it" in head
    assert "last to arrive at 36 of 38 synchronisations" in head
    assert "would be 45.0 ms shorter" in head


def test_a_healthy_run_names_nobody() -> None:
    text = words(results.healthy())
    assert "No rank holds the others up (below the noise of 3.10 ms per step)." in text
    assert "Findings" not in text
    assert "The input pipeline keeps up." in text


def test_undecided_says_why() -> None:
    text = words(results.undecided())
    assert "Undecided whether a rank holds the others up: the clocks are not aligned." in text
    assert "Not aligned" in text


def test_a_missing_rank_stands_before_everything_else() -> None:
    lines = shown(results.missing_rank()).splitlines()
    assert lines[0] == "Rank 3 is missing: it left no files."
    assert "  Rank 1 is partial: it was killed by signal 9." in lines


def test_many_missing_ranks_leave_room_for_the_verdict() -> None:
    base = results.healthy(200)
    gone = [replace(row, status="missing", reason=f"host {row.rank} " + "x" * 300) for row in base.ranks[1:]]
    lines = shown(replace(base, ranks=[base.ranks[0], *gone])).splitlines()
    assert any("No rank holds the others up" in line for line in lines[:10])


def test_a_finding_tells_what_fixing_it_would_save_where_that_is_known() -> None:
    base = results.straggler()
    known, unknown = (
        words(replace(base, findings=[replace(base.findings[0], saves=saves)])) for saves in (45.04, None)
    )
    check = base.findings[0].next_check[:20]
    assert f"Next (saves up to 45.0 ms per step): {check}" in known
    assert f"Next: {check}" in unknown and "(saves" not in unknown


def test_figures_stand_in_their_tables() -> None:
    lines = [line.split() for line in shown(results.straggler()).splitlines()]
    assert ["2", "101.3", "50.7", "41.2", "0.40", "4.20", "4.00"] in [line[:7] for line in lines]
    assert ["1", "1.0", "MiB", "38", "1.20", "3.45", "–", "–"] in lines  # a bucket
    assert ["2", "50.7", "50%", "120.0", "2", "no"] in lines  # data loading
    text = words(results.straggler())
    assert "median 101.3 ms, p10 99.0 ms, p90 104.0 ms (38 steps); first: 812.3 ms" in text
    assert "A step ends at: the return of SGD#0.step (source: optimizer)." in text
    assert "total 8.71 ms = exposed 5.41 ms + overlapped 3.30 ms" in text
    assert "0.03 ms per step; a step inside the window ×1.12; closing and exporting windows 0.41 s" in text
    assert "kernels, totals: not recorded" in text
    assert ["aten::convolution_b…", "4", "12.3", "15.5", "1.25", "3"] in lines  # an operator
    assert ["3", "host", "329.3", "MiB", "–", "–"] in lines  # memory
    assert "aten::op19" not in text, "report.json has the rest"
    assert "8.00 ms of all-reduces per step, of which 3.30 ms while backward computed" in text
    assert "All-reduces of default_pg: latency 0.21 ms and 1.23 GB/s" in text
    assert "clock.ranks.bound_us (ranks 1–3): no probes" in text
    assert "Next: Raise num_workers." in text


def test_bars_are_to_scale_and_need_no_colour() -> None:
    bars = [line.split()[-1] for line in shown(results.straggler()).splitlines() if line.rstrip().endswith("=.")]
    assert len(bars) == 4
    victim, culprit = bars[0], bars[2]
    assert culprit.count("D") > 10 * victim.count("D") and culprit.count("~") == 0
    assert victim.count("~") == pytest.approx(culprit.count("D"), abs=1)
    assert {len(bar) for bar in bars} == {len(victim)}


def bars(result: Result) -> list[str]:
    """The bars of the breakdown with what stands above them, without their blanks."""
    lines = shown(result).splitlines()
    begin = next(index for index, line in enumerate(lines) if line.strip().startswith("rank  step"))
    edge = lines[begin].index("other") + len("other")
    return [line[edge:].strip() for line in lines[begin : begin + 2 + len(result.breakdown)]]


def test_a_bar_leaves_room_for_what_is_not_known() -> None:
    base = results.healthy(2)
    known = replace(
        base.breakdown[0], step=100.0, data_wait=0.0, compute=25.0, comm_wait=None, comm_transfer=None, other=25.0
    )
    told = replace(known, rank=1, comm_exposed=None)
    text = bars(replace(base, breakdown=[replace(known, comm_exposed=25.0), told]))
    assert text[:2] == ["% comm", "? rest"], "what the marks stand for"
    with_comm, without = text[2:]
    width = len(without)
    assert len(with_comm) == width
    for part, mark in ((with_comm, "#"), (with_comm, "."), (with_comm, "%"), (with_comm, "?"), (without, "#")):
        assert part.count(mark) == pytest.approx(width / 4, abs=1), f"{mark} in {part}"
    assert without.count("?") == pytest.approx(width / 2, abs=1) and "%" not in without


def test_a_bar_whose_parts_are_all_known_has_no_marks_of_its_own() -> None:
    text = bars(results.straggler())
    assert text[:2] == ["", ""]
    assert not set("".join(text)) & set("%?")


def test_bars_of_ranks_are_to_the_scale_of_their_steps() -> None:
    base = results.healthy(2)
    row = replace(base.breakdown[0], step=50.0, comm_wait=None, comm_transfer=None, comm_exposed=None)
    short, long = bars(replace(base, breakdown=[row, replace(row, rank=1, step=100.0)]))[2:]
    assert len(long) == pytest.approx(2 * len(short), abs=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank 2 takes", "Rank 2 takes"),
        ("its batches", "Its batches"),
        ("torch's own", "Torch's own"),
        ("", ""),
        ("critical", "Critical"),
        ("too few steps: 1", "Too few steps: 1"),
        ("step 4, 90 ms", "Step 4, 90 ms"),
        ("undecided.", "Undecided."),
        ("aten::sort takes", "aten::sort takes"),
        ("nchwToNhwcKernel takes", "nchwToNhwcKernel takes"),
        ("my_kernel takes", "my_kernel takes"),
        ("loader.num_workers=2 is faster", "loader.num_workers=2 is faster"),
        ("gc.freeze() helps", "gc.freeze() helps"),
    ],
)
def test_names_keep_their_first_letter(text: str, expected: str) -> None:
    assert capital(text) == expected


def test_null_is_a_dash_and_never_zero() -> None:
    base = results.healthy()
    gone = replace(
        base,
        breakdown=[
            replace(row, step=None, data_wait=None, compute=None, comm_wait=None, comm_transfer=None, other=None)
            for row in base.breakdown
        ],
        overhead=replace(base.overhead, zones_ms_per_step=None, window_ratio=None, export_s=None, trace_bytes=None),
        communication=replace(base.communication, total=None, collectives=None),
    )
    text = words(gone)
    assert "0 – – – – – – " in text  # rank 0's row
    assert "collectives – per step; a step inside the window –; closing and exporting windows –; traces –." in text
    assert "total – = exposed" in text


def test_columns_of_a_device_appear_where_they_were_observed() -> None:
    base = results.healthy()
    assert "h2d" not in words(base)
    text = words(replace(base, breakdown=[replace(row, h2d=0.0, idle=7.77) for row in base.breakdown]))
    assert "h2d" in text and "idle" in text and "7.77" in text and "sync" not in text


def test_a_thousand_ranks_stay_readable_and_the_culprit_is_among_them() -> None:
    many = results.healthy(1000)
    culprit = replace(results.straggler().stragglers.ranks[0], rank=900)
    text = shown(replace(many, stragglers=replace(results.straggler().stragglers, ranks=[culprit])))
    assert len(text.splitlines()) < 200
    assert any(line.split()[:2] == ["900", "53.1"] for line in text.splitlines())
    assert "... 968 more: see report.json" in text


@pytest.mark.parametrize("colour", [False, True])
def test_hostile_names_are_neutralised(colour: bool) -> None:
    text = shown(results.hostile(), width=400, colour=colour)
    assert "\x07" not in text and "\x00" not in text and "\u202e" not in text and "\ud800" not in text
    assert "\x1b[31m" not in text and "\x1b]" not in text
    assert "[red]x[/red]" in text  # shown as it is, not obeyed
    assert r"\x1b[31m" in text and r"\u202e" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain – ünïcode 漢字", "plain – ünïcode 漢字"),
        ("a\nb\tc\r\nd", "a b c  d"),
        ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
        ("\u202eabc\u200b", r"\u202eabc\u200b"),
        ("\ud800", r"\ud800"),
        ("x" * 50, "x" * 9 + "…"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text, 20 if len(text) < 40 else 10) == expected
    assert clean(clean(text)) == clean(text)
