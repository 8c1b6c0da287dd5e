"""distprof in the process that trains: what happens at its step boundaries and at its end.

Nothing here raises into the script: a failure is told once on stderr, noted in the rank's facts, and that
part is left off.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from distprof.capture.collectives import SCHEMA as COLLECTIVES_SCHEMA
from distprof.capture.collectives import FlightRecorder, process_groups
from distprof.capture.facts import Facts, ddp_buckets, ddp_facts, loader_facts
from distprof.capture.other_profilers import OtherProfilers
from distprof.capture.window import Window
from distprof.capture.zones import SCHEMA as ZONES_SCHEMA
from distprof.capture.zones import ZoneRecorder, now
from distprof.run.config import CaptureConfig
from distprof.run.directory import RunDirectory
from distprof.run.files import Stream
from distprof.run.identity import read_identity

_FLUSH_EVERY_S = 1.0
_STALLED_NS = 10_000_000_000
_WORTH_A_ZONE_NS = 50_000
_BOUNDARY_ORDER = ("backward", "optimizer", "user")


class Agent:
    """What records in the one process that claimed its rank."""

    def __init__(self, config: CaptureConfig, others: OtherProfilers) -> None:
        """Claim the rank by creating its files.

        Raises:
            FileExistsError: another process of this rank has claimed it.
            OSError: the run directory cannot be written.
            IdentityError: the environment names no valid rank.
        """
        identity = read_identity(os.environ)
        files = RunDirectory(Path(config.run_dir)).rank(identity.attempt, identity.rank)
        files.folder.mkdir(exist_ok=True)
        header = {"rank": identity.rank, "pid": os.getpid()}
        self.rank = identity.rank
        self.zones: ZoneRecorder | None = ZoneRecorder(Stream(files.zones, {"schema": ZONES_SCHEMA, **header}))
        self._collectives: FlightRecorder | None = FlightRecorder(
            Stream(files.collectives, {"schema": COLLECTIVES_SCHEMA, **header})
        )
        self._window: Window | None = None
        if config.wants_window(identity.rank):
            self._window = Window(config, files, {"rank": identity.rank, "world_size": identity.world_size}, others)
        self.facts = Facts(files, identity, config, self._window.activities if self._window else [])
        self._models: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._boundary = ("", "")
        self._boundaries = 0
        self._last_boundary = now()
        self._draining = threading.Lock()
        self._problems: set[str] = set()
        self._exception: str | None = None
        self.facts.write()

    def start(self) -> None:
        """Begin to write in the background, and arrange for the end."""
        atexit.register(self.finish)
        hook = sys.excepthook

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            self._exception = f"{kind.__name__}: {error}"
            hook(kind, error, traceback)

        sys.excepthook = excepthook
        threading.Thread(target=self._write_in_background, name="distprof-writer", daemon=True).start()
        self._window_at_boundary()

    def problem(self, where: str, error: Exception) -> None:
        """Tell once that a part of the capture failed; the training goes on without it."""
        if where in self._problems:
            return
        self._problems.add(where)
        text = f"{where} failed and is left off: {type(error).__name__}: {error}"
        print(f"distprof: rank {self.rank}: {text}. The training is not affected.", file=sys.stderr, flush=True)
        self.facts.add("problems", text)

    def boundary(self, kind: str, name: str) -> None:
        """A step may be over: `kind` is the best mark of a boundary this script has, or one that it had so far."""
        if (kind, name) != self._boundary:
            held = self._boundary[0]
            if held and _BOUNDARY_ORDER.index(kind) <= _BOUNDARY_ORDER.index(held):
                return
            self._boundary = (kind, name)
            self._boundaries = 0
        self._boundaries += 1
        begin = self._last_boundary = now()
        done = self._window_at_boundary()
        if self._collectives is not None and self._collectives.due(begin) and self._drain():
            done = done or "drain"
        end = now()
        if self.zones is not None and end - begin >= _WORTH_A_ZONE_NS:
            self.zones.add(self.zones.zone("own", done or "boundary"), begin, end)

    def _window_at_boundary(self) -> str | None:
        if self._window is None:
            return None
        try:
            done = self._window.at_boundary(self._boundaries)
        except Exception as error:
            self.problem("recording a Kineto window", error)
            done, self._window = "window", None
        else:
            if done is not None:
                self.facts.set(windows=self._window.facts)
        return done

    def _drain(self) -> bool:
        recorder = self._collectives
        if recorder is None or not self._draining.acquire(blocking=False):
            return False
        try:
            begin = now()
            self.facts.add_groups(process_groups())
            recorder.drain(begin)
            recorder.charge(now() - begin)
            self._learn_buckets()
        except Exception as error:
            self.problem("reading the flight recorder", error)
            self._collectives = None
        finally:
            self._draining.release()
        return True

    def _learn_buckets(self) -> None:
        for model, row in list(self._models.items()):
            if row["bucket_bytes"] is None:
                row.update(ddp_buckets(model))
                self.facts.set()

    def saw_loader(self, name: str, loader: Any) -> None:
        """Note a data loader's settings, once."""
        if all(row["name"] != name for row in self.facts.values["loaders"]):
            self.facts.add("loaders", loader_facts(name, loader))

    def saw_ddp(self, name: str, model: Any) -> None:
        """Note a DDP model's settings."""
        row = ddp_facts(name, model)
        self._models[model] = row
        self.facts.add("ddp", row)
        self.facts.set(device=model.device_type)

    def before_groups_vanish(self) -> None:
        """Read what vanishes with the process groups."""
        self._drain()

    def _write_in_background(self) -> None:
        while True:
            time.sleep(_FLUSH_EVERY_S)
            if not self._write():
                return
            if now() - self._last_boundary > _STALLED_NS:  # it may be killed before it comes to a boundary again
                self._last_boundary = now()
                self._drain()

    def _write(self) -> bool:
        try:
            self.facts.write()
        except Exception as error:
            self.problem("writing the rank's facts", error)
        if self.zones is None:
            return False
        try:
            self.zones.flush()
        except Exception as error:
            self.problem("writing the zones", error)
            self.zones = None
            return False
        return True

    def finish(self) -> None:
        """Write all that is left: the process ends."""
        if self._window is not None:
            try:
                self._window.finish()
                self.facts.set(windows=self._window.facts)
            except Exception as error:
                self.problem("writing a Kineto trace", error)
        self._drain()
        cost = self._collectives
        self._write()
        zones = self.zones
        self.facts.set(
            status="finished",
            ended_unix_ns=time.time_ns(),
            exit={"reason": "exception" if self._exception else "ended", "exception": self._exception},
            own_cost={
                "ns_per_zone": zones.ns_per_zone() if zones else None,
                "zones": zones.count if zones else None,
                "drain_s": cost.spent_ns / 1e9 if cost else None,
                "drains": cost.drains if cost else None,
                "lost_collectives": cost.lost if cost else None,
            },
        )
        self._write()
