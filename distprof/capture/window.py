"""The Kineto window: torch's own profiler, open for some steps, in the rank's own trace file."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as torch_profiler

from distprof.capture.collectives import settled
from distprof.capture.other_profilers import OtherProfilers
from distprof.run.activities import available_activities
from distprof.run.config import CaptureConfig
from distprof.run.directory import RankFiles
from distprof.run.identity import Identity

# A script without step boundaries gets a window by time.
_OPEN_BY_TIME_NS = 10_000_000_000
_CLOSE_BY_TIME_NS = 12_000_000_000
_NEVER = 1 << 62
# How long a stop waits for the script's collectives to end; at a boundary it is put off to the next one instead.
_PATIENCE_S = 1.0
_PATIENCE_AT_BOUNDARY_S = 0.2
# More than what Kineto writes after the events, the trace's own path included.
_TAIL_BYTES = 16384
# Bytes of an uncompressed trace per event: 250 to 330 on CPU traces; what --record adds is not foreseen.
_BYTES_PER_EVENT = 350


class Window:
    """Opens and closes Kineto windows by the schedule, driven by the training thread.

    A window is opened at the boundary before its last warm-up step, so that what opening costs falls into the
    warm-up, and closed and exported at the boundary after its last active step. Where there is a second warm-up step,
    that one is recorded and thrown away, to foresee the size of the trace. The profiler is not stopped while a
    collective is under way.

    Attributes:
        facts: one row per window, for the rank's facts file.
        activities: what is recorded.
    """

    def __init__(self, config: CaptureConfig, files: RankFiles, identity: Identity, others: OtherProfilers) -> None:
        self._config = config
        self._files = files
        self._identity = identity
        self._profiler: Any = None
        self._annotation: Any = None
        self._close_at = 0
        self._most_steps = _NEVER
        self._probing = False
        self._abandoned: list[Any] = []
        self._thread = threading.get_ident()
        self._others = others
        others.make_way = self._make_way
        self.facts: list[dict[str, Any]] = []
        self.activities = config.activities or available_activities(torch)

    def at_boundary(self, boundary: int) -> str | None:
        """Do what the schedule asks for when `boundary` steps are over; what was done in words, or None.

        Raises:
            OSError: the trace cannot be written.
        """
        schedule = self._config.schedule
        cycle = schedule.wait + schedule.warmup + schedule.active
        index, position = divmod(boundary, cycle)
        opens_at = schedule.wait + max(0, schedule.warmup - 1)
        done = None
        if self._probing:
            if settled(_PATIENCE_AT_BOUNDARY_S):
                self._end_probe()
            self._probing = False  # what can not be stopped now becomes the window
            done = "window probe"
        elif self._profiler is not None:
            if boundary < self._close_at:
                self._annotate(boundary)
            elif settled(_PATIENCE_AT_BOUNDARY_S):
                self.close(None)
                done = "window export"
            else:
                self._annotate(boundary)
                self.facts[-1]["reason"] = "closed late: a collective was under way at the end of its last step"
            if self._profiler is not None:
                return done
        if index >= schedule.repeat:
            return done
        if position == opens_at:
            warm_up = min(1, schedule.warmup)
            active = min(schedule.active, self._most_steps)
            self._close_at = boundary + warm_up + active
            row = self._open(boundary)
            if row is not None:
                self._annotate(boundary)
                if active < schedule.active:
                    row["reason"] = f"cut to {active} steps, since {schedule.active} would exceed --max-trace-mb"
            return done or "window open"
        if position == opens_at - 1 and schedule.warmup > 1 and self._config.max_trace_mb and self._why_not() is None:
            self._probing = True
            self._start()
            return done or "window probe"
        return done

    def start_anew(self) -> None:
        """Better marks of steps appeared, and their count starts anew: forget what the others had begun."""
        self._most_steps = _NEVER
        if self.discard() and not self._probing:
            self.facts.pop()
        self._probing = False

    def discard(self) -> bool:
        """Stop recording and forget what was recorded; whether there was something. A profiler that is left running
        crashes the process at its end."""
        if self._profiler is None:
            return False
        if threading.get_ident() == self._thread:
            self._stop()
        else:
            self._give_up("given up: it was recorded on another thread")
        return True

    def by_time(self, waited: int) -> str | None:
        """Open and close a window without step boundaries; `waited` ns have passed since the start."""
        if self._profiler is None and not self.facts and waited >= _OPEN_BY_TIME_NS:
            self._close_at = _NEVER
            self._open(0)
            return "window open"
        if self._profiler is not None and waited >= _CLOSE_BY_TIME_NS:
            self.close("opened and closed by time, since no step boundary was found")
            return "window export"
        return None

    def _why_not(self) -> str | None:
        """Why no profiler can be started now."""
        if self._others.active:
            return "the script's own profiler was active, and two at once crash or lose events"
        if threading.current_thread() is not threading.main_thread():
            return "the training does not run in the main thread, and Kineto then crashes at exit"
        return None

    def _start(self) -> None:
        record = self._config.record
        self._profiler = torch_profiler.profile(
            use_cpu="cpu" in self.activities,
            use_device=next((name for name in self.activities if name != "cpu"), None),
            record_shapes="shapes" in record,
            profile_memory="memory" in record,
            with_stack="stacks" in record,
            with_flops="flops" in record,
            use_kineto=True,
        )
        with self._others.ours():
            self._profiler.__enter__()

    def _stop(self) -> Any:
        profiler, self._profiler = self._profiler, None
        try:
            self._end_annotation()
            settled(_PATIENCE_S)
        finally:  # it is stopped all the same
            with self._others.ours():
                profiler.__exit__(None, None, None)
        return profiler

    def _end_probe(self) -> None:
        """Foresee how many steps the size limit admits, from the one that was recorded."""
        self._probing = False
        if self._profiler is None or self._config.max_trace_mb is None:
            return
        per_step = len(self._stop().kineto_results.events()) * _BYTES_PER_EVENT
        self._most_steps = max(1, int(self._config.max_trace_mb * 1e6 / max(1, per_step)) - 1)

    def _open(self, boundary: int) -> dict[str, Any] | None:
        row: dict[str, Any] = {
            "index": len(self.facts),
            "start_unix_ns": None,
            "end_unix_ns": None,
            "stop_s": None,
            "export_s": None,
            "reason": None,
        }
        self.facts.append(row)
        if (why := self._why_not()) is not None:
            row["reason"] = f"not opened: {why}"
            return None
        if self._profiler is None:
            self._start()
        row["start_unix_ns"] = time.time_ns()
        identity = {"rank": self._identity.rank, "world_size": self._identity.world_size}
        ours = {"attempt": self._identity.attempt, "window": row["index"], "first_step": boundary}
        # Only between start and stop; a value with a backslash would make the whole trace unreadable.
        torch._C._autograd._add_metadata_json("distributedInfo", json.dumps(identity))
        torch._C._autograd._add_metadata_json("distprof", json.dumps(ours))
        return row

    def _annotate(self, step: int) -> None:
        self._end_annotation()
        self._annotation = torch_profiler.record_function(f"ProfilerStep#{step}")
        self._annotation.__enter__()

    def _end_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def close(self, reason: str | None) -> str | None:
        """Stop recording and export, uncompressed: compressing is for `finish`, when nobody trains any more.

        Returns:
            What was done in words, None where no window was open.

        Raises:
            OSError: the trace cannot be written.
        """
        if self._profiler is None:
            return None
        if threading.get_ident() != self._thread:
            self._give_up("given up: the training ended on another thread than it ran on, with the window open")
            return None
        if self._probing:
            self._end_probe()
            return "window probe"
        row = self.facts[-1]
        row["reason"] = reason or row["reason"]
        row["end_unix_ns"] = time.time_ns()
        begin = time.monotonic()
        profiler = self._stop()
        row["stop_s"] = time.monotonic() - begin
        path = self._files.window(row["index"], compressed=False)
        if path.exists():
            raise FileExistsError(f"{path} is there already and is not overwritten")
        begin = time.monotonic()
        profiler.export_chrome_trace(str(path))
        row["export_s"] = time.monotonic() - begin
        if not _is_whole(path):  # Kineto does not look at what its writing came to; the room is for the zones
            for part in (path, path.with_name(f"{path.name}.tmp")):
                part.unlink(missing_ok=True)
            raise OSError(f"torch could not write all of {path} (the disk may be full), and it was removed")
        return "window export"

    def _make_way(self, thread: int) -> None:
        if self._profiler is None:
            return
        if thread == self._thread:
            self.close("closed early: the script started a profiler of its own")
            return
        self._give_up("given up: the script started a profiler on another thread")

    def _give_up(self, reason: str) -> None:
        """Forget an open window: stopping or exporting it from another thread would crash the process."""
        self._abandoned.append((self._profiler, self._annotation))  # destroying it might, too
        self._profiler = self._annotation = None
        if not self._probing:
            self.facts[-1]["reason"] = reason
        self._probing = False

    def finish(self) -> str | None:
        """Close what is open and compress the traces.

        Raises:
            OSError: a trace cannot be written; the uncompressed one stays.
        """
        self.close("closed early: the training ended inside the window")
        for row in self.facts:
            plain = self._files.window(row["index"], compressed=False)
            if plain.exists():
                _compress(plain, self._files.window(row["index"]))
        return "window export" if self.facts else None


def _is_whole(trace: Path) -> bool:
    """Whether Kineto came to the end of a trace, where its name stands."""
    if not trace.exists():
        return False
    with trace.open("rb") as file:
        file.seek(max(0, trace.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    return b'"traceName"' in tail and tail.rstrip().endswith(b"}")


def _compress(plain: Path, compressed: Path) -> None:
    temporary = compressed.with_name(f".{compressed.name}.tmp")
    try:
        with plain.open("rb") as source, gzip.open(temporary, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        temporary.replace(compressed)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    plain.unlink()
