"""The sweep as a Hydra app: Hydra makes the points, and the experiment core measures them.

With Hydra's basic launcher and sweeper a job only names its point; when all are known, their repeats are taken in turn.
With any other, a job measures its point and the baseline in turn and returns the objective, since the order of jobs is
Hydra's then. Paths are resolved before Hydra begins, and nothing is launched in a folder of Hydra's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import env_override
from omegaconf import DictConfig, OmegaConf

from distprof.experiment.sweep import completion
from distprof.experiment.sweep.config import PRIMARY, conf_folder, register
from distprof.experiment.sweep.overrides import identity, is_override, key_of, quoted
from distprof.run.config import ConfigError
from distprof.run.manifest import RunDirectoryError

if TYPE_CHECKING:
    from distprof.experiment.sweep.grid import Job
    from distprof.experiment.sweep.result import Sweep

INTERRUPTED = 130
_SHOW = {"--cfg", "-c", "--info", "-i"}
_NOT_TO_MEASURE = _SHOW | {"--help", "-h", "--hydra-help", "--version", *completion.FLAGS}
_SWEPT = ("loader", "ddp", "args")
_LAUNCHER = "hydra/launcher"
_HYDRAS = "hydra"  # conf/hydra/output/distprof.yaml


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended.

    Attributes:
        status: exit status: 0; 1 where a point failed; 2 on bad usage; 130 where it was interrupted.
        found: what was found; None: nothing was measured.
        out: the sweep's folder.
    """

    status: int
    found: Sweep | None = None
    out: Path | None = None


@dataclass
class Task:
    """What Hydra calls for each job.

    Attributes:
        command: the command line, for the record.
        jobs: jobs that only named their point.
        environment: variables that Hydra was told to set for jobs.
        problem: why a job does not name a point.
        apart: a job measured by itself.
    """

    command: list[str]
    jobs: list[Job] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    problem: ConfigError | None = None
    apart: DictConfig | None = None

    def __call__(self, config: DictConfig) -> float | None:
        """Name the point, or measure it."""
        from distprof.experiment.progress import ProgressLines
        from distprof.experiment.sweep.apart import measure_apart
        from distprof.experiment.sweep.grid import Job

        about = HydraConfig.get()
        if self._together(config):
            try:
                self.jobs.append(Job.of(config))
            except ConfigError as error:
                self.problem = self.problem or error
            self.environment = {name: str(value) for name, value in about.job.env_set.items()}
            return None
        self.apart = config
        number = 0 if OmegaConf.is_missing(about.job, "num") else about.job.num
        with ProgressLines() as watch:
            return measure_apart(config, Path(config.out), self.command, number, watch)

    @staticmethod
    def _together(config: DictConfig) -> bool:
        about = HydraConfig.get()
        targets = [str(part.get("_target_", "")).rpartition(".")[2] for part in (about.launcher, about.sweeper)]
        basic = targets == ["BasicLauncher", "BasicSweeper"]
        asked = config.measure.together
        if asked and not basic:
            raise ConfigError(
                f"measure.together=true needs Hydra's basic launcher and sweeper, not {', '.join(targets)}"
            )
        return basic if asked is None else bool(asked)


def main(arguments: Sequence[str], command: list[str]) -> Outcome:
    """Sweep.

    Args:
        arguments: Hydra's options and overrides.
        command: the command line, for the record.

    Raises:
        SystemExit: Hydra's, where it ends by itself.
    """
    register()
    try:
        if any(word.partition("=")[0] in _NOT_TO_MEASURE for word in arguments):
            return _show(list(arguments))
        overrides, out = _resolved([word for word in arguments if is_override(word)])
        options = [word for word in arguments if not is_override(word)]
        return _sweep(options, overrides, out, command)
    except (ConfigError, RunDirectoryError, FileNotFoundError) as error:
        return _bad(str(error))
    except OSError as error:
        return _bad(f"{error.filename} cannot be read or written ({error.strerror})")


def _bad(reason: str) -> Outcome:
    print(f"distprof sweep: error: {' '.join(reason.split())}", file=sys.stderr)
    return Outcome(2)


def _sweep(options: list[str], overrides: list[str], out: Path, command: list[str]) -> Outcome:
    from distprof.experiment.sweep.apart import known_apart

    task = Task(command)
    # Hydra writes down the configuration as it is, secrets of the script's arguments included.
    (out / _HYDRAS).mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with _as_submitted(overrides):
            _hydra(task, [*options, *overrides])
    except KeyboardInterrupt:
        return _ended(known_apart(out, command), out, interrupted=True)
    except SystemExit as end:
        found = None if task.jobs else known_apart(out, command)
        if found is None:
            return Outcome(2)  # Hydra has said why it cannot make the points
        return Outcome(1 if end.code else 0, _ended(found, out).found, out)
    if task.problem is not None:
        raise task.problem
    return _measured(task, out, command) if task.jobs else _ended(known_apart(out, command), out)


