"""A real SLURM: jobs that come to their end, and what clusters do to others.

The jobs that wait most of their time are started first, and looked at last.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distprof.experiment.sweep.result import read
from distprof.launcher.following import UNKNOWN, slurm_state
from tests.cluster import Cluster, Job, cluster, wait_until
from tests.launches import EXAMPLES, ROOT

pytestmark = pytest.mark.launch

RECIPES = ROOT / "launch"
TRAIN = str(ROOT / "tests" / "scripts" / "on_cluster.py")
ENDLESS = (TRAIN, "--steps", "10", "--endless-until-restart")
FAILED_NODE = "node3"
PREEMPTED_ON = "node4"
# A shell inside of another job leaks its variables, and srun would obey them.
LEAKED = {"SLURM_CPU_BIND": "quiet,mask_cpu:0xF0000", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_NTASKS": "64"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("shared")) as up:
        yield up


@dataclass(frozen=True)
class Ended:
    """Jobs that somebody ends."""

    by_time: Job
    preempted: Job
    cancelled: Job
    on_failed_node: Job


@pytest.fixture(scope="module", autouse=True)
def ended(slurm: Cluster) -> Ended:
    # Of the others no window is wanted: reports of zones alone are made sooner.
    elsewhere = ("--slurm", f"exclude={FAILED_NODE},{PREEMPTED_ON}")
    # SLURM sends the signal up to a minute early: the window that it closes is open from the start to the end.
    window = ("--schedule", "wait=0,warmup=0,active=100000", "--max-trace-mb", "none")
    zones = ("--no-window",)
    limit = ("--time", "1", "--signal", "20")
    jobs = Ended(
        by_time=slurm.submit("--run-dir", "by_time", *limit, *elsewhere, *window, *ENDLESS),
        preempted=slurm.submit("--run-dir", "preempted", *zones, "--slurm", f"nodelist={PREEMPTED_ON}", *ENDLESS),
        cancelled=slurm.submit("--run-dir", "cancelled", *zones, *elsewhere, *ENDLESS),
        on_failed_node=slurm.submit("--run-dir", "failed", *zones, "--slurm", f"nodelist={FAILED_NODE}", *ENDLESS),
    )
    for job in (jobs.preempted, jobs.cancelled, jobs.on_failed_node):
        job.wait_until_under_way()
    time.sleep(1.5)  # up to a second of zones is lost
    slurm.batch("--partition", "high", "--nodelist", PREEMPTED_ON, "--exclusive", "--wrap", "true")
    slurm.run("scancel", jobs.cancelled.job_id)
    slurm.fail(FAILED_NODE)
    wait_until(lambda: slurm.state(jobs.on_failed_node.job_id) != "RUNNING", 30, jobs.on_failed_node.log)
    slurm.repair(FAILED_NODE)
    return jobs


def ranks(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["host"], row["status"]) for row in report["ranks"]]


def not_observed(report: dict[str, Any]) -> str:
    return "\n".join(f"{row['what']}: {row['reason']}" for row in report["not_observed"])


def test_a_straggler_on_the_second_node_is_named(slurm: Cluster) -> None:
    script = (str(EXAMPLES / "slow_backward.py"), "--slow-rank", "3", "--steps", "25")
    options = ("--run-dir", "straggler", "--slurm", f"exclude={PREEMPTED_ON}")
    done = slurm.run(str(RECIPES / "submit.sh"), *options, *script, NPROC="2", PARTITION="main", **LEAKED)
    assert done.returncode == 0, done.stderr
    report = json.loads((slurm.folder / "straggler" / "report.json").read_text())
    hosts = [row["host"] for row in report["ranks"]]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert [row["status"] for row in report["ranks"]] == ["complete"] * 4
    assert [(row["rank"], row["cause"]) for row in report["stragglers"]["ranks"]] == [(3, "backward")]
    assert report["clock"]["verdict"] in ("aligned", "same_host")
    assert "Rank 3 holds the others up" in done.stdout  # the job's own report, in its log
    assert len(list((slurm.folder / "straggler" / "submit").glob("*_reported"))) == 1
    assert "COMPLETED" in done.stderr


def test_one_killed_rank_ends_the_others_and_is_named(slurm: Cluster) -> None:
    words = ("--nodes", "2", "--wait", "--no-window", "--run-dir", "killed", "--slurm", f"exclude={PREEMPTED_ON}")
    done = slurm.run("distprof", "submit", *words, TRAIN, "--steps", "100000", "--killed-at", "40")
    assert done.returncode == 128 + 9, done.stderr
    run = slurm.folder / "killed"
    report = json.loads((run / "report.json").read_text())
    assert report["ranks"][1]["reason"] == "it was killed by SIGKILL"
    assert report["ranks"][1]["status"] == "partial"
    assert report["steps"]["per_rank"][0]["count"] > 30
    nodes = [json.loads(path.read_text()) for path in (run / "nodes").iterdir()]
    assert sorted(node["attempts"][0]["node_rank"] for node in nodes) == [0, 1]  # neither overwrote the other's account
    failures = [failure for node in nodes for failure in node["ended"]["failures"].items()]
    assert [rank for rank, failure in failures if failure["exit_code"] == -9] == ["1"]


def test_each_task_of_an_array_is_a_run_of_its_own(slurm: Cluster) -> None:
    words = ("--array", "0-1", "--nodes", "2", "--exclude", PREEMPTED_ON, str(RECIPES / "srun_launch.sbatch"))
    array = slurm.batch(*words, "--no-window", TRAIN, NPROC="1")
    assert slurm.wait_for_end(array) == "COMPLETED", [path.read_text() for path in slurm.folder.glob("slurm-*.out")]
    runs = [slurm.folder / "distprof-runs" / f"slurm-{array}_{task}" for task in (0, 1)]
    ids = set()
    for run in runs:
        report = json.loads((run / "report.json").read_text())
        hosts = [host for host, _ in ranks(report)]
        assert hosts == sorted(set(hosts))  # ranks are numbered over the hosts
        assert [row["status"] for row in report["ranks"]] == ["complete"] * 2
        ids.add(report["run"]["id"])
    assert len(ids) == 2


def test_a_sweep_is_an_array_of_jobs_that_alternate_with_the_baseline_on_their_own_host(slurm: Cluster) -> None:
    few = ("--nproc", "1", "--out", "swept", "--repeats", "1", "--steps", "6", "--warmup", "4", "measure.explain=false")
    # A job asks for all cores of a node, so that two are on two nodes.
    launcher = ("timeout_min=5", "cpus_per_task=8", f"exclude={PREEMPTED_ON}")
    jobs = ("hydra/launcher=submitit_slurm", *(f"hydra.launcher.{word}" for word in launcher))
    script = (str(ROOT / "tests" / "scripts" / "planted.py"), "--decode-ms", "60", "--work-ms", "60")
    done = slurm.run("distprof", "sweep", *few, *jobs, "loader.num_workers=0,2", *script, timeout_s=420, **LEAKED)
    out = slurm.folder / "swept"
    logs = [path.read_text() for path in (out / "hydra" / ".submitit").rglob("*.err")]
    assert done.returncode == 0, (done.stderr, logs)
    array, *tasks = sorted(path.name for path in (out / "hydra" / ".submitit").iterdir() if path.is_dir())
    assert tasks == [f"{array}_0", f"{array}_1"]
    found = read(out)
    baseline, none, two = found.points
    assert (found.order, found.world_size, [len(point.steps) for point in found.points]) == ("apart", 1, [2, 1, 1])
    assert none.ratio is not None
    assert two.ratio is not None
    assert two.ratio.estimate < 0.8 * none.ratio.estimate
    hosts = {none.hosts[0]: none.name, two.hosts[0]: two.name}
    assert set(hosts) < {"node1", "node2", "node3"}
    assert baseline.hosts == sorted(hosts)
    assert [(row.host, row.points, row.repeats) for row in found.hosts] == [(h, [hosts[h]], 1) for h in sorted(hosts)]
    assert {path.name for path in (out / "jobs").glob(".*.lock")} == {f".{host}.lock" for host in hosts}
    told = " ".join(done.stdout.split())
    assert "Measured on 2 hosts" in told
    assert all(host in told and host in (out / "sweep.html").read_text() for host in hosts)
    runs = list((out / "jobs").glob("*/measured/runs/*"))
    assert len(runs) == 4
    for run in runs:
        facts = json.loads((run / "attempt0" / "rank00000.json").read_text())
        (node,) = (json.loads(path.read_text()) for path in (run / "nodes").iterdir())
        assert (facts["world_size"], facts["problems"]) == (1, [])
        assert facts["host"] == node["host"] == node["scheduler"]["host"]
        assert node["scheduler"]["job"] in tasks


def test_a_task_for_each_rank(slurm: Cluster) -> None:
    words = ("--nodes", "2", "--ntasks-per-node", "1", "--exclude", PREEMPTED_ON, str(RECIPES / "srun_ranks.sbatch"))
    job = slurm.batch(*words, TRAIN)
    assert slurm.wait_for_end(job) == "COMPLETED", (slurm.folder / f"slurm-{job}.out").read_text()
    run = slurm.folder / "distprof-runs" / f"slurm-{job}"
    report = json.loads((run / "report.json").read_text())
    assert [row["status"] for row in report["ranks"]] == ["complete"] * 2
    assert len({row["host"] for row in report["ranks"]}) == 2
    facts = json.loads((run / "attempt0" / "rank00001.json").read_text())
    assert facts["problems"] == []


def test_a_node_says_what_it_can_observe(slurm: Cluster) -> None:
    done = slurm.run("srun", "--nodes", "1", "--exclude", PREEMPTED_ON, "distprof", "doctor")
    assert done.returncode == 0, done.stderr
    assert "yes SLURM sbatch, srun and accounting work" in " ".join(done.stdout.split())


def test_a_job_that_cannot_be_is_refused_with_the_schedulers_words(slurm: Cluster) -> None:
    done = slurm.run("distprof", "submit", "--partition", "none-such", "--run-dir", "refused", TRAIN)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
    assert done.stderr.count("\n") == 1
    hidden = slurm.run("distprof", "submit", "--run-dir", "hidden", TRAIN, SLURM_CONF="/dev/null")
    assert hidden.returncode == 2
    assert "SLURM_CONF" in hidden.stderr
    assert hidden.stderr.count("\n") == 1


def test_a_cancelled_job_is_reported_afterwards(ended: Ended) -> None:
    job = ended.cancelled
    report = job.report()
    assert job.cluster.state(job.job_id) == "CANCELLED"
    assert job.cluster.wait_for_end(job.after) == "COMPLETED"
    assert [row["status"] for row in report["ranks"]] == ["partial"]
    assert "cut off at step" in report["ranks"][0]["reason"]
    assert "the scheduler sent SIGTERM" in not_observed(report)
    assert report["steps"]["per_rank"][0]["count"] > 0


def test_a_preempted_job_is_queued_again_and_its_first_attempt_is_kept(ended: Ended) -> None:
    job = ended.preempted
    report = job.report()
    assert job.cluster.state(job.job_id) == "COMPLETED"
    assert (report["run"]["attempt"], report["run"]["attempts"]) == (1, [0, 1])
    assert [row["status"] for row in report["ranks"]] == ["complete"]
    assert report["steps"]["per_rank"][0]["count"] + 1 <= 10
    assert "attempt0: an earlier attempt: the scheduler ended it (SIGTERM)" in not_observed(report)
    first, second = (json.loads((job.run / f"attempt{n}" / "rank00000.json").read_text()) for n in (0, 1))
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert first["status"] == "running"
    assert first["pid"] != second["pid"]
    wait_until(lambda: job.after not in job.cluster.run("squeue", "-h", "-o", "%i").stdout.split(), 30, job.after)


def test_a_job_whose_node_failed_is_queued_again_and_its_first_attempt_is_kept(ended: Ended) -> None:
    job = ended.on_failed_node
    report = job.report()
    assert job.cluster.state(job.job_id) == "COMPLETED"
    assert (report["run"]["attempt"], report["run"]["attempts"]) == (1, [0, 1])
    assert [row["status"] for row in report["ranks"]] == ["complete"]
    assert "attempt0: an earlier attempt" in not_observed(report)
    first = json.loads((job.run / "attempt0" / "rank00000.json").read_text())
    assert (first["attempt"], first["status"]) == (0, "running")
    assert (job.run / "attempt0" / "rank00000.zones.jsonl").stat().st_size > 0


def test_without_accounting_a_job_that_slurm_forgot_is_not_waited_for(
    slurm: Cluster, ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = "1"
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    assert "its accounting does not know it" in slurm_state(never).reason
    kept = Path(slurm.environment["SLURM_CONF"]).read_text()
    none = re.sub(r"^AccountingStorage(?!Type).*\n", "", kept, flags=re.MULTILINE)
    without = tmp_path / "slurm.conf"
    without.write_text(none.replace("accounting_storage/slurmdbd", "accounting_storage/none"))
    monkeypatch.setenv("SLURM_CONF", str(without))
    assert slurm_state(ended.cancelled.job_id).name in ("CANCELLED", "COMPLETING")  # the controller knows
    forgotten = slurm_state(never)
    assert forgotten.name == UNKNOWN
    assert "keeps no accounting" in forgotten.reason
    told = slurm.run("distprof", "doctor", SLURM_CONF=str(without)).stdout
    assert "ask for slurmdbd" in " ".join(told.split())


def test_before_its_time_is_over_a_job_is_told_and_says_where_it_was_cut_off(ended: Ended) -> None:
    job = ended.by_time
    report = job.report()
    assert job.cluster.state(job.job_id) == "TIMEOUT"
    (row,) = report["ranks"]
    assert row["status"] == "partial"
    assert "cut off at step" in row["reason"]
    assert "SIGUSR2" in row["reason"]
    facts = json.loads((job.run / "attempt0" / "rank00000.json").read_text())
    assert facts["told"]["signal"] == "SIGUSR2"
    steps = report["steps"]["per_rank"][0]["count"]
    assert steps > facts["told"]["boundary"]  # it trained on until the end
    for window in facts["windows"]:
        assert window["end_unix_ns"] is not None
        assert "the scheduler was about to end the job" in window["reason"]
        assert list(Path(job.run / "attempt0").glob("*.pt.trace.json*"))
