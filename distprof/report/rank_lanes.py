"""What is drawn of one rank: steps, findings, zones, collectives, curves, and the threads of its traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from distprof.report import words
from distprof.report.drawing import Lane, Slice, Writer
from distprof.report.lanes import DisjointLanes, NestingLanes
from distprof.report.window_events import Thread
from distprof.result import Finding, Group

# Below our own lanes stand the operators' threads, the training thread first.
_TRAINING_OPERATORS = 10_000
_OTHER_OPERATORS = 20_000
_DEVICES = {0: "CPU", 1: "GPU"}


class Process:
    """A rank in one attempt, as a process of the timeline: hands out lanes, and puts marks and curves on them. Times
    are ns since the timeline's beginning."""

    def __init__(self, writer: Writer, *, number: int, name: str, order: int, lanes: Iterator[int]) -> None:
        self.writer = writer
        self.number = number
        self._lanes = lanes
        self._named = 0
        writer.process(number, name, order)

    def new_lane(self) -> Lane:
        """A lane that has no name yet."""
        return Lane(self.number, next(self._lanes))

    def name_lane(self, lane: Lane, name: str, after: int = 0) -> None:
        """Name a lane; lanes stand in the order of `after`, then as they were named."""
        self._named += 1
        self.writer.lane(lane, words.name(name), after + self._named)

    def counter(self, name: str, unit: str, values: Sequence[tuple[int, float]]) -> None:
        """A curve."""
        if values:
            self.writer.counter(self.number, name, unit, values)


class _Lanes:
    """Lanes of one kind, made when they are first needed."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self._lanes: list[Lane] = []

    def __getitem__(self, index: int) -> Lane:
        while len(self._lanes) <= index:
            lane = self._process.new_lane()
            self._lanes.append(lane)
            number = len(self._lanes)
            self._process.name_lane(lane, self._name if number == 1 else f"{self._name} ({number})")
        return self._lanes[index]


@dataclass(frozen=True, slots=True)
class Arrows:
    """Arrows from the last arrival at each collective to the transfers of the ranks that waited for it: by the
    collective's row, numbers of those that leave and of those that arrive there."""

    leaving: Mapping[int, list[int]]
    arriving: Mapping[int, list[int]]

    @classmethod
    def between(cls, calls: pl.DataFrame, numbers: Iterator[int]) -> Arrows:
        """Find them.

        Args:
            calls: of all ranks that are drawn, as `draw_collectives` takes them.
            numbers: for the arrows, each once.
        """
        one = ("group", "seq", "kind")
        drawn = calls.filter(pl.col("ended") > pl.col("binds_until") + 1)  # an arrow needs room to arrive
        last = drawn.select(*one, last_rank="rank", last_row="row").unique([*one, "last_rank"], keep="first")
        waited = drawn.filter(pl.col("last_rank") != pl.col("rank")).join(last, on=[*one, "last_rank"])
        leaving: dict[int, list[int]] = defaultdict(list)
        arriving: dict[int, list[int]] = defaultdict(list)
        for row, last_row in waited.sort("row").select("row", "last_row").iter_rows():
            number = int(f"2{next(numbers)}")  # ids of traces begin with 1
            leaving[last_row].append(number)
            arriving[row].append(number)
        return cls(leaving, arriving)


def draw_steps(process: Process, steps: pl.DataFrame, exposed: Mapping[int, int]) -> None:
    """The steps, with their exposed communication in ns where it is known."""
    lanes, placed = _Lanes(process, "steps"), DisjointLanes()
    for row in steps.iter_rows(named=True):
        step, start, end = row["step"], row["start"], row["end"]
        args = {"backwards": row["backwards"], "excluded": row["excluded"]}
        if step in exposed:
            args["exposed communication (ms)"] = exposed[step] / 1e6
        process.writer.slice(Slice(lanes[placed.place(start, end)], f"step {step}", "step", start, end, args))


def draw_findings(process: Process, steps: pl.DataFrame, findings: Sequence[Finding]) -> None:
    """The findings, at the steps in question; those that name none are about all."""
    lanes, placed = _Lanes(process, "findings"), NestingLanes()
    spans: list[tuple[int, int, Finding]] = []
    for finding in findings:
        own = (
            steps.filter(pl.col("step").is_in(finding.steps))
            if finding.steps
            else steps.select(pl.col("start").min(), pl.col("end").max())
        )
        spans += [(start, end, finding) for start, end in own.select("start", "end").drop_nulls().iter_rows()]
    for start, end, finding in sorted(spans, key=lambda span: (span[0], -span[1])):
        args = {
            "severity": finding.severity,
            "observation": words.clean(finding.observation),
            "hypothesis": words.clean(finding.hypothesis),
            "next check": words.clean(finding.next_check),
        }
        name = f"{finding.severity}: {words.name(finding.id)}"
        process.writer.slice(Slice(lanes[placed.place(start, end)], name, "finding", start, end, args))