def _measured(task: Task, out: Path, command: list[str]) -> Outcome:
    from distprof.experiment.progress import ProgressLines
    from distprof.experiment.sweep.grid import grid_of
    from distprof.experiment.sweep.measure import known, measure
    from distprof.experiment.sweep.result import write

    grid = grid_of(task.jobs, out, command)
    if len(grid.points) == 1:
        raise ConfigError("nothing is swept: give values such as loader.num_workers=0,2,4, or sweep=loader")
    found = None
    try:
        with ProgressLines() as watch, env_override(task.environment):
            for found in measure(grid, watch):
                write(found, out)
    except KeyboardInterrupt:
        return _ended(known(grid), out, interrupted=True)
    return _ended(found, out)


def _ended(found: Sweep | None, out: Path, *, interrupted: bool = False) -> Outcome:
    """Keep the result and show it."""
    from rich.console import Console

    from distprof.experiment.sweep.page import write_page
    from distprof.experiment.sweep.result import write
    from distprof.experiment.sweep.terminal import show

    if found is None:
        return Outcome(INTERRUPTED if interrupted else 1, None, out)
    write(found, out)
    write_page(found, out)
    show(found, out, Console())
    failed = any(point.failure is not None for point in found.points)
    return Outcome(INTERRUPTED if interrupted else 1 if failed else 0, found, out)


def _resolved(overrides: list[str]) -> tuple[list[str], Path]:
    """The overrides with the paths that Hydra must not change: where the training starts, and where results go.

    Raises:
        ConfigError: something is swept that cannot be.
        RunDirectoryError: the folder for results holds something else.
    """
    parsed = OverridesParser.create().parse_overrides(overrides)
    plain: dict[str, object] = {}
    for word, override in zip(overrides, parsed, strict=True):
        key = key_of(word)
        if not override.is_sweep_override():
            plain[key] = override.value()
        elif key.split(".")[0].split("/")[0] not in _SWEPT:
            raise ConfigError(f"{key} cannot be swept: what can be is loader, ddp and args (for script_args)")
    home = Path.cwd() / str(plain.get("cwd") or "")
    script = str(plain.get("script") or "sweep")
    given = str(plain.get("out") or "")
    if given:
        out = home / given
    else:
        path = home / script
        content = path.read_text(errors="replace") if path.is_file() else ""
        key = identity([str(home), content], overrides)
        out = home / "distprof-runs" / f"sweep-{Path(script).stem.replace('.', '-') or 'run'}-{key}"
    if out.is_dir() and any(out.iterdir()) and not (out / _HYDRAS).is_dir():
        raise RunDirectoryError(f"{out} is not empty and holds no sweep: give another --out")
    kept = [word for word in overrides if key_of(word) not in ("cwd", "out")]
    return [*kept, f"cwd={quoted(str(home))}", f"out={quoted(str(out))}"], out


def _show(arguments: list[str]) -> Outcome:
    """What Hydra shows of itself and of the configuration: nothing is launched."""
    if completion.is_asked(arguments):
        return Outcome(completion.main(arguments, lambda words: _hydra(Task([]), words)))
    if any(word.partition("=")[0] in _SHOW for word in arguments):
        words = [word for word in arguments if is_override(word)]
        parsed = OverridesParser.create().parse_overrides(words)
        swept = {word for word, override in zip(words, parsed, strict=True) if override.is_sweep_override()}
        if swept:
            print(f"distprof: of one point, without what is swept: {' '.join(sorted(swept))}", file=sys.stderr)
        arguments = [word for word in arguments if word not in swept]
    try:
        _hydra(Task([]), arguments)
    except SystemExit as end:
        return Outcome(end.code if isinstance(end.code, int) else 0)
    return Outcome(0)


def _hydra(task: Task, words: list[str]) -> None:
    """Hydra's own main, on these words."""
    decorated = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=PRIMARY)(task)
    with _argv(words):
        decorated()


@contextmanager
def _as_submitted(overrides: list[str]) -> Iterator[None]:
    """Jobs that SLURM is to run inherit nothing of a job in which the command was typed: srun would obey it."""
    if not any(key_of(word) == _LAUNCHER and "slurm" in word for word in overrides):
        yield
        return
    from distprof.launcher.submit import clean_environment

    with clean_environment():
        yield


@contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [before[0] if before and before[0] else os.fspath("distprof"), *words]
    try:
        yield
    finally:
        sys.argv = before
