"""Other tools read what distprof records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import distprof
from tests.conftest import ROOT, skip_but_in_ci
from tests.launches import EXAMPLES, launch

# HolisticTraceAnalysis brings some eighty packages with it, so it has an environment of its own:
# `make test` sets it up from constraints-peers.txt.
PEERS = Path(os.environ.get("DISTPROF_PEERS") or ROOT / ".venv-peers") / "bin" / "python"

_LOAD = """
import json, sys
from hta.trace_analysis import TraceAnalysis
traces = TraceAnalysis(trace_dir=sys.argv[1]).t
print(json.dumps({rank: len(traces.get_trace(rank)) for rank in traces.traces}))
"""


@pytest.mark.launch
def test_holistic_trace_analysis_loads_what_a_launch_wrote(tmp_path: Path) -> None:
    if not PEERS.exists():
        skip_but_in_ci(f"no environment with HolisticTraceAnalysis at {PEERS.parent.parent}; `make test` makes it")
    run_dir = tmp_path / "run"
    launched = launch(run_dir, "--standalone", "--nproc", "2", str(EXAMPLES / "slow_loader.py"))
    assert launched.returncode == 0, launched.stderr
    tables = distprof.load(run_dir).tables
    folder = tmp_path / "traces"
    folder.mkdir()
    for path in (run_dir / "attempt0").glob("*.pt.trace.json.gz"):
        shutil.copy(path, folder)
    loaded = subprocess.run([PEERS, "-c", _LOAD, folder], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    rows = json.loads(loaded.stdout.splitlines()[-1])
    assert sorted(rows) == ["0", "1"]
    for rank, count in rows.items():
        ours = len(tables.events.filter(rank=int(rank)))
        assert ours / 2 < count <= ours, "it leaves some annotations out"
