"""Several files are read at once; results and errors are those of reading one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from distprof.cli.progress import ReadingBar
from distprof.trace.workers import Advance, read_each
from tests.conftest import ROOT
from tests.worlds.devices import write_device_traces

# In a process of its own: in one in which polars has computed no fork is made.
_SCRIPT = """
import os, sys
from functools import partial
from distprof.trace.workers import read_each
from tests.unit.test_workers import of_item
told = []
outcomes = read_each(partial(of_item, broken=3), range(6), [10] * 6, workers=2, progress=lambda *now: told.append(now))
for outcome in outcomes:
    try:
        print(*outcome())
    except OSError as error:
        print(type(error).__name__, error.errno, error.filename)
assert told[-1] == (60, 60), told
"""


def of_item(item: int, advance: Advance, *, broken: int) -> tuple[int, int]:
    advance(10)
    if item == broken:
        raise FileNotFoundError(2, "No such file", f"file {item}")
    return item, os.getpid()


def test_forks_give_results_and_errors_in_the_order_of_the_items() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0", "1", "2", "FileNotFoundError", "4", "5"]
    assert rows[3][1:] == ["2", "file", "3"]
    assert len({row[1] for row in rows if len(row) == 2}) <= 2


def test_without_workers_this_process_reads_one_after_the_other() -> None:
    told: list[tuple[int, int]] = []
    outcomes = read_each(partial(of_item, broken=-1), [1, 2], [10, 10], progress=lambda *now: told.append(now))
    assert next(outcomes)() == (1, os.getpid())
    assert told == [(10, 20)]
    assert next(outcomes)() == (2, os.getpid())
    assert told == [(10, 20), (20, 20)]


@pytest.mark.parametrize("broken", [False, True])
def test_a_report_is_the_same_by_forks_and_in_one_process(broken: bool, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    write_device_traces(folder, ranks=3, steps=2, kernels=40, late=1)
    if broken:
        path = folder / "worker2.pt.trace.json.gz"
        path.write_bytes(path.read_bytes()[:-200])
        (folder / "other.json").write_text("{}")

    def report(cores: str) -> bytes:
        # Which cores a process may use tells how many forks it makes.
        command = ["taskset", "-c", cores, sys.executable, "-m", "distprof", "report", str(folder), "--json", "-"]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout

    cores = sorted(os.sched_getaffinity(0))[:2]
    assert report(",".join(map(str, cores))) == report(str(cores[0]))


class Terminal:
    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.parametrize(
    ("terminal", "seconds", "done", "shown"),
    [(True, 2, 10, True), (True, 2, 90, False), (True, 0.5, 1, False), (False, 60, 1, False)],
)
def test_the_bar_is_for_long_reads_on_a_terminal(
    terminal: bool, seconds: float, done: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, seconds])
    monkeypatch.setattr("distprof.cli.progress.time.monotonic", lambda: next(times, seconds))
    if terminal:
        monkeypatch.setattr("sys.stderr", Terminal())
    with ReadingBar() as bar:
        bar(done, 100)
        assert bar.shown == shown


def test_no_worker_outlives_who_forked_it() -> None:
    """One that is killed, as when memory is exhausted, cannot tell its workers."""
    script = _SCRIPT.replace("print(*outcome())", "print(outcome()[1], flush=True); os.kill(os.getpid(), 9)")
    # A worker that goes on holds the pipes open, and this would wait for ever.
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker, deadline = Path("/proc", done.stdout.strip()), time.monotonic() + 10
    while worker.exists() and "(zombie)" not in (worker / "status").read_text():
        assert time.monotonic() < deadline, "the worker waits for ever"
        time.sleep(0.05)


_ONE_FORK = """
import os
fork, made = os.fork, []
def the_last_one():
    if made:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    made.append(True)
    return fork()
os.fork = the_last_one
"""


def test_where_not_all_can_be_forked_those_that_are_do_not_wait_for_ever() -> None:
    script = [sys.executable, "-c", _ONE_FORK + _SCRIPT]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("BlockingIOError: [Errno 11] Resource temporarily unavailable\n")
