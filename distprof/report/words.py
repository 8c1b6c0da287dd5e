"""Figures and sentences in words, shared by the terminal report and the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from distprof.analyze import listed
from distprof.analyze.hidden import holds_up, later_still
from distprof.analyze.listed import some
from distprof.result import (
    Clock,
    Communication,
    DataLoading,
    Excluded,
    Finding,
    GanttStep,
    Group,
    Lateness,
    NotObserved,
    Overhead,
    RankLateness,
    RankRow,
    Result,
    RunInfo,
    Steps,
    Straggler,
)

NULL = "–"

_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*(?=[,;:.]?(?:\s|$))")
_MOST_LISTED = 8

_CAUSES = {
    "data_loading": "data loading",
    "host_to_device": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "gc": "garbage collection",
    "host": "Python between the zones",
    "device": "work on the device",
    "uneven_work": "more work than its peers have",
    "zone": "zone",
}
_CONFIDENCE = {
    "bound": "the clocks are bound by causality",
    "ends_agree": "assuming that symmetric collectives end together",
    "same_clock": "all ranks read one clock",
}
_LOADING = {
    "keeps_up": "The input pipeline keeps up.",
    "stalls": "The input pipeline stalls the training: data takes more than a tenth of the step.",
    "undecided": "Undecided whether the input pipeline keeps up.",
}


def clean(text: str, limit: int | None = None) -> str:
    """Make a text from a trace harmless to show: no control codes, no direction marks, one line.

    White space becomes a blank, everything else that cannot be printed its escape (`\\x1b`). A text of more
    than `limit` characters is cut, with an ellipsis. Markup is the business of whoever shows the text.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char.isspace() else char.encode("unicode_escape").decode()
        for char in text
    )


def name(text: str) -> str:
    """A name inside a sentence or a table cell: `clean` and of bounded length."""
    return clean(text, 60)


def ms(value: float | None) -> str:
    """Milliseconds as a bare number for a table."""
    if value is None:
        return NULL
    if 0 < abs(value) < 0.01:
        return "<0.01"
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


def duration(value: float | None) -> str:
    """Milliseconds with a unit for a sentence: seconds from ten seconds on."""
    if value is None:
        return NULL
    return f"{value / 1000:.1f} s" if abs(value) >= 10_000 else f"{ms(value)} ms"


def microseconds(value: float | None) -> str:
    """Microseconds as a bare number."""
    return NULL if value is None else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes with a binary unit."""
    if value is None:
        return NULL
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} GiB"


def percent(share: float | None) -> str:
    """A share from 0 to 1 as percent."""
    return NULL if share is None else f"{share:.0%}" if share == 0 or share >= 0.1 else f"{share:.1%}"


def number(value: float | None) -> str:
    """A count, or the mean of counts."""
    return NULL if value is None else f"{value:.6g}"


def yes_no(value: bool | None) -> str:
    """A switch."""
    return NULL if value is None else "yes" if value else "no"


def ranks(numbers: Sequence[int]) -> str:
    """`rank 2` or `ranks 0–3, 7`; of many the first."""
    return listed.ranks(numbers, _MOST_LISTED)


def count(amount: int, noun: str) -> str:
    """An amount of things: `1 step`, `4 steps`."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def group_name(groups: Iterable[Group], group: int | None) -> str:
    """What a process group is called: torch's description of it, else its name."""
    for each in groups:
        if each.id == group:
            return name(each.desc or each.name)
    return NULL


