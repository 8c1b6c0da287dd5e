"""Launches that are told to end at any moment, and many in a row: no process is left, and what was recorded is whole.

DISTPROF_SOAK_LAUNCHES says how many there are in a row; 200 by default, which takes about half an hour.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distprof.run.directory import RunDirectory
from tests.conftest import Tell, skip_but_in_ci
from tests.launches import ROOT, report
from tests.running import job

pytestmark = [pytest.mark.soak, pytest.mark.launch]

SCRIPTS = ROOT / "tests" / "scripts"
SMALL = ("--standalone", "--nproc-per-node", "2", "--schedule", "wait=2,warmup=1,active=6")
STEPS = (str(SCRIPTS / "steps.py"), "--steps", "60", "--pause-ms", "20")
MOMENTS = 10
LAUNCHES = int(os.environ.get("DISTPROF_SOAK_LAUNCHES") or 200)
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(scope="module")
def usual_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the launch takes when nobody disturbs it, in s."""
    begin = time.monotonic()
    with job("distprof", "launch", "--run-dir", str(tmp_path_factory.mktemp("usual") / "run"), *SMALL, *STEPS) as ours:
        assert ours.end() == 0, ours.output
    return time.monotonic() - begin


def torchruns_status(number: signal.Signals, *, under_way: bool) -> int:
    """How torchrun ends that gets a signal before it has started its ranks, or while they train."""
    with job("torch.distributed.run", "--standalone", "--nproc-per-node", "2", *STEPS[:1], "--steps", "2000") as plain:
        if under_way:
            plain.wait_until("is under way", 2)
        else:
            time.sleep(0.5)
        os.killpg(plain.launcher.pid, number)
        return plain.end()


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_a_signal_at_any_moment(
    number: signal.Signals, *, usual_s: float, tmp_path: Path, seed: int, tell: Tell
) -> None:
    before, under_way = (torchruns_status(number, under_way=whether) for whether in (False, True))
    draw = random.Random(f"{seed} {number}")
    tell(f"seed {seed}; torchrun ends with {before} before its ranks, with {under_way} while they train")
    for place in range(MOMENTS):
        run_dir, moment = tmp_path / str(place), draw.uniform(0.2, usual_s)
        with job("distprof", "launch", "--run-dir", str(run_dir), *SMALL, *STEPS) as ours:
            time.sleep(moment)
            os.killpg(ours.launcher.pid, number)
            status = ours.end()
            left = ours.alive()
        assert left == {}, (place, seed)
        recorded = RunDirectory(run_dir).ranks(0)
        trained = has_ended_well(run_dir)
        allowed = {under_way} if recorded else {before, under_way}
        if trained:
            allowed |= {0, -number}  # while Python itself ends, a signal kills it, as it would torchrun
        assert status in allowed, (place, seed, ours.output)
        made = (run_dir / "report.json").exists()
        half = check_files(run_dir)
        told = check_report(run_dir, recorded=bool(recorded))
        tell(
            f"{number.name} after {moment:.2f} of {usual_s:.1f} s: exit {status}, {len(recorded)} ranks recorded, "
            f"{'a report' if made else 'no report'} left; {half} temporary files; report later: {told}"
        )


def has_ended_well(run_dir: Path) -> bool:
    """Whether the training came to its end: the signal met what comes after it, or got lost, as a Ctrl-C now and then
    does while torch is imported, under torchrun as well."""
    manifest = run_dir / "run.json"
    ended = json.loads(manifest.read_text())["ended"] if manifest.exists() else None
    return ended is not None and ended["error"] is None


def check_files(run_dir: Path) -> int:
    """Each file that has its name is whole; how many have a temporary one."""
    temporary = 0
    for path in (path for path in run_dir.rglob("*") if path.is_file()):
        if path.suffix == ".tmp":
            temporary += 1
        elif path.suffix == ".jsonl":
            whole, _, _ = path.read_text().rpartition("\n")
            assert all(isinstance(json.loads(line), dict) for line in whole.splitlines()), path
        elif path.suffix == ".json":
            if path.parent.name != "digest":
                json.loads(path.read_bytes())
        elif path.suffix == ".gz":
            json.loads(gzip.decompress(path.read_bytes()))
    return temporary


def check_report(run_dir: Path, *, recorded: bool) -> str:
    """The report can be made, or it is clear why not."""
    done = report(run_dir, "--json", "-")
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert (done.returncode, recorded) == (2, False), done.stderr
        [line] = done.stderr.splitlines()
        assert any(text in line for text in ("no rank came far enough", "has no run.json", "does not exist"))
        return line.rpartition(": ")[2]
    result = json.loads(done.stdout)
    assert not any(str(row["trace"]).endswith(".tmp") for row in result["ranks"])
    return f"{', '.join(row['status'] for row in result['ranks'])}, {result['steps']['steady']['count']} steady steps"


def test_launches_in_a_row_leave_nothing(tell: Tell) -> None:
    """In a namespace of their own, so that nothing else there is theirs: processes, sockets, shared memory, /tmp."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        skip_but_in_ci("namespaces need root, unshare (Debian: util-linux) and ip (Debian: iproute2)")
    alone = ["unshare", "--net", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    hidden = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up"
    if not any(path.is_relative_to("/tmp") for path in (ROOT, Path(sys.prefix))):
        hidden += " && mount -t tmpfs tmpfs /tmp"
    driver = [sys.executable, str(SCRIPTS / "launches_in_a_row.py"), str(LAUNCHES)]
    begin = time.monotonic()
    done = subprocess.run(
        [*alone, "sh", "-c", f'{hidden} && exec "$@"', "sh", *driver],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    told = json.loads(done.stdout)
    each_s = (time.monotonic() - begin) / told["launches"]
    tell(
        f"{told['launches']} launches in a row, {each_s:.1f} s each; left afterwards: "
        f"{', '.join(f'{len(names)} {what}' for what, names in told['left'].items())}, beside what torchrun "
        f"leaves at each launch: {', '.join(told['torchruns']) or 'nothing'}"
    )
    assert not any(told["left"].values()), told["left"]
    assert told["launches"] == LAUNCHES
