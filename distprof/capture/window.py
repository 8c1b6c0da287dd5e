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

from distprof.capture.other_profilers import OtherProfilers
from distprof.run.config import CaptureConfig
from distprof.run.directory import RankFiles


class Window:
    """Opens and closes Kineto windows by the schedule, driven by the training thread.

    A window is opened at the boundary before its last warm-up step, so that what opening costs falls into the
    warm-up, and closed and exported at the boundary after its last active step.

    Attributes:
        facts: one row per window, for the rank's facts file.
    """

    def __init__(
        self, config: CaptureConfig, files: RankFiles, identity: dict[str, Any], others: OtherProfilers
    ) -> None:
        self._config = config
        self._files = files
        self._identity = identity
        self._profiler: Any = None
        self._annotation: Any = None
        self._close_at = 0
        self._thread = threading.get_ident()
        self._others = others
        others.make_way = self._make_way
        self.facts: list[dict[str, Any]] = []
        self.activities = config.activities or ["cpu"]

    def at_boundary(self, boundary: int) -> str | None:
        """Do what the schedule asks for when `boundary` steps are over; what was done in words, or None.

        Raises:
            OSError: the trace cannot be written.
        """
        done = None
        if self._profiler is not None:
            if boundary >= self._close_at:
                self.close(None)
                done = "window export"
            else:
                self._annotate(boundary)
        schedule = self._config.schedule
        cycle = schedule.wait + schedule.warmup + schedule.active
        index, position = divmod(boundary, cycle)
        if (
            self._profiler is None
            and index < schedule.repeat
            and position == schedule.wait + max(0, schedule.warmup - 1)
        ):
            self._close_at = (index + 1) * cycle
            self._open(boundary)
            done = done or "window open"
        return done

    def _open(self, boundary: int) -> None:
        row: dict[str, Any] = {
            "index": len(self.facts),
            "start_unix_ns": None,
            "end_unix_ns": None,
            "stop_s": None,
            "export_s": None,
            "reason": None,
        }
        self.facts.append(row)
        if self._others.active:
            row["reason"] = "not opened: the script's own profiler was active, and two at once crash or lose events"
            return
        record = self._config.record
        profiler = torch_profiler.profile(
            use_cpu="cpu" in self.activities,
            use_device=next((name for name in self.activities if name != "cpu"), None),
            record_shapes="shapes" in record,
            profile_memory="memory" in record,
            with_stack="stacks" in record,
            with_flops="flops" in record,
            use_kineto=True,
        )
        with self._others.ours():
            profiler.__enter__()
        self._profiler = profiler
        row["start_unix_ns"] = time.time_ns()
        # Only between start and stop; a value with a backslash would make the whole trace unreadable.
        torch._C._autograd._add_metadata_json("distributedInfo", json.dumps(self._identity))
        torch._C._autograd._add_metadata_json("distprof", json.dumps({"window": row["index"], "first_step": boundary}))
        self._annotate(boundary)

    def _annotate(self, step: int) -> None:
        self._end_annotation()
        self._annotation = torch_profiler.record_function(f"ProfilerStep#{step}")
        self._annotation.__enter__()

    def _end_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def close(self, reason: str | None) -> None:
        """Stop recording and export, uncompressed: compressing is for `finish`, when nobody trains any more.

        Raises:
            OSError: the trace cannot be written.
        """
        if self._profiler is None:
            return
        row = self.facts[-1]
        row["reason"] = reason
        self._end_annotation()
        row["end_unix_ns"] = time.time_ns()
        begin = time.monotonic()
        profiler, self._profiler = self._profiler, None
        with self._others.ours():
            profiler.__exit__(None, None, None)
        row["stop_s"] = time.monotonic() - begin
        path = self._files.window(row["index"], compressed=False)
        if path.exists():
            raise FileExistsError(f"{path} is there already and is not overwritten")
        begin = time.monotonic()
        profiler.export_chrome_trace(str(path))
        row["export_s"] = time.monotonic() - begin
        if not path.exists():  # Kineto only logs a failed write
            raise OSError(f"torch could not write {path}")

    def _make_way(self, thread: int) -> None:
        if self._profiler is None:
            return
        if thread == self._thread:
            self.close("closed early: the script started a profiler of its own")
        else:  # stopping or exporting ours from another thread would crash the process
            self._profiler = self._annotation = None
            self.facts[-1]["reason"] = "given up: the script started a profiler on another thread"

    def finish(self) -> None:
        """Close what is open and compress the traces.

        Raises:
            OSError: a trace cannot be written; the uncompressed one stays.
        """
        self.close("closed early: the training ended inside the window")
        for row in self.facts:
            plain = self._files.window(row["index"], compressed=False)
            if plain.exists():
                _compress(plain, self._files.window(row["index"]))


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
