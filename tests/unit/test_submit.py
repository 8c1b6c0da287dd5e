"""`distprof submit` without a scheduler: its batch script, what it refuses, following, and what a job inherits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.cli import submit as cli
from distprof.launcher import following
from distprof.launcher.following import UNKNOWN, Log, State, follow, parse_accounting, parse_job, slurm_state
from distprof.launcher.submit import SubmitError, clean_environment, run_command
from distprof.launcher.task import LaunchFailed, LaunchTask
from tests.unit.slurm import command


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands on PATH, with an srun; submitit looks for it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    command(folder, "srun", "exit 1")
    return folder


def batch_script(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["--dry-run", *words]) == 0
    return capsys.readouterr().out


def test_the_batch_script(srun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "a run"
    words = ["--nodes", "2", "--nproc", "4", "--partition", "gpu", "--time", "90", "--signal", "120"]
    words += [
        "--slurm",
        "gpus_per_node=4",
        "--slurm",
        "account=lab",
        "--slurm",
        "gpu-bind=none",
        "--slurm",
        "exclusive=true",
    ]
    text = batch_script(*words, "--run-dir", str(run), "train.py", "--nodes", "7", capsys=capsys)
    lines = text.splitlines()
    for option in (
        "account=lab",
        "exclusive",
        "gpu-bind=none",
        "gpus-per-node=4",
        "job-name=train",
        "nodes=2",
        "ntasks-per-node=1",
        "open-mode=append",
        "partition=gpu",
        "signal=USR2@120",
        "time=90",
    ):
        assert f"#SBATCH --{option}" in lines
    assert "wckey" not in text
    assert 'unset "${!SLURM_CPU_BIND@}"' in text
    assert "--kill-on-bad-exit=1" in text
    assert f"-m distprof report '{run}' && touch '{run}/submit'/" in text
    assert lines[-1] == "exit $status"
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True).stderr == ""
    assert list(tmp_path.iterdir()) == [srun]  # nothing was made
    without = batch_script("--no-report", "train.py", capsys=capsys)
    assert "distprof report" not in without
    assert without.splitlines()[-1] == "exit $status"


TOLD = "JobId=1 JobName=x {}EligibleTime=2026-11-30T10:00:00 StartTime=2026-11-30T10:00:01 EndTime=Unknown {}"


@pytest.mark.parametrize(
    ("told", "preempted"),
    [
        (TOLD.format("", "PreemptEligibleTime=2026-11-30T10:00:01 PreemptTime=None"), False),
        (TOLD.format("", "PreemptEligibleTime=2026-11-30T10:00:01 PreemptTime=2026-11-30T10:05:00"), True),
        (TOLD.format("", "PreemptTime=2026-11-30T09:05:00"), False),  # before it was queued again
        ("slurm_load_jobs error: Unable to contact slurm controller", False),
    ],
)
@pytest.mark.parametrize("status", [0, 3])
def test_the_end_of_the_batch_script_keeps_the_status_and_waits_where_the_job_is_preempted(
    told: str, preempted: bool, status: int, *, srun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = batch_script("--run-dir", str(tmp_path / "run"), "train.py", capsys=capsys)
    (tmp_path / "run" / "submit").mkdir(parents=True)
    command(srun, "srun", f"exit {status}")
    command(srun, "scontrol", f"echo '{told}'")
    command(srun, "sleep", "echo asleep")
    command(srun, "report", 'echo "report $*"')
    script = text.replace(f"{sys.executable} -m distprof report", "report")
    assert script != text
    done = subprocess.run(
        ["bash"], input=script, text=True, capture_output=True, env={**os.environ, "SLURM_JOB_ID": "1"}, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("asleep" in done.stdout) is preempted
    assert f"report {tmp_path / 'run'}" in done.stdout
    assert (tmp_path / "run" / "submit" / "1_reported").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nnodes", "2", "x.py"], "--nnodes is set by the job: give --nodes"),
        (["--standalone", "x.py"], "--standalone is set by the job"),
        (["--cluster", "local", "--nodes", "2", "x.py"], "--cluster local is this machine alone"),
        (["--nodes", "0", "x.py"], "'0' is not a whole number above 0"),
        (["--slurm", "gpus", "x.py"], "'gpus' is not KEY=VALUE"),
        (["--part", "gpu", "x.py"], "unrecognized arguments: --part"),
        (["--dry-run", "--set", "nothing=1", "x.py"], "there is no setting 'nothing'"),
        (["--dry-run", "--slurm", "time=5", "x.py"], "--slurm time: give --time"),
        (["--dry-run", "--slurm", "array=0-3", "x.py"], "each task is a run of its own"),
        (["--dry-run", "--slurm", "open-mode=truncate", "x.py"], "--slurm open_mode: leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: list[str], says: str, srun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert says in told.err
    assert told.err.count("\n") == 1


def test_without_slurm_it_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main(["--run-dir", str(tmp_path / "run"), "x.py"])
    assert "there is no srun here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_job_inherits_nothing_of_the_one_it_is_submitted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    leaked = (
        "SLURM_CPU_BIND",
        "SLURM_JOB_ID",
        "SLURMD_NODENAME",
        "SRUN_DEBUG",
        "RANK",
        "TORCHELASTIC_RUN_ID",
        "PMI_RANK",
    )
    kept = ("SLURM_CONF", "SBATCH_ACCOUNT", "OMP_NUM_THREADS")
    for name in (*leaked, *kept):
        monkeypatch.setenv(name, "1")
    with clean_environment():
        assert [name for name in leaked if name in os.environ] == []
        assert [name for name in kept if name not in os.environ] == []
    assert all(os.environ[name] == "1" for name in leaked)


def test_a_task_hands_signals_on_and_fails_with_its_launch(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    LaunchTask(("sh", "-c", f"touch {mark}; test $DISTPROF_SCHEDULED = 1"))()
    assert mark.exists()
    with pytest.raises(LaunchFailed, match="it ended with status 3"):
        LaunchTask(("sh", "-c", "exit 3"))()
    # The parent is the task; what it gets, its launch gets, though that is in a process group of its own.
    waits = "trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"
    with pytest.raises(LaunchFailed, match="it ended with status 5"):
        LaunchTask(("sh", "-c", waits))()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("JobId=7 JobState=PENDING Reason=Resources Dependency=(null)", State("PENDING", "Resources")),
        ("JobId=7 JobState=RUNNING Reason=None", State("RUNNING")),
        ("JobId=7 JobState=NODE_FAIL", State("NODE_FAIL")),
        ("", None),
    ],
)
def test_the_controllers_word(text: str, state: State | None) -> None:
    assert parse_job(text) == state


def test_the_accountings_word() -> None:
    assert parse_accounting("CANCELLED by 0\n") == State("CANCELLED")
    assert parse_accounting("") is None
    assert State("CANCELLED").is_end
    assert not State("REQUEUED").is_end


def test_a_job_that_slurm_forgot_is_asked_of_the_accounting(srun: Path) -> None:
    command(srun, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command(srun, "sacct", "echo TIMEOUT")
    assert slurm_state("7") == State("TIMEOUT")


def test_without_accounting_the_end_is_not_known_and_nobody_waits(srun: Path) -> None:
    command(srun, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command(srun, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    told: list[str] = []
    last = follow(lambda: slurm_state("7"), [], told.append, poll_s=0.0)
    assert last.name == UNKNOWN
    assert "keeps no accounting: Slurm accounting storage is disabled" in last.reason
    assert told == [str(last)]


def test_a_controller_that_does_not_answer_is_not_waited_for_for_ever(
    srun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SILENCES", 3)
    command(srun, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    last = follow(lambda: slurm_state("7"), [], lambda _: None, poll_s=0.0)
    assert last == State(UNKNOWN, "Unable to contact slurm controller")


def states(*names: str) -> Iterator[State]:
    yield from (State(name) for name in names)


def test_the_state_is_told_when_it_changes_and_logs_are_copied_whole(tmp_path: Path) -> None:
    path, copied, told = tmp_path / "log", [], []
    coming = states("PENDING", "PENDING", "RUNNING", "PREEMPTED", "PENDING", "RUNNING", "COMPLETED")

    def state() -> State:
        with path.open("a") as file:
            file.write("line\n")
        return next(coming)

    logs = [Log(path, copied.append), Log(tmp_path / "never", copied.append)]
    assert follow(state, logs, told.append, poll_s=0.0) == State("COMPLETED")
    assert told == ["PENDING", "RUNNING", "PREEMPTED", "PENDING", "RUNNING", "COMPLETED"]
    assert "".join(copied) == "line\n" * 7


def test_a_preempted_job_that_is_not_queued_again_is_over() -> None:
    assert follow(lambda: State("PREEMPTED"), [], lambda _: None, poll_s=0.0) == State("PREEMPTED")


def test_a_command_of_the_scheduler(srun: Path) -> None:
    command(srun, "squeue", "echo 1")
    assert run_command(["squeue"]) == "1\n"
    with pytest.raises(SubmitError, match="there is no squint here"):
        run_command(["squint"])
    command(srun, "sinfo", "echo 'sinfo: error: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(SubmitError, match="is SLURM_CONF set"):
        run_command(["sinfo"])
