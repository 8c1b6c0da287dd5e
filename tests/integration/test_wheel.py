"""The wheel works where no source tree is: built, installed into a new environment, run from another folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel in it; it borrows the dependencies of the one that runs the tests.

    A borrowed folder's own `.pth` files are not processed, so its editable installation stays unseen.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(folder), *install], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def _run(cwd: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_wheel_holds_what_the_source_tree_holds(wheel: Path) -> None:
    package = ROOT / "distprof"
    expected = {str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected |= {f"distprof/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert expected - names == set()
    assert "distprof/inject/sitecustomize.py" in names
    assert any(name.startswith("distprof/report/") and name.endswith(".html.j2") for name in names)
    assert all(name.startswith(("distprof/", "distprof-")) for name in names)


def test_the_installed_package_is_the_one_that_runs(environment: Path, tmp_path: Path) -> None:
    run = _run(tmp_path, environment / "bin" / "python", "-c", "import distprof; print(distprof.__file__)")
    assert Path(run.stdout.strip()).is_relative_to(environment), run


def test_help(environment: Path, tmp_path: Path) -> None:
    run = _run(tmp_path, environment / "bin" / "distprof", "--help")
    assert run.returncode == 0, run
    assert "launch" in run.stdout
    assert run.stderr == ""


def test_a_sweep_has_its_config_groups(environment: Path, tmp_path: Path) -> None:
    run = _run(tmp_path, environment / "bin" / "distprof", "sweep", "--cfg", "job", "loader=workers", "train.py")
    assert run.returncode == 0, run
    assert "num_workers: 4" in run.stdout
    run = _run(tmp_path, environment / "bin" / "distprof", "sweep", "--info", "searchpath")
    assert f"file://{environment}" in run.stdout


def test_report_of_a_run_that_does_not_exist_is_one_clear_line(environment: Path, tmp_path: Path) -> None:
    run = _run(tmp_path, environment / "bin" / "distprof", "report", "no-such-run")
    assert run.returncode == 2, run
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert "no-such-run" in run.stderr
