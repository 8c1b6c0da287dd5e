"""Sweeps with launches that are made up: order, resuming, failures, what is recommended, and how it is shown."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import plotly.graph_objects
import pytest

from distprof.experiment.core import read as read_experiment
from distprof.experiment.progress import ProgressLines
from distprof.experiment.settings import Point
from distprof.experiment.sweep import app, page
from distprof.experiment.sweep.figures import figures
from distprof.experiment.sweep.overrides import quoted
from distprof.experiment.sweep.result import Sweep, json_schema, read
from tests.unit.sweeps import Launches, steady, workers_needed
from tests.unit.test_page import Page


def test_all_points_are_taken_in_turn_and_the_cheapest_of_the_best_is_recommended(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = Launches(workers_needed())
    assert sweep(launches, "--nproc", "2", "--out", "out", "loader.num_workers=0,1,2,4", "train.py", "--lr", "1") == 0
    measured = [name for name, _ in launches.done if name.startswith("measured/")]
    repeats = [measured[first : first + 5] for first in (0, 5, 10)]
    assert len(measured) == 15
    assert all(
        set(repeat) == {f"measured/{name}" for name in ("baseline", "p1", "p2", "p3", "p4")} for repeat in repeats
    )
    assert repeats[1] == repeats[0][::-1]  # so that a drift of the machine hits all alike
    assert [name for name, _ in launches.done[15:]] == [
        f"explained/{name}" for name in ("baseline", "p1", "p2", "p3", "p4")
    ]
    assert launches.arguments["p3"] == ["--lr", "1"]
    found = read(tmp_path / "out")
    assert (found.verdict, found.order, found.repeats, found.comparisons) == ("faster", "together", 3, 4)
    assert found.recommended == "p3"
    assert found.point("p3") is not None
    assert [point.name for point in found.points if point.may_be_best] == ["p3", "p4"]
    assert [point.values for point in found.points[:2]] == [{}, {"loader.num_workers": 0}]
    (knee,) = found.knees
    assert (knee.setting, knee.value, knee.point, knee.tried) == ("loader.num_workers", 2, "p3", [0, 1, 2, 4])
    assert knee.may_be_best == [2, 4]
    assert {(change.part, round(change.baseline), round(change.candidate, -1)) for change in found.because} >= {
        ("compute", 50, 50)
    }
    p3 = found.points[3]
    assert p3.ratio is not None
    assert p3.ratio.estimate == pytest.approx(1 / 3, rel=0.02)
    assert p3.ratio.confidence == pytest.approx(1 - 0.01 / 4)
    assert p3.explanation is not None
    assert (p3.explanation.run, p3.explanation.memory_bytes) == ("explained/runs/p3-0", 300 << 20)
    printed = capsys.readouterr()
    assert "Take loader.num_workers=2" in printed.out
    assert "of 0, 1, 2, 4 the smallest that is as good as the fastest is 2" in " ".join(printed.out.split())
    assert "5 points, 3 repeats of all in turn, and one launch of each that is profiled." in printed.err


def test_what_is_cheaper_is_not_taken_only_because_repeats_vary(sweep: Callable[..., int], tmp_path: Path) -> None:
    """One worker is slower by a fifth than two, and in three noisy repeats that cannot be told."""
    vary = steady(noise=0.08)
    times = {0: 150.0, 1: 60.0, 2: 50.0}

    def step(point: Point, repeat: int) -> float:
        return vary(times[int(point.settings.get("loader.num_workers", 0))])

    assert sweep(Launches(step), "--out", "out", "loader.num_workers=1,2", "train.py") == 0
    found = read(tmp_path / "out")
    assert [point.name for point in found.points if point.may_be_best] == ["p1", "p2"]
    assert found.recommended == "p2"
    assert [(knee.value, knee.may_be_best) for knee in found.knees] == [(2, [1, 2])]


def test_where_nothing_makes_a_difference_nothing_is_recommended(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vary = steady(noise=0.02)

    def step(point: Point, repeat: int) -> float:
        return vary(100.0)

    launches = Launches(step)
    assert sweep(launches, "--out", "out", "loader.num_workers=0,2", "loader.pin_memory=true,false", "train.py") == 0
    found = read(tmp_path / "out")
    assert (found.verdict, found.recommended, found.knees, found.because) == ("cannot_be_told", None, [], [])
    assert all(point.may_be_best for point in found.points)
    assert "there is nothing to recommend" in capsys.readouterr().out
    # A page that draws JSON of it is whole, and the schema knows all of it.
    jsonschema.validate(json.loads(msgspec.json.encode(found)), json_schema())


def test_a_sweep_that_is_interrupted_goes_on_and_ends_with_the_same_answer(
    sweep: Callable[..., int], tmp_path: Path
) -> None:
    words = ["--out", "out", "loader.num_workers=0,2", "train.py"]
    first = Launches(workers_needed(), interrupted_at=4)
    assert sweep(first, *words) == 130
    kept = read(tmp_path / "out")
    assert (kept.verdict, kept.repeats) == ("incomplete", 1)
    assert (tmp_path / "out" / "sweep.html").is_file()
    second = Launches(workers_needed())
    assert sweep(second, *words) == 0
    assert len(first.done) + len(second.done) == 9 + 3
    assert not set(first.done) & set(second.done)
    third = Launches(workers_needed())
    assert sweep(third, "--repeats", "4", *words) == 0
    assert [repeat for _, repeat in third.done] == [3, 3, 3]
    assert read(tmp_path / "out").recommended == "p2"


def test_a_point_that_fails_does_not_stop_the_others(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = workers_needed()
    launches = Launches(
        lambda point, repeat: None if point.settings.get("loader.num_workers") == 1 else needed(point, 0)
    )
    assert sweep(launches, "--out", "out", "loader.num_workers=1,2", "train.py") == 1
    found = read(tmp_path / "out")
    assert (found.recommended, found.repeats) == ("p2", 3)
    assert (found.points[1].failure, found.points[1].tail) == ("it ended with status 1", ["no such file"])
    assert found.points[1].log == "measured/logs/x.txt"
    assert [row.what for row in found.not_observed] == ["points[p1]"]
    assert "no such file" in capsys.readouterr().out
    assert ("explained/p1", 0) not in launches.done
    mended = Launches(workers_needed())
    assert sweep(mended, "--out", "out", "loader.num_workers=1,2", "train.py") == 0
    assert mended.done == [("measured/p1", 0), ("measured/p1", 1), ("measured/p1", 2), ("explained/p1", 0)]


def test_a_baseline_that_fails_ends_the_sweep(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(lambda point, repeat: None if point.name == "baseline" else 10.0)
    assert sweep(launches, "--out", "out", "loader.num_workers=1,2", "train.py") == 1
    assert len(launches.done) == 3
    found = read(tmp_path / "out")
    assert (found.verdict, found.recommended) == ("incomplete", None)
    assert found.why == "a launch of the baseline failed: it ended with status 1"


def test_the_budget_is_shared_with_the_explanations(
    sweep: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def step(point: Point, repeat: int) -> float:
        now[0] += 10
        return 100.0

    launches = Launches(step)
    # 8 repeats and an explanation: 60 s are for the first of 67.5, six launches; then nothing is left for two more.
    assert (
        sweep(launches, "--out", "out", "--budget", "67.5s", "--repeats", "8", "ddp.bucket_cap_mb=1", "train.py") == 0
    )
    assert [name for name, _ in launches.done].count("explained/baseline") == 1
    assert len(launches.done) == 7
    assert read(tmp_path / "out").repeats == 3
    assert "its profiled run failed or is missing" in read(tmp_path / "out").not_observed[0].reason


def test_points_that_are_the_same_are_one(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(workers_needed())
    words = ["loader.num_workers=null,0,2", "loader.prefetch_factor=null,2,4"]
    assert sweep(launches, "--out", "out", "--repeats", "1", *words, "train.py") == 0
    values = [point.values for point in read(tmp_path / "out").points]
    assert values == [
        {},
        {"loader.prefetch_factor": 2},
        {"loader.prefetch_factor": 4},
        {"loader.num_workers": 0},
        {"loader.num_workers": 2},
        {"loader.num_workers": 2, "loader.prefetch_factor": 2},
        {"loader.num_workers": 2, "loader.prefetch_factor": 4},
    ]


def test_arguments_of_the_script_follow_the_settings(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(workers_needed())
    words = [
        "loader.num_workers=2",
        "+args.lr=0.1,0.2",
        "+args.token=secret",
        "train.py",
        "--workers",
        "${loader.num_workers}",
    ]
    words += ["--lr=${args.lr}", "--same", "it's, ${oc.env:HOME} [x]", r"\${kept}", "--token", "${args.token}", "a=b"]
    assert sweep(launches, "--out", "out", "--repeats", "1", *words) == 0
    rest = ["--same", f"it's, {os.environ['HOME']} [x]", "${kept}"]
    # What is null in the baseline is left out, with the option before it.
    assert launches.arguments["baseline"] == [*rest, "a=b"]
    assert launches.arguments["p1"] == ["--workers", "2", "--lr=0.1", *rest, "--token", "secret", "a=b"]
    assert launches.arguments["p2"] == ["--workers", "2", "--lr=0.2", *rest, "--token", "secret", "a=b"]
    found = read(tmp_path / "out")
    assert found.swept == ["args.lr"]
    assert found.points[1].values == {"loader.num_workers": 2, "args.lr": 0.1, "args.token": "***"}
    for name in ("sweep.json", "sweep.html", "measured/experiment.json", "explained/experiment.json"):
        assert "secret" not in (tmp_path / "out" / name).read_text(), name
    assert (tmp_path / "out" / "hydra").stat().st_mode & 0o077 == 0


def test_paths_are_of_where_the_command_was_typed_whatever_hydra_does(
    sweep: Callable[..., int], tmp_path: Path
) -> None:
    launches = Launches(workers_needed())
    words = ["hydra.job.chdir=true", "+hydra.job.env_set.OF_THE_JOB=x", "loader.num_workers=2", "train.py"]
    assert sweep(launches, "--repeats", "1", *words) == 0
    assert {launcher.training.folder for launcher in launches.launchers} == {str(tmp_path)}
    assert set(launches.environments) == {"x"}
    (out,) = (tmp_path / "distprof-runs").iterdir()
    assert out.name.startswith("sweep-train-")
    files = sorted(str(path.relative_to(out)) for path in (out / "hydra").rglob("*") if path.is_file())
    assert files == [
        "hydra/0/.hydra/config.yaml",
        "hydra/0/.hydra/hydra.yaml",
        "hydra/0/.hydra/overrides.yaml",
        "hydra/multirun.yaml",
    ]
    assert {launcher.folder.parent for launcher in launches.launchers} == {out}
    assert read(out).repeats == 1
    assert Path.cwd() == tmp_path


# Jobs that measure by themselves


def test_apart_each_job_takes_its_point_and_the_baseline_in_turn_and_returns_the_ratio(
    sweep: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(workers_needed())
    returned = []
    original = app.Task.__call__
    monkeypatch.setattr(
        app.Task, "__call__", lambda self, config: returned.append(original(self, config)) or returned[-1]
    )
    words = ["measure.together=false", "loader.num_workers=0,1,2", "train.py"]
    assert sweep(launches, "--out", "out", *words) == 0
    assert returned == [pytest.approx(ratio, rel=0.02) for ratio in (1, 100 / 150, 50 / 150)]
    assert len(launches.done) == 3 * (2 * 3 + 1) + 1  # the first job explains the baseline, too
    assert launches.done[:6] == [
        ("measured/baseline", 0), ("measured/p1", 0), ("measured/p1", 1),
        ("measured/baseline", 1), ("measured/baseline", 2), ("measured/p1", 2),
    ]  # fmt: skip
    assert len({launcher.folder for launcher in launches.launchers}) == 6  # no two points share one
    found = read(tmp_path / "out")
    assert (found.order, found.verdict, found.repeats) == ("apart", "faster", 3)
    chosen = found.point(found.recommended)
    assert chosen is not None
    assert chosen.values == {"loader.num_workers": 2}
    assert [point.name for point in found.points] == ["baseline", "p1", "p2", "p3"]
    assert all(point.explanation is not None for point in found.points)
    assert found.points[0].explanation is not None
    assert (tmp_path / "out" / "jobs").is_dir()
    returned.clear()
    again = Launches(workers_needed())
    assert sweep(again, "--out", "out", "measure.objective=step", *words) == 0
    assert again.done == []
    assert returned == [pytest.approx(step, rel=0.02) for step in (150, 100, 50)]


def test_points_of_two_hosts_are_compared_by_ratios_alone_and_the_hosts_are_shown(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs alternate between two hosts, one of which takes four times as long for everything."""
    needed = workers_needed()
    jobs: dict[Path, str] = {}

    def step(point: Point, repeat: int) -> float:
        job = launches.launchers[-1].folder.parent
        launches.host = jobs.setdefault(job, ("slow", "fast")[len(jobs) % 2])
        return {"slow": 4, "fast": 1}[launches.host] * (needed(point, repeat) or 0.0)

    launches = Launches(step)
    words = ["--out", "out", "measure.together=false", "loader.num_workers=0,1,2", "ddp.bucket_cap_mb=1,25", "train.py"]
    assert sweep(launches, *words) == 0
    found = read(tmp_path / "out")
    baseline, *points = found.points
    workers = {point.name: point.values["loader.num_workers"] for point in points}
    assert baseline.hosts == ["fast", "slow"]
    assert [point.hosts for point in points] == [["slow"], ["fast"]] * 3
    assert {workers[point.name] for point in points if point.may_be_best} == {2}
    assert workers[found.recommended or ""] == 2
    ratios = [point.ratio.estimate for point in points if point.ratio is not None]
    assert ratios == pytest.approx([1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3], rel=0.02)
    slowest_of_best = max(point.step or 0 for point in points if point.may_be_best)
    assert slowest_of_best > min(point.step or 0 for point in points if not point.may_be_best)
    assert {point.training for point in found.points} == {"same"}  # hosts have other parameters, and each its own
    assert [(row.host, row.points, row.repeats) for row in found.hosts] == [
        ("fast", ["p2", "p4", "p6"], 9),
        ("slow", ["p1", "p3", "p5"], 9),
    ]
    assert [row.baseline for row in found.hosts] == [pytest.approx(150, rel=0.02), pytest.approx(600, rel=0.02)]
    assert [each.explanation.host for each in found.points if each.explanation] == ["slow", *["slow", "fast"] * 3]
    (heat,) = figures(found)["heat"]["data"]
    assert sorted(value for row in heat["z"] for value in row) == pytest.approx(sorted(ratios), abs=0.001)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Measured on 2 hosts" in printed
    assert re.search(r"num_workers bucket_cap_mb host ms/step", printed)
    assert re.search(r"p2 0 25 fast 1\d\d", printed)
    assert re.search(r"baseline own own 2 hosts", printed)
    rows = Page((tmp_path / "out" / "sweep.html").read_text()).rows
    assert ["slow", "9", "p1 p3 p5"] in [[row[0], *row[2:]] for row in rows if len(row) == 4]
    jsonschema.validate(json.loads(msgspec.json.encode(found)), json_schema())


