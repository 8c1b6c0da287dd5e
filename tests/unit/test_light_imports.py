"""What only asks for help, or only imports the package, does not wait for heavy libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "polars", "numpy", "scipy", "rich", "jinja2", "msgspec", "plotly", "hydra", "omegaconf"}


def imported_by(code: str) -> set[str]:
    """Which modules a process has imported at its end."""
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import distprof",
        "import distprof; distprof.__version__",
        "from distprof.cli.main import main; main(['--help'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert not imported_by(code) & HEAVY


def test_reading_and_reporting_traces_imports_neither_torch_nor_scipy() -> None:
    code = "import distprof.cli.report, distprof.pipeline, distprof.trace.load"
    assert not imported_by(code) & {"torch", "scipy", "plotly"}


def test_a_report_on_traces_of_eight_ranks_needs_no_scipy(shared: Path) -> None:
    code = f"from distprof.cli.main import main; main(['report', {str(shared / 'traces' / 'dlrm8')!r}, '--quiet'])"
    assert not imported_by(code) & {"torch", "scipy", "plotly", "jinja2"}


def test_completing_a_word_of_a_sweep_waits_for_neither_torch_nor_polars() -> None:
    code = "import os; os.environ['COMP_LINE'] = 'distprof sweep loader='\n"
    code += "from distprof.cli.main import main; main(['sweep', '-sc', 'query=bash'])"
    assert not imported_by(code) & {"torch", "polars", "plotly"}