def draw_zones(process: Process, zones: pl.DataFrame) -> None:
    """The zones, thread by thread."""
    for (thread,), own in sorted(zones.partition_by("thread", as_dict=True).items()):
        lanes = _Lanes(process, "zones: training thread" if thread == 0 else f"zones: thread {thread}")
        placed = NestingLanes()
        ordered = own.sort("start", "end", descending=[False, True])
        for kind, zone, start, end in ordered.select("kind", "name", "start", "end").iter_rows():
            name = words.name(zone or "")
            if kind == "step":
                process.writer.instant(lanes[0], "distprof.step()", kind, start)
                continue
            label = name if kind == "zone" and name else f"{kind} ({name})" if name else kind
            args = {"kind": kind, "name": name}
            process.writer.slice(Slice(lanes[placed.place(start, end)], label, kind, start, end, args))


def draw_collectives(process: Process, calls: pl.DataFrame, groups: list[Group], arrows: Arrows) -> None:
    """A collective is a wait until the last rank that binds this one has arrived, then a transfer until its end. Where
    nobody is known to bind it, it is one slice.

    Args:
        calls: as `waits.match` joined them, with a column `row`.
    """
    lanes, placed = _Lanes(process, "collectives"), DisjointLanes()
    for call in calls.sort("created", "row").iter_rows(named=True):
        created, bound, ended = call["created"], call["binds_until"], call["ended"]
        end = max(time for time in (created, bound, ended) if time is not None)
        lane = lanes[placed.place(created, end)]
        label = words.name(call["kind"]) + (f" bucket {call['bucket']}" if call["bucket"] is not None else "")
        args = {
            "kind": words.name(call["kind"]),
            "group": words.group_name(groups, call["group"]),
            "seq": call["seq"],
            "bytes": call["bytes"],
            "model": words.name(call["model"]) if call["model"] is not None else None,
            "bucket": call["bucket"],
            "step": call["step"],
            "last rank": call["last_rank"],
        }
        whole = Slice(lane, label, "collective", created, end, args)
        if bound is None:
            process.writer.slice(whole)
            continue
        wait = whole._replace(name=f"wait: {label}", end=bound, colour="wait")
        leaving, arriving = (ends.get(call["row"], ()) for ends in (arrows.leaving, arrows.arriving))
        transfer = whole._replace(name=f"transfer: {label}", start=bound, colour="transfer")
        transfer = transfer._replace(leaving=leaving, arriving=arriving)
        drawn = [wait, transfer] if end > bound else [wait]
        # The last rank to arrive does not wait: of slices that start together the longest comes first.
        for one in reversed(drawn) if bound == created else drawn:
            process.writer.slice(one)


def draw_exposed(process: Process, steps: pl.DataFrame, exposed: Mapping[int, int]) -> None:
    """The curve of exposed communication per step."""
    times = steps.select("step", "start").iter_rows()
    values = [(start, exposed[step] / 1e6) for step, start in times if step in exposed]
    process.counter("exposed communication per step", "ms", values)


def draw_memory(process: Process, memory: pl.DataFrame) -> None:
    """Curves of what the allocators held, device by device."""
    devices = memory.partition_by("device_type", "device", as_dict=True, maintain_order=True)
    for (kind, device), own in sorted(devices.items(), key=str):
        where = _DEVICES.get(kind, f"device type {kind}") if isinstance(kind, int) else "memory of an unknown device"
        where += f" {device}" if kind != 0 and device is not None else ""
        for what in ("allocated", "reserved"):
            values = own.sort("time").select("time", what).drop_nulls().rows()
            process.counter(f"{where}: {what}", "bytes", values)


class Threads:
    """The lanes of a rank's operators."""

    def __init__(self, process: Process, training_thread: str) -> None:
        self._process = process
        self._training_thread = training_thread
        self._lanes: dict[tuple[Thread, int], Lane] = {}
        self.names: dict[tuple[str, str], str] = {}

    def lane(self, thread: Thread, further: int) -> int:
        """The number of the lane of a thread, or of one further down beside it."""
        key = (thread, further)
        if key not in self._lanes:
            self._lanes[key] = self._process.new_lane()
        return self._lanes[key].number

    def name_lanes(self) -> None:
        """Name them, when all names are known."""
        for (thread, further), lane in sorted(self._lanes.items(), key=lambda item: _natural(*item[0])):
            known = self.names.get((thread.process, thread.thread))
            name = f"operators: {known.strip()}" if known else f"{thread.process} {thread.thread}".strip() or "events"
            name += " (annotations)" * thread.annotations + f" ({further + 1})" * bool(further)
            training = thread.thread == self._training_thread
            self._process.name_lane(lane, name, _TRAINING_OPERATORS if training else _OTHER_OPERATORS)


def _natural(thread: Thread, further: int) -> tuple[object, ...]:
    """Threads by number, streams before what annotates them."""
    process, number = thread.process, thread.thread
    return (len(process), process, len(number), number, thread.annotations, further)