def capital(text: str) -> str:
    """The text with a capital at its beginning, unless it begins with a name, such as `aten::sort`."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def sentence(text: str) -> str:
    """The text with a capital at its beginning and a full stop at its end."""
    return capital(text) + ("" if text.endswith((".", "!", "?")) else ".")


def about(run: RunInfo) -> str:
    """What ran, in one line: `4 ranks · 1 host · gloo · cpu · torch 2.13.0`."""
    words = [
        count(run.world_size, "rank") if run.world_size is not None else "",
        count(run.nnodes, "host") if run.nnodes is not None else "",
        name(run.backend or ""),
        name(run.device or ""),
        f"torch {name(run.torch)}" if run.torch else "",
        f"attempt {run.attempt} of {some(run.attempts)}" if len(run.attempts) > 1 else "",
    ]
    return " · ".join(word for word in words if word)


def cause(straggler: Straggler) -> str:
    """Where a straggler lost its time: `data loading (DataLoader#0)`."""
    words = _CAUSES[straggler.cause]
    return f"{words} ({name(straggler.zone)})" if straggler.zone and straggler.zone != straggler.cause else words


def verdict(result: Result) -> list[str]:
    """Who holds the others up, doing what, how much: one sentence for each culprit, or one that there is none."""
    found = result.stragglers
    if found.verdict == "none":
        below = f" (below the noise of {duration(found.noise)} per step)" if found.noise is not None else ""
        return [f"No rank holds the others up{below}."]
    if found.verdict == "undecided":
        return [sentence(f"Undecided whether a rank holds the others up: {found.why}")]
    return [_verdict(each, found.ranks, result.steps.steady.median) for each in found.ranks]


def _verdict(straggler: Straggler, named: Sequence[Straggler], step: float | None) -> str:
    if straggler.pattern == "persistent":
        when = "in each step"
    elif straggler.pattern == "rotating":
        when = "taking turns with other ranks, per step"
    else:
        when = "in some steps, per step"
    later = later_still(straggler, named)
    if later is not None:
        does = f"is late as well, but comes before rank {later}, which is later still"
    else:
        does = "holds the others up" if holds_up(straggler) else "takes longer than its peers"
    return (
        f"rank {straggler.rank} {does}: {cause(straggler)}, +{duration(straggler.delay)} {when}"
        f"{f' of {duration(step)}' if step is not None else ''}; "
        + (
            f"the others waited {duration(straggler.imposed_wait)} for it"
            if straggler.imposed_wait is not None
            else "how long the others waited for it was not observed"
        )
    )


def evidence(straggler: Straggler) -> str:
    """What a straggler's verdict stands on, in a sentence."""
    words = []
    if straggler.of_collectives:
        words.append(
            f"rank {straggler.rank} was the last to arrive at {straggler.last_arrivals} of "
            f"{count(straggler.of_collectives, 'synchronisation')}"
        )
    if straggler.pattern != "persistent" and straggler.steps:
        words.append(f"late in steps {some(straggler.steps)}")
    if straggler.via:
        words.append(f"the delay reached the others through {ranks(straggler.via)}")
    if straggler.saved_if_fixed is not None:
        words.append(f"without its extra a step would be {duration(straggler.saved_if_fixed)} shorter")
    words.append(_CONFIDENCE[straggler.confidence])
    return sentence("; ".join(words))


def where(finding: Finding) -> str:
    """Ranks and steps that a finding is about: ` [rank 2; steps 4–9]`, or nothing."""
    places = [ranks(finding.ranks)] if finding.ranks else []
    if finding.steps:
        places.append(f"steps {some(finding.steps)}")
    return f" [{'; '.join(places)}]" if places else ""


def next_check(finding: Finding) -> str:
    """What to do about a finding, and what fixing it would save where that is known."""
    saves = f" (saves up to {duration(finding.saves)} per step)" if finding.saves else ""
    return sentence(f"next{saves}: {finding.next_check}")


def shown_in(finding: Finding, gantt: Sequence[GanttStep]) -> GanttStep | None:
    """The step across ranks that shows a finding: one that was chosen for its ranks, else one that it names."""
    return next(
        (step for step in gantt if set(step.about).intersection(finding.ranks)),
        next((step for step in gantt if step.step in finding.steps), None),
    )


def gantt_step(step: GanttStep) -> str:
    """What a step across ranks shows."""
    reasons = {
        "finding": f"{ranks(step.about)} as in the findings" if step.about else "as in the findings",
        "typical": "it takes as long as most",
        "late": "a rank is later than in most steps",
    }
    return f"step {step.step}, {duration(step.duration)}: {reasons[step.why]}"


def latest(late: Lateness) -> list[RankLateness]:
    """The ranks, the one that is latest in all first."""
    return sorted(late.ranks, key=lambda row: -sum(row.late))


def lateness(late: Lateness) -> str:
    """What the picture of lateness shows, in a sentence."""
    few = len(late.first_steps) == late.steps_used
    steps = count(late.steps_used, "steady step") + ("" if few else ", neighbours together: the latest of each")
    return f"How much longer than is usual each rank's own work took, waits for others taken out, in ms ({steps})."


def incomplete(rows: Sequence[RankRow]) -> list[tuple[str, str]]:
    """Ranks that are not complete or ended in a way worth telling, alike ones together: (status, sentence)."""
    alike: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.status != "complete" or row.reason is not None:
            alike.setdefault((row.status, row.reason or "no reason is known"), []).append(row.rank)
    order = {"missing": 0, "partial": 1, "complete": 2}
    return [
        (
            status,
            sentence(
                ranks(numbers)
                + ("" if status == "complete" else f" {'is' if len(numbers) == 1 else 'are'} {status}")
                + f": {clean(reason, 400)}"
            ),
        )
        for (status, reason), numbers in sorted(alike.items(), key=lambda item: (order[item[0][0]], item[1]))
    ]


