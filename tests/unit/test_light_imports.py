"""What only asks for help, or only imports the package, does not wait for heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "polars", "numpy", "scipy", "rich", "jinja2", "msgspec", "plotly"}


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
    assert not imported_by("import distprof.cli.report") & {"torch", "scipy", "plotly"}
