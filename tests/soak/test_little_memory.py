"""Too little memory to read a run: it is said in a line what to do, and the run directory stays what it was."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.run.directory import RunDirectory
from tests.conftest import Tell
from tests.worlds import World, write

pytestmark = [pytest.mark.soak]

EVENTS = 600_000
# Limits of the address space, as shares of what the report takes without one. The smallest admit no import.
SHARES = (0.05, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, one of which recorded a large trace."""
    path = tmp_path_factory.mktemp("big") / "run"
    write(World(ranks=2, steps=30), path)
    trace = RunDirectory(path).rank(0, 0).window(0)
    head, _, tail = gzip.decompress(trace.read_bytes()).decode().partition('"traceEvents": [')
    first = json.loads("[" + tail[: tail.rindex("]}")] + "]")[1]
    with gzip.open(trace, "wt", compresslevel=1) as file:
        file.write(f'{head}"traceEvents": [')
        for number in range(EVENTS):
            name = f"aten::op{number % 1000}"
            start = first["ts"] + number / 100
            file.write(
                f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {first["pid"]}, "tid": {first["tid"]}, '
                f'"ts": {start:.3f}, "dur": 0.005, "args": {{"External id": {number}}}}},\n'
            )
        file.write(tail)
    return path


CHECKED = (SHARES[0], SHARES[-2])  # after these the report is made anew without a limit
MADE = ("report.json", "report.html", "timeline.json.gz")
LIMITED = """
import resource, runpy, sys
limit, *words = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))
sys.argv = ["distprof", *words]
runpy.run_module("distprof", run_name="__main__", alter_sys=True)
"""
PEAK = """
import re, sys
from pathlib import Path
from distprof.cli.main import main
status = main(sys.argv[1:])
print(re.search(r"VmPeak:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(status)
"""


def run_report(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`distprof report --quiet`, by this code."""
    command = [sys.executable, "-c", code, *words[:-1], "report", "--quiet", words[-1]]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def recordings(run_dir: Path) -> dict[str, str]:
    """The checksum of each file that no report made."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file() and path.parent.name != "digest" and path.name not in MADE and path.suffix != ".tmp"
    }


def test_a_report_with_too_little_memory(big: Path, tell: Tell) -> None:
    before = recordings(big)
    whole = run_report(PEAK, str(big))
    assert whole.returncode == 0, whole.stderr
    peak = int(whole.stderr.split()[-1]) << 10
    ends = []
    for share in SHARES:
        shutil.rmtree(big / "digest", ignore_errors=True)
        for name in MADE:
            (big / name).unlink(missing_ok=True)
        limit = int(share * peak)
        done = run_report(LIMITED, str(limit), str(big))
        ends.append(done.returncode)
        last = done.stderr.splitlines()[-1:]
        temporary = [path.name for path in big.rglob("*.tmp")]
        tell(
            f"{limit >> 20} MB of {peak >> 20}: exit {done.returncode}, {len(temporary)} temporary files"
            + "".join(f"\n  {line}" for line in last)
        )
        assert recordings(big) == before
        assert "Traceback" not in done.stderr
        if done.returncode:
            assert done.returncode == 1
            assert done.stdout == ""
            assert f"limited to {limit / 1e6:.0f} MB" in last[0]
            assert "ulimit -v unlimited" in last[0]
        else:
            assert done.stdout == whole.stdout
        assert all(json.loads(path.read_bytes()) for path in big.glob("*.json"))
        if share in CHECKED:
            again = run_report(PEAK, str(big))
            assert (again.returncode, again.stdout) == (0, whole.stdout)
    assert ends[0] == 1
    assert ends[-1] == 0
