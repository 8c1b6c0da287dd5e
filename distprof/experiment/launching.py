"""Launching one trial: `distprof launch` in a process of its own, its output in a file."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from distprof.experiment.revisions import lay_out
from distprof.experiment.settings import Point
from distprof.experiment.trial import Trial, read_figures
from distprof.run.config import ConfigError
from distprof.run.identity import host_name
from distprof.run.manifest import RunDirectoryError
from distprof.run.secrets import mask_text
from distprof.run.settings import written

_TAIL_LINES = 20
_TAIL_BYTES = 64 << 10
_FAILED = re.compile(r"/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode")
_PATIENCE_S = 45  # torchrun gives its ranks 30 s to end


@dataclass(frozen=True, slots=True)
class Training:
    """What all points launch.

    Attributes:
        torchrun: torchrun's options.
        script: script, module or program.
        arguments: the script's own.
        module: the script is a module's name.
        folder: where it is launched; None: here.
    """

    torchrun: list[str]
    script: str
    arguments: list[str]
    module: bool
    folder: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace, torchrun: argparse.ArgumentParser) -> Training:
        """From a command line that was parsed by torchrun's parser, among others.

        The job gets a free port, if nothing is said about its rendezvous: the last one's may not be free yet.
        """
        words: list[str] = []
        for action in torchrun._actions:
            value = getattr(arguments, action.dest, None)
            if not action.option_strings or action.dest == "help" or value == action.default:
                continue
            spelling = next(each for each in action.option_strings if each.startswith("--"))
            words.append(spelling if action.nargs == 0 else f"{spelling}={value}")
        if arguments.rdzv_backend == "static" and not arguments.rdzv_endpoint and arguments.master_port is None:
            words += [] if arguments.standalone else ["--standalone"]
        return cls(words, arguments.training_script, list(arguments.training_script_args), arguments.module)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches trials below a folder.

    Attributes:
        folder: the experiment's.
        training: what is launched.
        capture: options of `distprof launch` for all points.
        first: number of the first step that is measured.
    """

    folder: Path
    training: Training
    capture: list[str]
    first: int

    def __call__(self, point: Point, repeat: int, timeout_s: float | None) -> Trial | None:
        """Launch a point; None where it was ended because the time was over.

        Raises:
            KeyboardInterrupt: the user does not want to wait; the launch has been ended.
        """
        name = f"{point.name}-{repeat}"
        run, log = self.folder / "runs" / name, self.folder / "logs" / f"{name}.txt"
        shutil.rmtree(run, ignore_errors=True)  # of a launch that was interrupted
        for path in (run, log):
            path.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        try:
            words, folder = self._words(point, run)
        except ConfigError as error:
            return Trial(point.name, repeat, 0.0, str(error), host=host_name())
        status = _run(words, log, folder, timeout_s)
        seconds = time.monotonic() - begin
        if status is None:
            return None
        failure = None
        if status != 0:
            failure = f"it ended with status {status}" if status > 0 else f"it was killed by signal {-status}"
        return self._read(Trial(point.name, repeat, round(seconds, 3), failure, host=host_name()), run, log)

    def _words(self, point: Point, run: Path) -> tuple[list[str], Path | None]:
        script = point.script or self.training.script
        folder = None if self.training.folder is None else Path(self.training.folder)
        if point.revision is not None:
            # Data is looked for from where the user is; a module is looked for there, too, so that goes with its tree.
            path = Path(*script.split(".")).with_suffix(".py") if self.training.module else Path(script)
            found = lay_out(point.revision, path, self.folder / "trees")
            if self.training.module:
                folder = found.parents[len(path.parts) - 1]
            else:
                script = str(found)
        ours = ["--no-report", "--no-probes", "--run-dir", str(run.absolute()), *self.capture, *point.options]
        ours += [word for setting in written(point.settings) for word in ("--set", setting)]
        start = [sys.executable, "-P", "-m", "distprof", "launch"]
        arguments = self.training.arguments if point.arguments is None else point.arguments
        return [*start, *ours, *self.training.torchrun, script, *arguments], folder

    def _read(self, trial: Trial, run: Path, log: Path) -> Trial:
        trial = replace(trial, run=str(run.relative_to(self.folder)), log=str(log.relative_to(self.folder)))
        if trial.failure is not None:
            return replace(trial, tail=_tail(log))
        try:
            figures = read_figures(run, self.first)
        except RunDirectoryError as error:
            return replace(trial, failure=str(error), tail=_tail(log))
        except Exception as error:  # a mistake of ours in one launch must not end the others
            failure = f"its recording could not be analysed ({type(error).__name__}: {error}): {run}"
            return replace(trial, failure=failure, tail=_tail(log))
        if figures.unmet:
            told = "; ".join(f"{row.setting}: {row.why}" for row in figures.unmet)
            return replace(trial, failure=f"a setting had no effect: {told}")
        if not figures.step_ms:
            failure = f"it has no steady step from step {self.first} on: take a smaller --warmup, or train longer"
            return replace(trial, failure=failure, tail=_tail(log))
        result = figures.result
        return replace(
            trial,
            step_ms=figures.step_ms,
            world_size=result.run.world_size,
            samples_per_step=result.conditions.samples_per_step,
            parts=figures.parts,
            zones=figures.zones,
            exposed=figures.exposed,
            checksums=result.conditions.checksums,
            settings=result.conditions.settings,
            first_step=result.steps.first,
            loader_start=figures.loader_start,
            memory_bytes=figures.memory_bytes,
            findings=[finding.observation for finding in result.findings],
        )


def _run(words: list[str], log: Path, folder: Path | None, timeout_s: float | None) -> int | None:
    """The exit status; None where it was ended because the time was over."""
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    with log.open("wb") as output:
        # In a process group of its own, a Ctrl-C reaches us alone, and we end it so that its ranks go, too.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            process_group=0,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    except BaseException:  # it does not end, or the user is impatient
        process.kill()
        process.wait()


def _tail(log: Path) -> list[str]:
    """The end of a launch's output, as far as it is the ranks': torchrun's own account of the failure is long."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    failed = next((number for number, line in enumerate(lines) if _FAILED.search(line)), len(lines))
    return [mask_text(line) for line in lines[: failed + 1][-_TAIL_LINES:]]
