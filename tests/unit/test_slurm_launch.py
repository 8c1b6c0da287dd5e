"""What a launch takes from SLURM's environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from distprof.cli.launch import build_parser
from distprof.launcher.slurm import SlurmError, SlurmJob, first_host, settle

RUN = Path("/runs/a")
JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[08-11]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "node08",
}
STEP = {
    **JOB,
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node[09,11]",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "node11",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[1-4]", "node1"),
        ("node[01-04,7],other", "node01"),
        ("node[007,2]", "node007"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]node[3-4]", "rack1node3"),
        ("gpu[3]-ib.cluster,x", "gpu3-ib.cluster"),
    ],
)
def test_the_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_outside_of_slurm_there_is_no_job() -> None:
    assert SlurmJob.of({}) is None
    assert SlurmJob.of({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_a_batch_script_is_no_step() -> None:
    job = SlurmJob.of(JOB)
    assert job == SlurmJob(4711, "4711", host="node08")
    assert job.folder_name() == "slurm-4711"
    ids = [job.run_id(Path(path)) for path in ("/runs/a", "/runs/b", "/runs/a")]  # two launches, and a requeue
    assert ids[0] == ids[2] != ids[1]
    assert all(each.startswith("slurm-4711-") for each in ids)


def test_a_step() -> None:
    job = SlurmJob.of({**STEP, "SLURM_RESTART_COUNT": "1"})
    assert job == SlurmJob(4711, "4711", 1, step=2, task=1, tasks=2, first_host="node09", host="node11")
    assert (job.run_id(RUN), job.folder_name()) == ("slurm-4711.2", "slurm-4711.2")
    assert job.folder_name(alone=True) == "slurm-4711.2.task1"  # each task trains for itself
    alone = [job.run_id(Path(path), alone=True) for path in ("/runs/a", "/runs/b")]  # and may do so several times
    assert len(set(alone)) == 2
    assert all(each.startswith("slurm-4711.2.task1-") for each in alone)
    other = SlurmJob.of({**STEP, "SLURM_STEP_ID": "3"})
    assert other is not None
    assert 20000 <= job.port < 32000
    assert job.port != other.port
    assert job.facts() == {
        "name": "slurm",
        "job": "4711",
        "restarts": "1",
        "host": "node11",
        "step": "2",
        "task": "1",
    }


def test_tasks_of_an_array_have_ids_and_names_of_their_own() -> None:
    tasks = [
        SlurmJob.of({**JOB, "SLURM_JOB_ID": str(4711 + n), "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": str(n)})
        for n in (0, 1)
    ]
    assert len({task and task.run_id(RUN) for task in tasks}) == 2
    assert [task and task.folder_name() for task in tasks] == ["slurm-4711_0", "slurm-4711_1"]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({**JOB, "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x' is not a number"),
        ({**STEP, "SLURM_PROCID": ""}, "SLURM_PROCID='' is not a number"),
        ({**STEP, "SLURM_RESTART_COUNT": "-1"}, "SLURM_RESTART_COUNT='-1'"),
        ({**STEP, "SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, "was the environment cleaned"),
    ],
)
def test_what_contradicts_itself_is_an_error(environment: dict[str, str], says: str) -> None:
    with pytest.raises(SlurmError, match=says):
        SlurmJob.of(environment)


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args([*words, "train.py"])


def test_a_step_is_a_job_of_torchrun_with_an_agent_per_task() -> None:
    job = SlurmJob.of(STEP)
    assert job is not None
    arguments = parsed("--nproc-per-node", "4")
    assert settle(arguments, job)
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("2", 1, "4")
    assert (arguments.master_addr, arguments.master_port, arguments.rdzv_backend) == ("node09", job.port, "static")
    assert arguments.rdzv_id == "slurm-4711.2"


def test_where_it_may_start_anew_all_agents_ask_one_store() -> None:
    job = SlurmJob.of(STEP)
    assert job is not None
    arguments = parsed("--max-restarts", "2", "--rdzv-conf", "timeout=60", "--rdzv-id", "mine")
    assert settle(arguments, job)
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("c10d", f"node09:{job.port}")
    assert (arguments.rdzv_conf, arguments.rdzv_id) == ("timeout=60,is_host=0", "mine")


@pytest.mark.parametrize(
    "words",
    [
        ("--standalone",),
        ("--nnodes", "2"),
        ("--node-rank", "1"),
        ("--master-addr", "x"),
        ("--master-port", "1"),
        ("--rdzv-backend", "c10d"),
        ("--rdzv-endpoint", "x:1"),
    ],
)
def test_what_the_user_says_is_kept(words: tuple[str, ...]) -> None:
    arguments, untouched = parsed(*words), parsed(*words)
    assert not settle(arguments, SlurmJob.of(STEP))
    assert arguments == untouched


def test_a_single_task_and_a_batch_script_stay_as_they_are() -> None:
    arguments, untouched = parsed(), parsed()
    for environment in ({}, JOB, {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}):
        assert not settle(arguments, SlurmJob.of(environment))
    assert arguments == untouched
