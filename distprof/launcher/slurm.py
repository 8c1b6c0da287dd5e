"""SLURM as a launch finds it: the job and the step it runs in, and what follows for its rendezvous."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Ports below those that the system hands out by itself; steps of a job get one each.
_FIRST_PORT, _PORTS, _STEPS = 20000, 12000, 16
_TORCHRUN_DEFAULTS = {
    "nnodes": "1:1",
    "node_rank": 0,
    "rdzv_backend": "static",
    "rdzv_endpoint": "",
    "master_addr": "127.0.0.1",
    "master_port": None,
    "standalone": False,
}


class SlurmError(ValueError):
    """The environment of a SLURM job contradicts itself; the message names the variable and the remedy."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The SLURM job that this process runs in.

    Attributes:
        job_id: its id; of an array's task the task's own.
        name: a name for it: the job's id, of an array's task `<array>_<task>`.
        restarts: how often it was requeued.
        step: the step's number; None in the batch script itself.
        task: this task's number in the step.
        tasks: tasks of the step.
        first_host: the host of task 0.
        host: SLURM's name of this task's host.
    """

    job_id: int
    name: str
    restarts: int = 0
    step: int | None = None
    task: int = 0
    tasks: int = 1
    first_host: str = ""
    host: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SlurmJob | None:
        """Read it from the environment; None outside of SLURM.

        Raises:
            SlurmError: a variable is no number, or a step does not say who is in it.
        """
        if not environment.get("SLURM_JOB_ID"):
            return None
        job_id = _number(environment, "SLURM_JOB_ID")
        array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        name = f"{array}_{index}" if array and index else str(job_id)
        restarts = _number(environment, "SLURM_RESTART_COUNT", 0)
        host = environment.get("SLURMD_NODENAME", "")
        # A batch script has SLURM_PROCID and SLURM_NTASKS, too, and is no step.
        if not environment.get("SLURM_STEP_NUM_TASKS"):
            return cls(job_id, name, restarts, host=host)
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        if not nodes:
            raise SlurmError(
                "SLURM_STEP_NODELIST is not set in a SLURM step: was the environment cleaned? Keep SLURM_*"
            )
        return cls(
            job_id,
            name,
            restarts,
            step=_number(environment, "SLURM_STEP_ID", 0),
            task=_number(environment, "SLURM_PROCID"),
            tasks=_number(environment, "SLURM_STEP_NUM_TASKS"),
            first_host=first_host(nodes),
            host=host,
        )

    def run_id(self, run_dir: Path, *, alone: bool = False) -> str:
        """An id that all nodes and restarts of a launch share, and no other launch of the job.

        A batch script, and a task that is `alone`, may launch several times, each time into another directory.
        """
        step = "" if self.step is None else f".{self.step}"
        where = f"-{hashlib.sha256(bytes(run_dir)).hexdigest()[:8]}" if alone or self.step is None else ""
        return f"slurm-{self.job_id}{step}{self._task(alone)}{where}"

    def folder_name(self, *, alone: bool = False) -> str:
        """What a run of it is called where the user gives no directory; the same on all nodes and after a requeue."""
        return f"slurm-{self.name}" + (f".{self.step}" if self.step else "") + self._task(alone)

    def _task(self, alone: bool) -> str:
        return f".task{self.task}" if alone and self.tasks > 1 else ""

    @property
    def port(self) -> int:
        """A port for the rendezvous, the same on all nodes."""
        return _FIRST_PORT + (self.job_id * _STEPS + (self.step or 0)) % _PORTS

    def facts(self) -> dict[str, str]:
        """Its ids, for the records."""
        step = {} if self.step is None else {"step": str(self.step), "task": str(self.task)}
        return {"name": "slurm", "job": self.name, "restarts": str(self.restarts), "host": self.host, **step}


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise SlurmError(
            f"{name}={text!r} is not a number from 0 on: SLURM sets it; unset SLURM_JOB_ID outside of SLURM"
        )
    return int(text)


def first_host(nodes: str) -> str:
    """The first host of SLURM's list: `node01` of `node[01-04,7],other`."""
    first, depth = "", 0
    for position, character in enumerate(nodes):
        if character == "[":
            depth = 1
            first += re.split(r"[-,\]]", nodes[position + 1 :], maxsplit=1)[0]
        elif character == "]":
            depth = 0
        elif depth == 0:
            if character == ",":
                break
            first += character
    return first


def settle(arguments: argparse.Namespace, job: SlurmJob | None) -> bool:
    """Let torchrun's options, where none says otherwise, mean the step: an agent per task, and a rendezvous on the host
    of the first. A static one, unless it may have to take place again: torch needs a backend for that.

    Returns:
        Whether they were set.
    """
    if job is None or job.tasks < 2:
        return False
    if any(getattr(arguments, name) != default for name, default in _TORCHRUN_DEFAULTS.items()):
        return False
    arguments.nnodes = str(job.tasks)
    if arguments.max_restarts == 0:
        arguments.node_rank, arguments.master_addr, arguments.master_port = job.task, job.first_host, job.port
    else:
        arguments.rdzv_backend, arguments.rdzv_endpoint = "c10d", f"{job.first_host}:{job.port}"
        conf = f"is_host={int(job.task == 0)}"
        arguments.rdzv_conf = f"{arguments.rdzv_conf},{conf}" if arguments.rdzv_conf else conf
    if arguments.rdzv_id == "none":
        arguments.rdzv_id = f"slurm-{job.job_id}.{job.step}"
    return True