def steady(steps: Steps) -> str:
    """How long a step takes, in a sentence."""
    spread = steps.steady
    words = [
        f"steady: median {duration(spread.median)}, p10 {duration(spread.p10)}, p90 {duration(spread.p90)} "
        f"({count(spread.count, 'step')})",
        f"first: {duration(steps.first)}",
    ]
    if steps.micro_steps is not None and steps.micro_steps != 1:
        words.append(f"{number(steps.micro_steps)} backward passes per step")
    if steps.samples_per_s is not None:
        words.append(f"{number(steps.samples_per_s)} samples/s over all ranks")
    return sentence("; ".join(words))


def boundary(steps: Steps) -> str:
    """What ends a step, in a sentence."""
    if steps.source == "none":
        return sentence(f"no step boundary: {clean(steps.boundary)}")
    return f"A step ends at: {clean(steps.boundary)} (source: {steps.source})."


def excluded(out: Excluded) -> str | None:
    """What was kept out of the steady figures, in a sentence; None if nothing was."""
    parts = {
        "first step": out.first,
        "compilation": out.compile,
        "window and its export": out.export,
        "outside the steps": out.out_of_step,
    }
    words = [f"{what} {duration(value)}" for what, value in parts.items() if value]
    return f"Kept out: {', '.join(words)}." if words else None


def communication(part: Communication) -> str:
    """Communication of a step, in a sentence."""
    return (
        f"Per step: total {duration(part.total)} = exposed {duration(part.exposed)} + overlapped "
        f"{duration(part.overlapped)}; of the total, wait {duration(part.wait)} and transfer {duration(part.transfer)}."
    )


def gradients(part: Communication) -> str | None:
    """How far gradients' all-reduces run beside backward, in a sentence; None if that is not known."""
    overlap = part.gradients
    if overlap is None:
        return None
    saved = overlap.saved_by_perfect_overlap
    return (
        f"Gradients: {duration(overlap.total)} of all-reduces per step, of which {duration(overlap.overlapped)} while "
        f"backward computed{f'; perfect overlap would save {duration(saved)} at most' if saved is not None else ''}."
    )


def links(part: Communication, groups: Iterable[Group]) -> list[str]:
    """Latency and bandwidth of each group whose all-reduces tell them, in a sentence each."""
    known = list(groups)
    return [
        f"All-reduces of {group_name(known, model.group)}: latency {duration(model.latency)} and "
        f"{model.algbw_gbps:.3g} GB/s, by {count(model.calls, 'call')} of {size(model.smallest_bytes)} to "
        f"{size(model.largest_bytes)}."
        for model in part.transfer_models
    ]


def matching(part: Communication) -> str:
    """How many collectives were matched across ranks, in a sentence."""
    words = [f"{number(part.collectives)} collectives in the whole run, {number(part.matched)} matched on all members"]
    if part.unmatched:
        words.append(f"{part.unmatched} not matched")
    if part.unclassified:
        words.append(f"{part.unclassified} of a kind that is not known")
    return "; ".join(words) + "."


def loading(part: DataLoading) -> str:
    """The verdict about the input pipeline."""
    return _LOADING[part.verdict]


def clocks(clock: Clock) -> str:
    """How the clocks were aligned, and how well, in a sentence."""
    verdicts = {"aligned": "aligned: ", "same_host": "", "unaligned": "not aligned: "}
    said = [f"{verdicts[clock.verdict]}{clean(clock.method)}"]
    rows = clock.devices or clock.ranks
    bounds, errors = ([row.bound_us for row in rows], [row.error_us for row in rows])
    for figures, stands_on in ((bounds, "by causality"), (errors, "if symmetric collectives end together")):
        known = [figure for figure in figures if figure is not None]
        if known and clock.verdict == "aligned":
            said.append(f"at most {microseconds(max(known))} us off {stands_on}")
    if clock.ends_apart_us is not None and clock.verdict == "aligned":
        apart = microseconds(clock.ends_apart_us)
        said.append(f"of {clock.ends} symmetric collectives nine of ten then end within {apart} us")
    return sentence("; ".join(said))


def overhead(cost: Overhead) -> str:
    """What distprof itself cost, in a sentence."""
    return (
        f"zones and collectives {duration(cost.zones_ms_per_step)} per step; "
        f"a step inside the window {NULL if cost.window_ratio is None else f'×{cost.window_ratio:.2f}'}; "
        f"closing and exporting windows {NULL if cost.export_s is None else f'{cost.export_s:.2f} s'}; "
        f"traces {size(cost.trace_bytes)}."
    )


def not_observed(rows: Sequence[NotObserved]) -> list[str]:
    """What could not be had, alike reasons together: `what, what (ranks 1, 2): reason`."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        where = "" if row.ranks is None else f" ({ranks(row.ranks)})"
        alike.setdefault((where, row.reason), []).append(row.what)
    return [f"{', '.join(name(what) for what in things)}{where}: {reason}" for (where, reason), things in alike.items()]
