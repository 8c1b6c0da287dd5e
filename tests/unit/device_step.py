"""A step on a device made by hand, whose parts can be added up in the head. Times are microseconds.

host     0 loader 100 | 110 launches k1 | 120 launches k2 | 140 item: copies and waits until 460 | Python
         700 launches k3 | 720 launches the copy | 730 launches NCCL's kernel | Python until 1000
device   150 k1 350 k2 450 copy to the host 455 | idle | 710 k3 800, NCCL until 900, copy to the device 930 | idle
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import distprof
from distprof.analyze.inputs import Recording
from distprof.analyze.traces import analyze_traces
from distprof.result import Clock
from tests.unit.handmade import Event, call, copy, kernel, launch, mark, nccl, operator, span, write_trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LENGTH = 1000


def loader(at: float = 0) -> list[Event]:
    return [span(LOADER, at, 100)]


def item(at: float = 0) -> list[Event]:
    """`.item()` from 140 to 470; the copy to the host is over at 455."""
    return [
        operator("aten::item", at + 140, 330),
        operator("aten::_local_scalar_dense", at + 142, 325),
        call("cudaMemcpyAsync", at + 145, 5, correlation=3),
        call("cudaStreamSynchronize", at + 150, 310),
        copy("Memcpy DtoH (Device -> Pageable)", at + 450, 5, correlation=3),
    ]


def work(at: float = 0, *, communicates_from: float = 780) -> list[Event]:
    """Kernels and copies, and their launches. NCCL's kernel ends at 900."""
    return [
        operator("aten::mm", at + 105, 30),
        launch(at + 110, 1),
        launch(at + 120, 2),
        kernel("gemm", at + 150, 200, correlation=1),
        kernel("gemm", at + 350, 100, correlation=2),
        operator("aten::mm", at + 690, 20),
        launch(at + 700, 4),
        kernel("gemm", at + 710, 90, correlation=4),
        call("cudaMemcpyAsync", at + 720, 4, correlation=5),
        copy("Memcpy HtoD (Pinned -> Device)", at + 900, 30, correlation=5),
        operator("c10d::allreduce_", at + 728, 12),
        launch(at + 730, 6),
        nccl(at + communicates_from, 900 - communicates_from, correlation=6),
    ]


def steps(*events: list[Event], count: int = 1) -> list[Event]:
    """Steps 1 to `count`; `events` are the first's, and the others' are alike."""
    of_one = [event for part in events for event in part]
    repeated = []
    for number in range(count):
        repeated.append(mark(number + 1, number * LENGTH, LENGTH))
        for event in of_one:
            args = dict(event["args"])
            if "correlation" in args:
                args["correlation"] += 10 * number
            repeated.append({**event, "ts": event["ts"] + number * LENGTH, "args": args})
    return repeated


class Sections(SimpleNamespace):
    """Sections of a report by name."""


def analysed(folder: Path, *ranks: list[Event]) -> Sections:
    """What the traces of these ranks' events say; all their clocks are right."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, events in enumerate(ranks):
        write_trace(folder / f"rank{rank}.json", events, rank=rank, world_size=len(ranks))
    clock = Clock(method="one clock", verdict="same_host", reference_rank=0, ranks=[])
    return Sections(**analyze_traces(distprof.load(folder).tables, clock, Recording()))


def reasons(sections: Sections, section: str) -> dict[str, str]:
    """What of a section is not observed, and why."""
    return {row.what: row.reason for row in sections.not_observed if row.what.split(".")[0] == section}
