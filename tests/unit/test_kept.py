"""A report that lies in its run directory is shown again as it is, and only for as long as it would be the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distprof.pipeline
from distprof.cli import main as cli
from distprof.result import Result
from distprof.run.directory import RunDirectory
from distprof.run.signing import signature
from tests.worlds import World, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """The results that were built, one entry each time."""
    found: list[Result] = []
    build = distprof.pipeline.build

    def building(*arguments: Any) -> Result:
        found.append(build(*arguments))
        return found[-1]

    monkeypatch.setattr(distprof.pipeline, "build", building)
    return found


@pytest.fixture
def run(tmp_path: Path, built: list[Result], capsys: pytest.CaptureFixture[str]) -> RunDirectory:
    """A run that has been reported once."""
    write(World(ranks=2, steps=8), tmp_path / "run")
    report(RunDirectory(tmp_path / "run"))
    capsys.readouterr()
    return RunDirectory(tmp_path / "run")


def report(run: RunDirectory, *options: str | Path) -> int:
    return cli.main(["report", str(run.path), *map(str, options)])


def faces(run: RunDirectory) -> dict[Path, tuple[bytes, int]]:
    """What the report left, and when it was written."""
    paths = (run.report_html, run.report_json, run.timeline)
    return {path: (path.read_bytes(), path.stat().st_ctime_ns) for path in paths}


def test_it_is_shown_again_and_not_made_again(
    run: RunDirectory, built: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = faces(run)
    (run.digest / "report.json").rename(tmp_path / "stamp")
    report(run)
    made = capsys.readouterr().out
    assert len(built) == 2
    after = faces(run)
    assert report(run) == 0
    assert capsys.readouterr().out == made
    assert "timeline:" in made
    assert faces(run) == after
    assert {path: data for path, (data, _) in before.items()} == {path: data for path, (data, _) in after.items()}
    assert len(built) == 2


def test_nothing_that_reads_or_analyses_is_imported_for_it(run: RunDirectory) -> None:
    code = f"from distprof.cli.main import main; main(['report', {str(run.path)!r}]); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert "timeline:" in done.stdout
    assert not {"polars", "numpy", "jinja2"} & set(done.stdout.splitlines()[-1].split())


def test_it_is_the_same_by_whatever_path(
    run: RunDirectory, built: list[Result], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.path.parent)
    assert cli.main(["report", run.path.name]) == 0
    assert len(built) == 1
    assert f"report:   {run.path.name}/report.html" in capsys.readouterr().out


def test_options_are_served_from_it(run: RunDirectory, built: list[Result], tmp_path: Path) -> None:
    report(run, "--json", tmp_path / "report.json", "--html", tmp_path / "report.html")
    assert (tmp_path / "report.json").read_bytes() == run.report_json.read_bytes()
    assert (tmp_path / "report.html").read_bytes() == run.report_html.read_bytes()
    assert report(run, "--fail-if", "steps.steady.count > 0") == 3
    assert len(built) == 1
    report(run, "--steps", "2:6", "--json", tmp_path / "some.json")
    assert len(built) == 2
    assert (tmp_path / "some.json").read_bytes() != run.report_json.read_bytes()


def signed_by_another(run: RunDirectory) -> None:
    stamp = run.digest / "report.json"
    text = stamp.read_bytes().partition(b"\n")[2]
    stamp.write_bytes(signature(text, bytes(32)) + b"\n" + text)


CHANGES: dict[str, Callable[[RunDirectory], object]] = {
    "a stream grows": lambda run: run.rank(0, 0).zones.open("a").write("\n"),
    "a file of the same size is newer": lambda run: run.rank(0, 1).facts.touch(),
    "a host's file": lambda run: (run.path / "nodes").mkdir() or (run.path / "nodes" / "node0.json").write_text("{}"),
    "the page was edited": lambda run: run.report_html.open("a").write(" "),
    "the report was edited": lambda run: run.report_json.write_text(run.report_json.read_text().replace("2", "3")),
    "the timeline is gone": lambda run: run.timeline.unlink(),
    "a stamp that somebody else signed": signed_by_another,
    "no stamp": lambda run: (run.digest / "report.json").write_text(""),
    "a link": lambda run: (run.path / "link").symlink_to(run.manifest),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_reported_anew(change: str, run: RunDirectory, built: list[Result]) -> None:
    original = run.report_json.read_bytes()
    CHANGES[change](run)
    report(run)
    assert len(built) == 2
    assert run.report_json.read_bytes() == original, "no change was one of the training's"
    assert run.timeline.exists()
    report(run)
    assert len(built) == (3 if change == "a link" else 2), "what a link leads to may change unseen"


def test_another_version_reports_anew(run: RunDirectory, built: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.report.kept.__version__", "999")
    report(run)
    assert len(built) == 2


def test_a_copy_is_reported_anew(run: RunDirectory, built: list[Result]) -> None:
    shutil.copytree(run.path, run.path.with_name("copy"))  # with times
    run.path.rename(run.path.with_name("moved"))
    run.path.with_name("copy").rename(run.path)
    report(run)
    assert len(built) == 2


def test_another_user_reports_anew(
    run: RunDirectory, built: list[Result], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.with_name("other")))
    report(run)
    assert len(built) == 2


def test_what_could_not_be_written_is_not_kept(run: RunDirectory, built: list[Result]) -> None:
    run.rank(0, 0).zones.open("a").write("\n")
    run.report_html.unlink()
    run.report_html.mkdir()
    report(run)
    assert len(built) == 2
    report(run)
    assert len(built) == 3
