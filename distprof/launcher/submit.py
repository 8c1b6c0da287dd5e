"""Submitting a launch through submitit: one task per node, and the report once the ranks have ended."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import submitit

from distprof.launcher.task import LaunchTask
from distprof.run.directory import RunDirectory

Cluster = Literal["slurm", "local", "debug"]
# What a job must not inherit from one that it is submitted in: all but where the cluster's configuration is.
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
_OF_A_RANK = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Options of sbatch and submitit that this module sets, and what to give instead.
_SET_HERE = {
    "nodes": "give --nodes",
    "time": "give --time",
    "partition": "give --partition",
    "signal": "give --signal",
    "signal_delay_s": "give --signal",
    "array": "each task is a run of its own: use a batch file, as launch/srun_launch.sbatch",
    **dict.fromkeys(("ntasks", "ntasks_per_node", "output", "error", "open_mode", "setup", "teardown"), "leave it out"),
    **dict.fromkeys(
        ("srun_args", "use_srun", "additional_parameters", "map_count", "stderr_to_stdout"), "leave it out"
    ),
}
_COMMAND_S = 60
_REPORT_MIN = 60


class SubmitError(Exception):
    """The job cannot be submitted; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A launch to submit.

    Attributes:
        directory: the run directory, on a file system that all nodes share.
        script: the training script, for the job's name.
        words: `distprof launch` with all its options, as each task runs it.
        cluster: where it runs.
        nodes: nodes, with one task each.
        minutes: time limit.
        partition: SLURM's; None: its default.
        signal_s: so many seconds before the time limit the ranks are told.
        slurm: more of sbatch's options by name.
        report: whether the job makes the report.
    """

    directory: RunDirectory
    script: str
    words: list[str]
    cluster: Cluster = "slurm"
    nodes: int = 1
    minutes: int = 60
    partition: str | None = None
    signal_s: int = 60
    slurm: Mapping[str, int | str | bool] = field(default_factory=dict)
    report: bool = True

    @property
    def report_words(self) -> list[str]:
        """The command that makes the report."""
        return [sys.executable, "-m", "distprof", "report", str(self.directory.path)]

    def reported(self, job_id: str) -> Path:
        """A file that is there once the job itself has made the report."""
        return self.directory.submitted / f"{job_id}_reported"

    def script_text(self) -> str:
        """The batch script.

        Raises:
            SubmitError: SLURM's options are not what submitit takes.
        """
        executor = self._slurm_executor()
        return executor._make_submission_file_text(executor._submitit_command_str, "") + "\n"

    def submit(self) -> submitit.Job[None]:
        """Submit it; logs and pickles go to `submit/` in the run directory, which is there.

        Raises:
            SubmitError: the scheduler, or submitit, refuses it.
        """
        executor = {"slurm": self._slurm_executor, "local": self._local_executor, "debug": self._debug_executor}
        with clean_environment(), redirect_stderr(StringIO()):  # submitit prints what the scheduler says, and tells it
            try:
                return executor[self.cluster]().submit(LaunchTask(tuple(self.words)))
            except submitit.core.utils.FailedJobError as error:
                raise SubmitError(_reason(str(error))) from error

    def report_afterwards(self, job_id: str) -> str:
        """Submit a job that makes the report if the first one came to no good end, when it has ended; its id.

        Raises:
            SubmitError: the scheduler refuses it.
        """
        path = self.directory.submitted / "report.sh"
        output = shlex.quote(str(self.directory.submitted / "%j_report.out"))
        lines = ["#!/bin/bash", f"#SBATCH --job-name={shlex.quote('report-' + self._name)}", "#SBATCH --nodes=1"]
        lines += ["#SBATCH --ntasks=1", f"#SBATCH --time={_REPORT_MIN}", f"#SBATCH --output={output}"]
        lines += [f"#SBATCH --dependency=afternotok:{job_id}", "#SBATCH --kill-on-invalid-dep=yes"]
        lines += [] if self.partition is None else [f"#SBATCH --partition={shlex.quote(self.partition)}"]
        chosen = ("account", "qos")
        lines += [f"#SBATCH --{name}={shlex.quote(str(self.slurm[name]))}" for name in chosen if name in self.slurm]
        path.write_text("\n".join([*lines, "", *_UNSET, shlex.join(self.report_words), ""]))
        with clean_environment():
            return run_command(["sbatch", "--parsable", str(path)]).split(";")[0].strip()

    @property
    def _name(self) -> str:
        return Path(self.script).stem or "distprof"

    def _slurm_executor(self) -> submitit.SlurmExecutor:
        try:
            executor = submitit.SlurmExecutor(folder=self.directory.submitted, python=_PYTHON)
        except RuntimeError as error:
            raise SubmitError(
                "there is no srun here, so no SLURM: submit from a login node, or give --cluster local"
            ) from error
        known = executor._valid_parameters()
        ours = {name.replace("-", "_"): value for name, value in self.slurm.items()}
        for name in ours.keys() & _SET_HERE.keys():
            raise SubmitError(f"--slurm {name}: {_SET_HERE[name]}")
        others = {name.replace("_", "-"): value for name, value in ours.items() if name not in known}
        parameters: dict[str, Any] = {
            "job_name": self._name,
            "time": self.minutes,
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "signal_delay_s": self.signal_s,
            "wckey": "",
            "setup": list(_UNSET),
            "srun_args": ["--kill-on-bad-exit=1"],  # one node's failure ends the others, which would wait for it
            "teardown": self._teardown(),
            **({} if self.partition is None else {"partition": self.partition}),
            **{name: value for name, value in ours.items() if name in known},
            **({"additional_parameters": others} if others else {}),
        }
        if not parameters["wckey"]:
            parameters["wckey"] = None
        try:
            executor.update_parameters(**parameters)
        except (ValueError, TypeError) as error:
            raise SubmitError(f"--slurm: {error}") from error
        return executor

    def _teardown(self) -> list[str]:
        """The end of the batch script: all ranks have ended."""
        if not self.report:
            return [_KEEP_STATUS, *_PREEMPTED, "exit $status"]
        done = shlex.quote(str(self.directory.submitted)) + '/"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"_reported'
        return [_KEEP_STATUS, *_PREEMPTED, f"{shlex.join(self.report_words)} && touch {done}", "exit $status"]

    def _local_executor(self) -> submitit.LocalExecutor:
        executor = submitit.LocalExecutor(folder=self.directory.submitted)
        gpus = {name: value for name, value in self.slurm.items() if name == "gpus_per_node"}
        executor.update_parameters(timeout_min=self.minutes, signal_delay_s=self.signal_s, **gpus)
        return executor

    def _debug_executor(self) -> submitit.DebugExecutor:
        return submitit.DebugExecutor(folder=self.directory.submitted)


# A signal that comes before Python can handle it would end the task.
_PYTHON = shlex.join(["sh", "-c", 'trap \'\' USR1 USR2; exec "$0" "$@"', sys.executable])
# `srun` takes these of a job that sbatch was called in for its own orders, and fails where they name other cores; after
# `--export=NONE` its tasks would have no PATH.
_UNSET = ('unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" "${!SLURM_GPU_BIND@}" SLURM_EXPORT_ENV',)
_KEEP_STATUS = "status=$?"
# A job that ends by itself within the grace time is over for SLURM; one that is killed at its end is queued again.
_PREEMPTED = (
    'job=$(scontrol show job --oneliner "$SLURM_JOB_ID")',
    '[[ $job =~ " StartTime="([^ ]+) ]] && start=${BASH_REMATCH[1]}',
    'if [[ $job =~ " PreemptTime="([0-9][^ ]*) && ! ${BASH_REMATCH[1]} < $start ]]; then',
    '  echo "distprof: preempted; the job waits to be queued again" >&2',
    "  sleep 3600",
    "fi",
)


def _reason(text: str) -> str:
    """The scheduler's own words in what submitit or a command says, and what may help."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("sbatch:", "srun:", "scontrol:", "sacct:", "slurm"))]
    words = " ".join(told or lines[-1:])
    if "config" in words.lower() or "slurm.conf" in words:
        return f"{words} (is SLURM_CONF set, or was it hidden with a cleaned environment?)"
    return words


@contextmanager
def clean_environment() -> Iterator[None]:
    """Inside it the environment has nothing of a job that this process may run in, nor of a rank."""
    names = [
        name
        for name in os.environ
        if (name.startswith(_OF_A_JOB) and name not in _KEPT) or name in _OF_A_RANK or name.startswith("TORCHELASTIC_")
    ]
    hidden = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(hidden)


def run_command(words: list[str]) -> str:
    """What a command of the scheduler prints.

    Raises:
        SubmitError: it is not there, fails, or does not answer.
    """
    if shutil.which(words[0]) is None:
        raise SubmitError(f"there is no {words[0]} here: submit from a node that has SLURM's commands")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SubmitError(f"{words[0]} did not answer within {_COMMAND_S} s: is the SLURM controller up?") from error
    if done.returncode != 0:
        text = done.stderr.strip() or done.stdout.strip() or f"{words[0]} ended with status {done.returncode}"
        raise SubmitError(_reason(text))
    return done.stdout
