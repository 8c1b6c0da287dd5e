"""distprof in the process that trains: what happens at its step boundaries and at its end.

Nothing here raises into the script: a failure is told once on stderr, noted in the rank's facts, and that
part is left off.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from distprof.capture.boundaries import Boundaries
from distprof.capture.checksum import Checksums
from distprof.capture.collectives import SCHEMA as COLLECTIVES_SCHEMA
from distprof.capture.collectives import FlightRecorder, process_groups
from distprof.capture.conditions import Batches, ddp_buckets, ddp_facts, loader_facts, model_facts
from distprof.capture.device_time import device_timer
from distprof.capture.facts import Facts, peak_resident_bytes
from distprof.capture.guard import is_the_scripts
from distprof.capture.last_words import SOON_S, LastWords
from distprof.capture.other_profilers import OtherProfilers
from distprof.capture.probes import Probes
from distprof.capture.whoami import identify
from distprof.capture.window import Window
from distprof.capture.zones import SCHEMA as ZONES_SCHEMA
from distprof.capture.zones import ZoneRecorder, now
from distprof.run.activities import why_unavailable
from distprof.run.attempts import attempt_of
from distprof.run.config import CaptureConfig
from distprof.run.directory import RunDirectory
from distprof.run.files import Stream
from distprof.run.identity import host_name
from distprof.run.secrets import mask_text

_FIRST_FLUSH_S = 0.01  # a process that is killed early leaves something, too
_FLUSH_EVERY_S = 1.0
_STALLED_NS = 10_000_000_000
_WORTH_A_ZONE_NS = 50_000
_PLAIN_MODULES_AFTER_NS = 1_000_000_000
_PATIENCE_S = 5.0
_MOST_NOTED = 100


class Agent:
    """What records in the one process that claimed its rank."""

    def __init__(
        self,
        config: CaptureConfig,
        others: OtherProfilers,
        watch_plain_modules: Callable[[], None],
        settings: dict[str, Any] | None,
    ) -> None:
        """Claim the rank by creating its files; where another process has, this one's are kept apart.

        Args:
            config: capture settings.
            others: watches for the script's own profilers.
            watch_plain_modules: times forward of any module; called where the script has no DDP model.
            settings: facts about settings that are overridden; None: none is.

        Raises:
            OSError: the run directory cannot be written.
            IdentityError: the environment names no valid rank.
        """
        identity = identify()
        directory = RunDirectory(Path(config.run_dir))
        identity = replace(identity, attempt=attempt_of(directory, os.environ))
        files = directory.rank(identity.attempt, identity.rank)
        header = {"rank": identity.rank, "pid": os.getpid()}
        warnings = list(identity.warnings)
        try:
            stream = Stream(files.zones, {"schema": ZONES_SCHEMA, **header})
        except FileExistsError:
            files = files.kept_apart(host_name(), os.getpid())
            stream = Stream(files.zones, {"schema": ZONES_SCHEMA, **header})
            warnings.append(f"another process has recorded as rank {identity.rank}; these files are kept apart")
        self.rank = identity.rank
        self._pid = os.getpid()
        self.zones: ZoneRecorder | None = ZoneRecorder(stream)
        self.zones.pulse = self._without_boundary
        self._collectives: FlightRecorder | None = None
        if not config.only_steps:
            self._collectives = FlightRecorder(Stream(files.collectives, {"schema": COLLECTIVES_SCHEMA, **header}))
        config, refused = _possible(config)
        warnings += refused
        self._window = Window(config, files, identity, others) if config.wants_window(identity.rank) else None
        self.facts = Facts(files, identity, config, self._window.activities if self._window else [])
        self._probes = Probes(
            files, header, config.probes, lambda facts: self.facts.set(probes=facts), problem=self.problem
        )
        self._batches: Batches | None = Batches()
        self.facts.set(batches=self._batches.facts, settings=settings)
        self._checksums = Checksums() if config.checksum else None
        self._stop_after = config.stop_after
        self._ddp: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._loaders: set[str] = set()
        self._models: set[tuple[str, bool]] = set()
        self._ddp_is_coming = False
        self._watch_plain_modules: Callable[[], None] | None = None if config.only_steps else watch_plain_modules
        self._boundaries = Boundaries()
        self._started = self._last_boundary = now()
        self._last_words = LastWords(os.environ)
        self._draining = threading.Lock()
        self._problems: set[str] = set()
        self._exception: str | None = None
        for warning in warnings:
            self._tell(warning)
        self.facts.write()

    def start(self) -> None:
        """Begin to write in the background, and arrange for the end."""
        atexit.register(self.finish)
        hook = sys.excepthook

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            try:
                self._exception = mask_text(f"{kind.__name__}: {error}")
            except Exception:  # the exception's own text may raise
                self._exception = kind.__name__
            try:
                if os.getpid() == self._pid:  # another rank may have failed, and the launcher will end this one, too
                    self._drain()
                    self._write()
            finally:
                hook(kind, error, traceback)

        sys.excepthook = excepthook
        # Not one of `threading.enumerate()`: a script that joins all threads would wait for it for ever.
        _thread.start_new_thread(self._write_in_background, ())
        self._window_does(lambda window: window.at_boundary(0))

    def before_fork(self) -> None:
        """The script forks: a child that ends as scripts end would crash in an open profiler."""
        self._window_does(lambda window: window.close("closed early: the script forked the process"))

    def disown(self) -> None:
        """This is a fork of the process that records: its files, its profiler and its sockets are not ours."""
        atexit.unregister(self.finish)
        self._probes.disown()

    def problem(self, where: str, error: Exception) -> None:
        """Tell once that a part of the capture failed; the training goes on without it."""
        if where not in self._problems:
            self._problems.add(where)
            text = mask_text(f"{where} failed and is left off: {type(error).__name__}: {error}")
            self._tell(f"{text}. The training is not affected.")

    def _tell(self, text: str) -> None:
        print(f"distprof: rank {self.rank}: {text}", file=sys.stderr, flush=True)
        self.facts.add("problems", text)

    def boundary(self, kind: str, name: str) -> None:
        """A step may be over: `kind` is the best mark of a boundary this script has, or one that it had so far."""
        counted = self._boundaries.see(kind, name)
        if counted is None:
            return
        if counted == "anew":
            self._window_does(Window.start_anew)
        if counted != "next":
            self._forwards_are_seen()
        self.facts.values["boundaries"] = self._boundaries.count
        begin = self._last_boundary = now()
        if self._last_words.told:
            done = self._say_last_words()
        else:
            done = self._window_does(lambda window: window.at_boundary(self._boundaries.count))
        if self._collectives is not None and self._collectives.due(begin) and self._drain():
            done = done or "drain"
        zones = self.zones
        if zones is None:
            return
        if zones.pulse is not None:
            zones.pulse = None
            self.facts.set(training_thread=threading.get_native_id())
        if zones.device is not None:
            zones.device.collect()
            if zones.device.failure is not None:
                self.problem("timing zones on the device", zones.device.failure)
        end = now()
        if end - begin >= _WORTH_A_ZONE_NS:
            zones.add(zones.zone("own", done or "boundary"), begin, end)
        if self._boundaries.count == self._stop_after:
            self._end_the_training()

    def _say_last_words(self) -> str | None:
        """The scheduler will end the job: what is recorded goes to the disk, and no more window is opened."""
        if not self._last_words.due():
            return None
        done = self._window_does(lambda window: window.close("closed early: the scheduler was about to end the job"))
        self._drain()
        self._write()
        self._last_words.said()
        return done or "drain"

    def _end_the_training(self) -> None:
        """The script's own `finally` and `with` blocks run, and its process ends as one that came to its end.

        All ranks come here after the same step, and what they owe each other in it has been sent.
        """
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is not None and getattr(torch.get_device_module(accelerator), "is_initialized", bool)():
            torch.accelerator.synchronize()
        self._sum_up()
        self.facts.set(stopped_after=self._boundaries.count)
        raise SystemExit(0)

    def _without_boundary(self, moment: int) -> None:
        """What a script gets while it has shown no step boundary: by time, after its zones."""
        waited = moment - self._started
        if waited < _PLAIN_MODULES_AFTER_NS:
            return
        try:
            if not self._ddp_is_coming:  # it is about to be called, however long its first batch takes
                self._forwards_are_seen()
            self._window_does(lambda window: window.by_time(waited))
        except Exception as error:
            if self.zones is not None:
                self.zones.pulse = None
            if is_the_scripts(error):
                raise
            self.problem("recording without step boundaries", error)

    def _forwards_are_seen(self) -> None:
        watch, self._watch_plain_modules = self._watch_plain_modules, None
        if watch is not None and not self._models:
            watch()

    def _window_does(self, what: Callable[[Window], str | None]) -> str | None:
        if self._window is None:
            return None
        window = self._window
        try:
            done = what(window)
        except Exception as error:
            self._window = None
            with suppress(Exception):  # what failed once may fail again
                window.discard()
            if is_the_scripts(error):
                raise
            self.problem("recording a Kineto window", error)
            done = "window"
        if done is not None:
            self.facts.set(windows=window.facts)
            self._probes.sample()
        return done

    def _drain(self, patience_s: float = 0.0, *, models: bool = True) -> bool:
        """Read the flight recorder; False where that is left off, or another thread is at it for longer than that.

        Args:
            models: ask DDP models for their buckets, too; while one waits in backward, it does not answer.
        """
        recorder = self._collectives
        if recorder is None or not self._draining.acquire(timeout=patience_s):
            return False
        try:
            begin, moment = now(), time.time_ns()
            self.facts.add_groups(process_groups())
            recorder.drain(begin)
            recorder.charge(now() - begin)
            for model, row in list(self._ddp.items()) if models else ():
                if row["bucket_bytes"] is None:
                    row.update(ddp_buckets(model))
            self.facts.set(drained_unix_ns=moment)
        except Exception as error:
            self._collectives = None
            if is_the_scripts(error):
                raise
            self.problem("reading the flight recorder", error)
        finally:
            self._draining.release()
        return True

    def saw_loader(self, name: str, loader: Any) -> None:
        """Note a data loader's settings, once; of the first many."""
        if name not in self._loaders and len(self._loaders) < _MOST_NOTED:
            self._loaders.add(name)
            self.facts.add("loaders", loader_facts(name, loader))

    def saw_batch(self, batch: Any, moment: int) -> None:
        """Note the size of a batch."""
        if self._batches is None:
            return
        batches, self._batches = self._batches, None  # should this raise, it is left off
        samples, elements = batches.see(batch)
        self._batches = batches
        if self.zones is not None and elements:
            self.zones.add_batch(moment, samples, elements)

    def settings_changed(self) -> None:
        """A setting was overridden: the facts about it, which are not ours, are to be written."""
        self.facts.set()

    def saw_optimizer(self, name: str, optimizer: Any) -> None:
        """An optimizer stepped."""
        if self._checksums is not None:
            self._checksums.saw(name, optimizer)

    def _sum_up(self) -> None:
        if self._checksums is not None:
            self._checksums.take()
            self.facts.set(checksums=self._checksums.facts)
            if self._checksums.failure is not None:
                self.problem("summing up the parameters", self._checksums.failure)

    def saw_model(self, name: str, model: Any) -> None:
        """Note a model's state at its first forward in each mode; of the first many."""
        if (name, model.training) not in self._models and len(self._models) < _MOST_NOTED:
            self._models.add((name, model.training))
            self.facts.add("models", model_facts(name, model))

    def makes_ddp(self, whether: bool) -> None:
        """The script makes a DDP model, in which the ranks meet; or it failed to."""
        self._ddp_is_coming = whether or len(self._ddp) > 0

    def saw_ddp(self, name: str, model: Any) -> None:
        """Note a DDP model's settings, and that its device is the rank's."""
        row = ddp_facts(name, model)
        self._ddp[model] = row
        self.facts.add("ddp", row)
        self.facts.set(device=model.device_type)
        if self.zones is not None and self.zones.device is None:
            self.zones.device = device_timer(model.device_type)

    def group_is_there(self) -> None:
        """The default process group was made: it knows better than the environment which rank this is, and its store
        lets the ranks meet."""
        if dist.get_rank() != self.rank and "identity" not in self._problems:
            self._problems.add("identity")
            self._tell(
                f"the process group calls this rank {dist.get_rank()}; the recording keeps the number {self.rank}"
            )
        self._probes.start(dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size())

    def before_groups_vanish(self) -> None:
        """Read what vanishes with the process groups, while all ranks are there."""
        self._probes.sample()
        self._drain(_PATIENCE_S)
        self._sum_up()

    def _write_in_background(self) -> None:
        pause, steps = _FIRST_FLUSH_S, False
        while self._write():
            notice = self._last_words.pause(pause, None if steps else self._has_stepped)
            if notice is not None:
                self.facts.set(told={**notice, "boundary": self._boundaries.count})
            pause = min(SOON_S if self._last_words.told else _FLUSH_EVERY_S, 2 * pause)
            if not steps and self._has_stepped():  # which may have taken long to come, and the next may be the last
                pause, steps = _FIRST_FLUSH_S, True
            if now() - self._last_boundary > _STALLED_NS:  # it may be killed before it comes to a boundary again
                self._last_boundary = now()
                self._drain(models=False)

    def _has_stepped(self) -> bool:
        return self._boundaries.count > 0

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
            self.facts.set(zones_left_off=True)
            with suppress(Exception):  # nobody writes them in the background any more
                self.facts.write()
            return False
        return True

    def finish(self) -> None:
        """Write all that is left: the process ends."""
        if os.getpid() != self._pid:
            return
        self._write()  # what is on disk is safe, whatever ends this process while the window is exported
        self._probes.end()
        self._window_does(Window.finish)
        self._drain(_PATIENCE_S)
        self._sum_up()
        for setting, why in ((self.facts.values["settings"] or {}).get("unmet", {})).items():
            self._tell(f"--set {setting} had no effect: {why}")
        if self.zones is not None and self.zones.device is not None:
            self.zones.device.collect()
        self._write()
        self._probes.wait()
        zones, collectives = self.zones, self._collectives
        self.facts.set(
            status="finished",
            boundary=self._boundaries.kind or None,
            peak_resident_bytes=peak_resident_bytes(),
            ended_unix_ns=time.time_ns(),
            exit={"reason": "exception" if self._exception else "ended", "exception": self._exception},
            own_cost={
                "ns_per_zone": zones.ns_per_zone() if zones else None,
                "zones": zones.count if zones else None,
                "drain_s": collectives.spent_ns / 1e9 if collectives else None,
                "drains": collectives.drains if collectives else None,
                "lost_collectives": collectives.lost if collectives else None,
            },
        )
        self._write()


def _possible(config: CaptureConfig) -> tuple[CaptureConfig, list[str]]:
    """The settings without the activities that this process cannot record, and why it cannot."""
    reasons = {name: why_unavailable(name, torch) for name in config.activities or ()}
    refused = [f"{name} activity is not recorded: {reason}" for name, reason in reasons.items() if reason is not None]
    possible = [name for name, reason in reasons.items() if reason is None]
    return (replace(config, activities=possible or None), refused) if refused else (config, [])
