"""Who am I, in environments as the launchers leave them."""

from __future__ import annotations

import pytest

from distprof.run.identity import Identity, IdentityError, read_identity

Environment = dict[str, str]

# What a process finds in its environment, by launcher.
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "8",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "job7",
}
ALLOCATION = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
BATCH_SCRIPT = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASK_PID": "99"}
SRUN = {
    **ALLOCATION,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
SRUN_PMI2 = {**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}
SRUN_ONE_PER_NODE = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "6",
}
HYDRA_MPI = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "7"}


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        pytest.param({}, Identity(0, 0, 1, 0, "none"), id="plain"),
        pytest.param(TORCHRUN, Identity(5, 1, 8, 2, "torchrun"), id="torchrun"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, Identity(1, None, 2, 0, "environment"), id="by hand"),
        pytest.param({**TORCHRUN, "RANK": " 7 "}, Identity(7, 1, 8, 2, "torchrun"), id="spaces"),
        pytest.param({"RANK": "", "WORLD_SIZE": ""}, Identity(0, 0, 1, 0, "none"), id="empty is not set"),
        pytest.param(SRUN, Identity(3, 1, 4, 0, "slurm"), id="srun"),
        pytest.param({**SRUN, "SLURM_NTASKS": "64"}, Identity(3, 1, 4, 0, "slurm"), id="srun in a larger job"),
        pytest.param({**SRUN, "SLURM_RESTART_COUNT": "1"}, Identity(3, 1, 4, 1, "slurm"), id="requeued"),
        pytest.param(SRUN_PMI2, Identity(3, 1, 4, 0, "pmi"), id="srun --mpi=pmi2"),
        pytest.param(ALLOCATION, Identity(0, 0, 1, 0, "none"), id="salloc shell"),
        pytest.param(BATCH_SCRIPT, Identity(0, 0, 1, 0, "none"), id="batch script"),
        pytest.param(
            {**BATCH_SCRIPT, "SLURM_RESTART_COUNT": "2"}, Identity(0, 0, 1, 2, "none"), id="requeued batch script"
        ),
        pytest.param({**BATCH_SCRIPT, **TORCHRUN}, Identity(5, 1, 8, 2, "torchrun"), id="torchrun in a batch script"),
        pytest.param(OPEN_MPI, Identity(6, 2, 8, 0, "openmpi"), id="mpirun of Open MPI"),
        pytest.param({**SRUN_ONE_PER_NODE, **OPEN_MPI}, Identity(6, 2, 8, 0, "openmpi"), id="mpirun's helpers"),
        pytest.param(HYDRA_MPI, Identity(2, 0, 4, 0, "pmi"), id="mpiexec of MPICH and Intel MPI"),
    ],
)
def test_who_am_i(environment: Environment, identity: Identity) -> None:
    assert read_identity(environment) == identity


@pytest.mark.parametrize("step", [SRUN_ONE_PER_NODE, OPEN_MPI, HYDRA_MPI, SRUN], ids=["srun", "ompi", "pmi", "any"])
def test_torchrun_inside_a_step_is_one_agent_per_task_and_no_contradiction(step: Environment) -> None:
    assert read_identity({**step, **TORCHRUN}) == Identity(5, 1, 8, 2, "torchrun")
    alone = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    assert read_identity({**step, **alone}) == Identity(0, 0, 1, 2, "torchrun")


@pytest.mark.parametrize(
    ("by_hand", "identity"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4"}, Identity(3, 1, 4, 0, "environment")),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, Identity(3, 0, 4, 0, "environment")),
        ({"WORLD_SIZE": "4"}, Identity(3, 1, 4, 0, "slurm")),
        ({"RANK": "3"}, Identity(3, 1, 4, 0, "slurm")),
        ({"LOCAL_RANK": "1"}, Identity(3, 1, 4, 0, "slurm")),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, Identity(9, 1, 16, 0, "environment")),
    ],
    ids=["same", "with local rank", "world size only", "rank only", "local rank only", "a launcher per task"],
)
def test_what_agrees_with_the_step_is_no_contradiction(by_hand: Environment, identity: Identity) -> None:
    assert read_identity({**SRUN, **by_hand}) == identity


@pytest.mark.parametrize(
    ("step", "by_hand", "taken", "source"),
    [
        (SRUN, {"RANK": "1", "WORLD_SIZE": "4"}, (1, 4), "RANK"),
        (SRUN, {"RANK": "0", "WORLD_SIZE": "1"}, (3, 4), "SLURM_PROCID"),
        (SRUN, {"RANK": "1", "WORLD_SIZE": "2"}, (3, 4), "SLURM_PROCID"),
        (SRUN, {"WORLD_SIZE": "8"}, (3, 4), "SLURM_PROCID"),
        (SRUN, {"RANK": "0"}, (3, 4), "SLURM_PROCID"),
        (OPEN_MPI, {"RANK": "0", "WORLD_SIZE": "8"}, (0, 8), "RANK"),
        (HYDRA_MPI, {"RANK": "0", "WORLD_SIZE": "1"}, (2, 4), "PMI_RANK"),
        ({**SRUN, **OPEN_MPI}, {"RANK": "0", "WORLD_SIZE": "1"}, (6, 8), "OMPI_COMM_WORLD_RANK"),
    ],
)
def test_a_contradiction_says_both_sources_and_which_was_taken(
    step: Environment, by_hand: Environment, taken: tuple[int, int], source: str
) -> None:
    identity = read_identity({**step, **by_hand})
    assert (identity.rank, identity.world_size) == taken
    (warning,) = identity.warnings
    assert all(f"{name}={value}" in warning for name, value in by_hand.items())
    assert "_RANK=" in warning or "SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4" in warning
    assert warning.endswith(f"taken was rank {taken[0]} of {taken[1]}, by {source}")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "1"}, "RANK=1 does not say which rank this is: set RANK and WORLD_SIZE, or neither."),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "2"}, "WORLD_SIZE=4, LOCAL_RANK=2 does not say"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 does not say"),
        ({**BATCH_SCRIPT, "WORLD_SIZE": "4"}, "WORLD_SIZE=4 does not say"),
        ({"PMI_RANK": "1"}, "PMI_RANK=1 does not say which rank this is: set PMI_RANK and PMI_SIZE, or neither."),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "set OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or neither."),
        ({**TORCHRUN, "RANK": "x"}, "RANK='x' is not a number from 0 on: set it to one, or unset it."),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1' is not a number"),
        ({**TORCHRUN, "RANK": "1_0"}, "RANK='1_0' is not a number"),
        ({**TORCHRUN, "WORLD_SIZE": "2.0"}, "WORLD_SIZE='2.0' is not a number"),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "?"}, "TORCHELASTIC_RESTART_COUNT='?' is not a number"),
        ({**SRUN, "SLURM_PROCID": "three"}, "SLURM_PROCID='three' is not a number"),
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 does not fit WORLD_SIZE=8: ranks go from 0 to world size - 1."),
        ({**SRUN, "SLURM_PROCID": "4"}, "SLURM_PROCID=4 does not fit SLURM_STEP_NUM_TASKS=4"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 does not fit WORLD_SIZE=0"),
    ],
)
def test_no_rank_is_guessed(environment: Environment, says: str) -> None:
    with pytest.raises(IdentityError) as error:
        read_identity(environment)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_launcher_that_is_not_asked_left_does_not_matter() -> None:
    assert read_identity({**TORCHRUN, "PMI_RANK": "x", "SLURM_PROCID": ""}) == Identity(5, 1, 8, 2, "torchrun")
