"""Too little memory: one line says so, whatever it is that fails."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from distprof.cli import memory
from distprof.cli.memory import with_memory_told

LIMIT = 4 << 30


def run_limited(body: str, limit: int = LIMIT) -> subprocess.CompletedProcess[str]:
    """A process with that address space, in which `body` is what a command does."""
    code = f"""
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from distprof.cli.memory import with_memory_told
def run():
{textwrap.indent(textwrap.dedent(body), "    ")}
sys.exit(with_memory_told("distprof report", run))
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("bytearray(8 << 30)", " (MemoryError)"),
        (
            "raise ImportError('libx.so: failed to map segment\\nmore')",
            " (ImportError: libx.so: failed to map segment)",
        ),
        ("os.abort()", ""),
        ("os._exit(1)", ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", ""),
    ],
    ids=["Python", "a library", "abort", "exit", "killed"],
)
def test_under_a_limit_one_line_tells(body: str, named: str) -> None:
    done = run_limited(body)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"distprof report: error: it failed{named} in an address space that is limited to 4295 MB,")
    assert "ulimit -v unlimited" in line


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [("print('x'); return 3", 3, ""), ("sys.exit(2)", 2, ""), ("sys.exit('no')", 1, "no\n"), ("return 0", 0, "")],
)
def test_under_a_limit_a_command_ends_as_ever(body: str, status: int, told: str) -> None:
    done = run_limited(body)
    assert (done.returncode, done.stderr) == (status, told)
    assert done.stdout == ("x\n" if "print" in body else "")


def test_under_a_limit_what_memory_is_no_reason_for_is_told_as_it_is() -> None:
    for body, told in (("raise KeyError('bug')", "KeyError: 'bug'"), ("import no", "No module named 'no'")):
        done = run_limited(body)
        assert done.returncode == 1
        assert done.stderr.endswith(f"{told}\n")
        assert "want of memory" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_command_reaches_what_works(number: signal.Signals) -> None:
    by_default = f"signal.signal({int(number)}, signal.SIG_DFL)"  # nohup, for one, has them ignore it
    done = run_limited(f"{by_default}; os.kill(os.getppid(), {int(number)}); time.sleep(50); return 0")
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise KeyboardInterrupt", 128 + signal.SIGINT),
        ("sys.stdout.flush = lambda: os.kill(os.getpid(), signal.SIGINT); return 3", 3),
    ],
    ids=["at its end", "after its end"],
)
def test_a_second_interrupt_is_no_want_of_memory(body: str, status: int) -> None:
    """A terminal interrupts both processes, and the one hands it on to the other."""
    done = run_limited(f"signal.signal(signal.SIGINT, signal.default_int_handler); {body}")
    assert (done.returncode, done.stderr) == (status, "")


def test_where_nothing_can_be_forked_the_command_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(memory, "address_space", lambda: LIMIT)
    monkeypatch.setattr(os, "fork", refused)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert with_memory_told("distprof merge", lambda: 3) == 3
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert capsys.readouterr().err == ""


def test_a_command_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """What works ends with it: else the pipes stay open, and this does not return."""
    done = run_limited("os.kill(os.getppid(), signal.SIGKILL); time.sleep(50); return 0")
    assert done.returncode == -signal.SIGKILL


def test_without_a_limit_nothing_is_forked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "address_space", lambda: None)
    monkeypatch.delattr(os, "fork")

    def exhausted() -> int:
        raise MemoryError

    assert with_memory_told("distprof merge", lambda: 3) == 3
    assert with_memory_told("distprof merge", exhausted) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("distprof merge: error: memory is exhausted: ")


def test_the_limit_is_the_one_of_this_process() -> None:
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT})); "
    code += "from distprof.cli.memory import address_space; print(address_space())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == LIMIT
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert memory.address_space() is None