def test_on_one_host_no_host_is_shown(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = Launches(workers_needed(), host="one")
    assert sweep(launches, "--out", "out", "measure.together=false", "loader.num_workers=1,2", "train.py") == 0
    found = read(tmp_path / "out")
    assert [point.hosts for point in found.points] == [["one"]] * 3
    assert [row.host for row in found.hosts] == ["one"]
    assert "host" not in capsys.readouterr().out.replace(str(tmp_path), "")


def test_a_sweep_of_an_earlier_distprof_knows_no_hosts(sweep: Callable[..., int], tmp_path: Path) -> None:
    words = ["--out", "out", "measure.together=false", "loader.num_workers=1,2", "train.py"]
    assert sweep(Launches(workers_needed(), host="one"), *words) == 0
    for path in (tmp_path / "out").rglob("*.json"):
        told = json.loads(path.read_text())
        for row in (told, *told.get("points", ()), *told.get("trials", ())):
            for place in (row, row.get("explanation") or {}):
                place.pop("host", None)
                place.pop("hosts", None)
        path.write_text(json.dumps(told))
    assert read(tmp_path / "out").hosts == []
    launches = Launches(workers_needed(), host="two")
    assert sweep(launches, "--repeats", "4", *words) == 0
    assert [repeat for _, repeat in launches.done] == [3] * 4
    assert [point.hosts for point in read(tmp_path / "out").points] == [["two"]] * 3


def test_jobs_that_are_interrupted_leave_what_they_measured(sweep: Callable[..., int], tmp_path: Path) -> None:
    words = ["--out", "out", "measure.together=false", "loader.num_workers=1,2", "train.py"]
    assert sweep(Launches(workers_needed(), interrupted_at=10), *words) == 130
    kept = read(tmp_path / "out")
    assert [point.values for point in kept.points] == [{}, {"loader.num_workers": 1}, {"loader.num_workers": 2}]
    assert [len(point.steps) for point in kept.points[1:]] == [3, 1]


def test_on_one_host_jobs_wait_for_each_other(
    sweep: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--out", "out", "measure.together=false", "loader.num_workers=2", "train.py"]
    assert sweep(Launches(workers_needed()), "--repeats", "1", *words) == 0
    launches = Launches(workers_needed())
    launched_before = []
    (lock,) = (tmp_path / "out" / "jobs").glob(".*.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def says(watch: ProgressLines, text: str) -> None:
            if text == "Another job measures on this host: waiting for it.":
                launched_before.append(len(launches.done))
                fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(ProgressLines, "says", says)
        assert sweep(launches, "--repeats", "2", *words) == 0
    assert launched_before == [0]
    assert len(launches.done) == 2


def test_a_job_of_a_point_that_fails_returns_no_ratio(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(lambda point, repeat: 10.0 if point.name == "baseline" else None)
    words = ["measure.together=false", "loader.num_workers=1,2", "train.py"]
    assert sweep(launches, "--out", "out", *words) == 1
    found = read(tmp_path / "out")
    assert (found.verdict, [point.failure for point in found.points[1:]]) == (
        "incomplete",
        ["it ended with status 1"] * 2,
    )


def test_a_launcher_elsewhere_measures_the_same_points(sweep: Callable[..., int], tmp_path: Path) -> None:
    """submitit's local executor runs the jobs in processes of their own, which find that all was measured before."""
    words = [
        "--out",
        "out",
        "loader.num_workers=0,2",
        "ddp.bucket_cap_mb=1",
        "train.py",
        "--w",
        "${loader.num_workers}",
    ]
    assert sweep(Launches(workers_needed()), "measure.together=false", *words) == 0
    before = read(tmp_path / "out")
    launches = Launches(workers_needed())
    assert sweep(launches, "hydra/launcher=submitit_local", "measure.together=false", *words) == 0
    assert launches.done == []
    after = read(tmp_path / "out")
    assert after.points == before.points
    assert list((tmp_path / "out" / "hydra" / ".submitit").rglob("*_result.pkl"))
    experiment = read_experiment(next((tmp_path / "out" / "jobs").iterdir()) / "measured")
    assert experiment is not None
    assert len(experiment.trials) == 6


# What is shown


def test_the_page_is_whole_and_harmless(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(workers_needed())
    evil = "</script><img src=x onerror=alert(1)>"
    words = ["loader.num_workers=0,2", f"+args.x={quoted(evil)},y", "train.py", "--x", "${args.x}"]
    assert sweep(launches, "--out", "out", *words) == 0
    found = read(tmp_path / "out")
    text = page.page(found)
    shown_page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not any(tag == "img" for tag, _ in shown_page.tags)
    assert not re.search(
        r"(?:src|href)=[\"']?(?:https?:)?//", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    )
    assert any(evil in told for told in shown_page.texts)
    drawn = figures(found)
    assert set(drawn) == {"points", "heat", "parts"}
    for figure in drawn.values():
        plotly.graph_objects.Figure(figure)
    assert drawn["points"]["data"][0]["name"] == "recommended"
    (heat,) = drawn["heat"]["data"]
    assert (heat["x"], len(heat["y"])) == (["0", "2"], 2)
    assert [round(value) for row in heat["z"] for value in row] == pytest.approx([150, 50, 150, 50], rel=0.05)
    assert len(drawn["parts"]["data"][0]["y"]) == 5
    rows = [row for row in shown_page.rows if row and row[0] in ("take p3", "baseline")]
    assert len(rows) >= 2


def test_what_is_nothing_yet_has_a_page_too(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(lambda point, repeat: None)
    assert sweep(launches, "--out", "out", "loader.num_workers=1", "train.py") == 1
    assert "drawn" not in Page((tmp_path / "out" / "sweep.html").read_text()).texts
    found = read(tmp_path / "out")
    assert isinstance(found, Sweep)
    assert found.verdict == "incomplete"


def test_conditions_end_with_status_3(sweep: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    launches = Launches(workers_needed())
    words = ["--out", "out", "loader.num_workers=2", "train.py"]
    assert sweep(launches, "--fail-if", 'verdict == "faster"', *words) == 3
    assert sweep(launches, "--fail-if", 'verdict != "faster"', *words) == 0
