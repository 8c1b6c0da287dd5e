"""Reading traces that anybody recorded into the tables of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from distprof.result import Group
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.trace.annotations import nested_marks, training_thread, zones_of
from distprof.trace.chunks import NoTraceError
from distprof.trace.collectives import reductions
from distprof.trace.columns import KINETO_EVENTS
from distprof.trace.groups import name_groups
from distprof.trace.header import Header
from distprof.trace.intervals import innermost
from distprof.trace.jobs import Owned, select, windows_of
from distprof.trace.kernels import read_kernels
from distprof.trace.kinds import UNCLASSIFIED
from distprof.trace.kineto import Trace, placed, read_trace
from distprof.trace.lanes import NOT_NAMED, with_groups_of_lanes
from distprof.trace.loaded import Run
from distprof.trace.matching import OCCURRENCES, with_sequence_numbers
from distprof.trace.notes import Note
from distprof.trace.numbering import with_common_numbers
from distprof.trace.shapes import read_shapes
from distprof.trace.sources import find_files
from distprof.trace.spans import read_spans
from distprof.trace.steps import StepSource, build_steps
from distprof.trace.tables import COLLECTIVES, EVENTS, KERNELS, MEMORY, SHAPES, STEPS, WINDOWS, Tables, empty
from distprof.trace.whose import whose
from distprof.trace.workers import Advance, Progress, read_each

Patterns = Sequence[tuple[str, str | None]]

# torch.profiler.tensorboard_trace_handler names its files HOST_PROCESS.TIME.pt.trace.json.
_HANDLERS_NAME = re.compile(r"^(.+)_(\d+)\.\d{10,19}\.pt\.trace\.json(?:\.gz)?$")
_NO_HOST = ("localhost", "localhost.localdomain", "removed", "unknown")


def load_traces(
    paths: Sequence[Path],
    *,
    ranks: Mapping[Path, int],
    patterns: Patterns,
    workers: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Read traces of one job. Files that are none are noted; a trace whose rank nobody tells is not analysed.

    Args:
        paths: files, folders and globs.
        ranks: file -> rank, for traces that do not tell it themselves.
        patterns: see `kinds.kinds_by_name`.
        workers, progress: see `workers.read_each`.

    Raises:
        RunDirectoryError: no trace can be analysed, or they are of different jobs.
    """
    files, notes = find_files(paths)
    for pattern, _ in patterns:
        re.compile(pattern)
    outcomes = read_each(
        partial(_read, patterns=patterns), files, list(map(_size, files)), workers=workers, progress=progress
    )
    given = {path.resolve(): rank for path, rank in ranks.items()}
    owned, work = _owned(zip(files, outcomes, strict=True), given, notes)
    if not files and not notes:
        these = " and ".join(map(str, paths[:3]))
        raise RunDirectoryError(
            f"{these} has no run.json and no traces. Give the folder that `distprof launch` printed, or traces."
        )
    if not owned:
        reasons = "; ".join(f"{note.file.name}: {note.text}" for note in notes[:5])
        raise RunDirectoryError(f"no trace can be analysed ({reasons})")
    chosen, more = select(owned)
    notes += more
    windows = windows_of(chosen)
    traces = {rank: {index: one.trace for index, one in own.items()} for rank, own in windows.items()}
    for rank, own in traces.items():
        for trace in own.values():
            notes += [Note(rank, trace.path, place, text) for place, text in trace.problems]
            if trace.path not in work:
                work[trace.path] = _work_of(trace, patterns)
    tables, more = _tables(traces, work)
    used = {rank: {index: trace.path for index, trace in own.items()} for rank, own in traces.items()}
    bases = {rank: {index: trace.header.base or 0 for index, trace in own.items()} for rank, own in traces.items()}
    folder = Path(os.path.commonpath([path.absolute().parent for own in used.values() for path in own.values()]))
    return Run(
        directory=RunDirectory(folder),
        manifest=None,
        attempt=0,
        attempts=[0],
        tables=tables,
        notes=[*notes, *more],
        trace_files=used,
        bases=bases,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What a trace tells of its device and of its collectives: KERNELS without rank and window, and CARRIED_OUT."""

    kernels: pl.DataFrame
    collectives: pl.DataFrame


def _work_of(trace: Trace, patterns: Patterns) -> _Work:
    kernels, collectives = read_kernels(trace.events, trace.calls, patterns)
    return _Work(kernels, collectives if len(kernels) else read_spans(trace.events, trace.calls))


def _read(path: Path, advance: Advance, *, patterns: Patterns) -> tuple[Trace, _Work]:
    trace = read_trace(path, advance)
    return trace, _work_of(trace, patterns)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _owned(
    files: Iterable[tuple[Path, Callable[[], tuple[Trace, _Work]]]], given: Mapping[Path, int], notes: list[Note]
) -> tuple[list[Owned], dict[Path, _Work]]:
    """Read the files, and find out whose they are; the work of those whose times are as they were read."""
    traces: list[tuple[Trace, int]] = []
    work: dict[Path, _Work] = {}
    for path, read in files:
        try:
            trace, work[path] = read()
        except OSError as error:
            notes.append(Note(None, path, None, f"it cannot be read ({error.strerror})"))
            continue
        except NoTraceError as error:
            notes.append(Note(None, path, None, f"it was not read: {error}"))
            continue
        rank, text = whose(path, trace.header.rank, given.get(path.resolve()))
        if text is not None:
            notes.append(Note(rank, path, None, text))
        if rank is None:
            notes += [Note(None, path, place, text) for place, text in trace.header.problems]
            continue
        if not len(trace.events):
            notes.append(Note(rank, path, None, "no event in it can be used"))
            continue
        traces.append((trace, rank))
    bases = {trace.header.base for trace, _ in traces if trace.header.base is not None}
    owned = [_owned_one(trace, rank, bases, notes) for trace, rank in traces]
    for one, (as_read, _) in zip(owned, traces, strict=True):
        if one.trace is not as_read:
            del work[as_read.path]
    return owned, work


def _owned_one(trace: Trace, rank: int, bases: set[int], notes: list[Note]) -> Owned:
    if trace.lost_its_base:
        text = "it does not say what its times count from"
        if len(bases) == 1:
            trace = trace.later_by(next(iter(bases)))
            text += ": that of the other traces was taken"
        notes.append(Note(rank, trace.path, "$.baseTimeNanoseconds", text))
    start, end = trace.events.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return Owned(trace, rank, start, end)


def _tables(traces: Mapping[int, Mapping[int, Trace]], work: Mapping[Path, _Work]) -> tuple[Tables, list[Note]]:
    parts = [(rank, window, trace) for rank, own in traces.items() for window, trace in own.items()]
    headers = {rank: [trace.header for trace in own.values()] for rank, own in traces.items()}
    told = [header.world_size for own in headers.values() for header in own if header.world_size is not None]
    world_size = max([*told, *(rank + 1 for rank in traces)])
    events = pl.concat(placed(trace.events, rank, window, KINETO_EVENTS) for rank, window, trace in parts)
    of_rank = {rank: pl.concat(trace.events for trace in own.values()) for rank, own in traces.items()}
    threads = {rank: training_thread(own) for rank, own in of_rank.items()}
    zones = pl.concat(zones_of(own, rank, threads[rank]) for rank, own in of_rank.items())
    device = pl.concat(placed(work[trace.path].kernels, rank, window, KERNELS) for rank, window, trace in parts)
    carried_out = pl.concat(
        work[trace.path].collectives.with_columns(rank=pl.lit(rank, pl.Int32), window=pl.lit(window, pl.Int32))
        for rank, window, trace in parts
    )
    groups, calls = name_groups(
        carried_out,
        {rank: [group for header in own for group in header.groups] for rank, own in headers.items()},
        world_size,
    )
    source, steps = _steps(zones, reductions(calls), events)
    absent = sorted(set(range(world_size)) - set(traces))
    # Numbers that only count a window's steps say nothing about which steps of two ranks are one.
    known = steps if source == "annotation" else empty(STEPS)
    groups, occurrences, alone = with_groups_of_lanes(_in_steps(calls, known), groups, absent)
    matched, apart = with_sequence_numbers(occurrences), set[int]()
    if source != "annotation":
        steps, apart = with_common_numbers(steps, matched, events)
        matched = _in_steps(matched, steps)
    windows = events.group_by("rank", "window").agg(pl.col("start").min(), pl.col("end").max()).sort("rank", "window")
    tables = Tables(
        ranks=sorted(traces),
        world_size=world_size,
        step_source=source,
        groups=groups,
        zones=zones,
        steps=steps,
        collectives=_collectives(matched, groups, world_size, complete=not absent),
        events=events.select(list(EVENTS)),
        windows=windows.select(pl.col(name).cast(dtype) for name, dtype in WINDOWS.items()),
        training_thread={rank: thread for rank, thread in threads.items() if thread is not None},
        facts=_facts(traces, headers, world_size, device),
        kernels=device,
        memory=pl.concat(
            [empty(MEMORY), *(placed(trace.memory, rank, window, MEMORY) for rank, window, trace in parts)]
        ),
        shapes=pl.concat(
            [empty(SHAPES), *(placed(read_shapes(trace.events), rank, window, SHAPES) for rank, window, trace in parts)]
        ),
        arrival="started" if len(device) else "created",
    )
    notes = [*_on_steps(tables, parts, apart), *_on_communication(tables, parts, alone)]
    if not told and world_size > 1:
        text = f"no trace tells the world size: {world_size} is one more than the largest rank"
        notes.append(Note(None, parts[0][2].path.parent, None, text))
    return tables, notes


def _steps(zones: pl.DataFrame, reduced: pl.DataFrame, events: pl.DataFrame) -> tuple[StepSource, pl.DataFrame]:
    # Where a window begins and ends disturbs no marked step: the profiler itself set the marks.
    source, steps = build_steps(zones, reduced, events, empty(WINDOWS), marks_first=True)
    if source != "annotation":
        # The first of a window is a stub, from wherever the window opened.
        steps = steps.filter(pl.col("step") > 0).with_columns(excluded=pl.lit(None, pl.String))
    elif len(steps) and steps["excluded"].null_count() == 0:
        steps = steps.with_columns(excluded=pl.lit(None, pl.String))  # the first step is all there is
    return source, steps.with_columns(backwards=pl.lit(None, pl.Int32))


def _in_steps(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """OCCURRENCES from calls, each in the step that it was created in."""
    parts = [empty(OCCURRENCES)]
    for (rank,), own in calls.partition_by("rank", as_dict=True).items():
        of_rank = steps.filter(pl.col("rank") == rank)
        step = innermost(of_rank["start"].to_numpy(), of_rank["end"].to_numpy(), own["created"].to_numpy())
        numbers = np.append(of_rank["step"].to_numpy(), -1)[step]
        table = own.with_columns(step=pl.Series(numbers, dtype=pl.Int64).replace(-1, None))
        parts.append(table.select(pl.col(name).cast(dtype) for name, dtype in OCCURRENCES.items()))
    return pl.concat(parts)


def _collectives(matched: pl.DataFrame, groups: Sequence[Group], world_size: int, *, complete: bool) -> pl.DataFrame:
    """COLLECTIVES; a root is known where all members of its group are, which needs traces of all ranks (`complete`)."""
    nothing = {"zone": pl.String, "model": pl.String, "bucket": pl.Int32}
    table = matched.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in nothing.items())
    members = {
        group.id: group.members
        for group in groups
        if len(group.members) == world_size or (complete and not group.name.startswith(NOT_NAMED))
    }
    told = matched.select("group", "root").drop_nulls().unique().sort("group", "root").rows()
    known = [
        (group, place, members[group][place])
        for group, place in told
        if group in members and 0 <= place < len(members[group])
    ]
    schema = {"group": pl.Int32, "root": pl.Int64, "rank_of_root": pl.Int32}
    places = pl.DataFrame(known, schema=schema, orient="row")
    table = table.join(places, on=["group", "root"], how="left").with_columns(root="rank_of_root")
    typed = table.select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items())
    return typed.sort("rank", "created", "group", "seq")


def _facts(
    traces: Mapping[int, Mapping[int, Trace]],
    headers: Mapping[int, Sequence[Header]],
    world_size: int,
    kernels: pl.DataFrame,
) -> dict[int, dict[str, Any]]:
    """What the traces tell of what `capture` writes down of its ranks."""
    hosts = {rank: _host(own) for rank, own in traces.items()}
    one_clock = _one_clock(traces, hosts)
    facts: dict[int, dict[str, Any]] = {}
    for rank, own in traces.items():
        first = next(iter(own.values()))
        cut = any(trace.cut for trace in own.values())
        facts[rank] = {
            "rank": rank,
            "world_size": world_size,
            "host": hosts[rank],
            "boot_id": "not recorded; taken for one by the host's name" if one_clock else None,
            "pid": next(iter(first.processes), None),
            "backend": next((header.backend for header in headers[rank] if header.backend), None),
            "device": _device(first, kernels.filter(pl.col("rank") == rank)),
            "status": "running" if cut else "finished",
            "requested": [],
            "windows": [],
        }
    return facts


def _host(own: Mapping[int, Trace]) -> str | None:
    """The host, by the header, else as torch's handler writes it into the name of the file."""
    for trace in own.values():
        named = _HANDLERS_NAME.match(trace.path.name)
        by_name = named[1] if named and int(named[2]) in trace.processes else None
        host = trace.header.host or by_name
        if host and host.lower() not in _NO_HOST:
            return host
    return None


def _one_clock(traces: Mapping[int, Mapping[int, Trace]], hosts: Mapping[int, str | None]) -> bool:
    """Whether all ranks read one clock: they name the same host, and all their times count from the epoch."""
    named = set(hosts.values())
    absolute = not any(trace.lost_its_base for own in traces.values() for trace in own.values())
    return len(named) == 1 and None not in named and absolute


def _device(trace: Trace, kernels: pl.DataFrame) -> str:
    if not len(kernels):
        return "cpu"
    runtimes = trace.events.filter(pl.col("cat").str.ends_with("_runtime"))["cat"].unique().to_list()
    return next((name.removesuffix("_runtime") for name in sorted(runtimes)), "cuda")


def _on_steps(tables: Tables, parts: Sequence[tuple[int, int, Trace]], apart: Collection[int]) -> list[Note]:
    """Marks inside others, steps that not all ranks recorded, and ranks whose steps cannot be compared (`apart`)."""
    notes = []
    for rank, _, trace in parts:
        nested = nested_marks(trace.events)
        if nested > 0:
            text = f"{nested} marks of steps lie inside others; the outermost count"
            notes.append(Note(rank, trace.path, None, text))
    files = {rank: trace.path for rank, _, trace in reversed(parts)}
    for rank in sorted(apart):
        text = "its steps have no numbers, and no collectives tell which of the other ranks' steps they are: not used"
        notes.append(Note(rank, files[rank], None, text))
    compared = len(tables.ranks) - len(apart)
    shared = tables.steps.group_by("step").agg(pl.len()).filter(pl.col("len") == compared)["step"]
    alone = tables.steps.filter(~pl.col("step").is_in(shared.implode()))
    for (rank,), own in alone.partition_by("rank", as_dict=True, maintain_order=True).items():
        steps = ", ".join(map(str, own["step"].head(10)))
        text = f"steps {steps} were not recorded on all ranks: they are not comparable and not used"
        notes.append(Note(rank, files[rank], None, text))
    return notes


def _on_communication(tables: Tables, parts: Sequence[tuple[int, int, Trace]], alone: Mapping[int, int]) -> list[Note]:
    """Kernels that look like communication, ones that begin before their launch, and lanes that are left `alone`."""
    files = {rank: trace.path for rank, _, trace in reversed(parts)}
    notes = []
    length = ((pl.col("end") - pl.col("start")).sum() / 1e3).alias("us")
    likely = tables.kernels.filter(pl.col("collective") == UNCLASSIFIED).group_by("rank", "name").agg(pl.len(), length)
    for rank, name, count, us in likely.sort("rank", "name").iter_rows():
        text = f"{count} kernels {name!r} look like communication and are not known: {us:.0f} us, counted as compute"
        notes.append(Note(rank, files[rank], None, f"{text}; name them with --collective REGEX[=KIND]"))
    early = tables.kernels.group_by("rank").agg((pl.col("launched") - pl.col("start")).max().alias("ns"))
    for rank, ns in early.filter(pl.col("ns") > 0).sort("rank").iter_rows():
        text = (
            f"kernels begin before their launch: its device's clock is behind its host's by at least {ns / 1e3:.0f} us"
        )
        notes.append(Note(rank, files[rank], None, text))
    for rank, count in alone.items():
        text = (
            "its collectives name no process groups and lie in too many lanes to compare all with other ranks': in the "
            f"{count} with the fewest no waits are known"
        )
        notes.append(Note(rank, files[rank], None, text))
    return notes
