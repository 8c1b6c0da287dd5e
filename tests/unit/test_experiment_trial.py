"""What is read from a launch: the steps that count, what they consist of, and what a world planted in them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from distprof.experiment import launching
from distprof.experiment.launching import Launcher, Training, _tail
from distprof.experiment.settings import Point
from distprof.experiment.trial import Figures, Trial, read_figures
from distprof.run.files import read_json, write_json
from distprof.run.identity import host_name
from tests.worlds import Delay, World, write

WORLD = World(ranks=2, steps=12, windows=())


def figures_of(world: World, folder: Path, first: int = 4) -> Figures:
    write(world, folder)
    return read_figures(folder, first)


def test_the_steps_after_warm_up_are_measured_and_their_zones(tmp_path: Path) -> None:
    healthy = figures_of(WORLD, tmp_path / "healthy")
    slow = figures_of(replace(WORLD, delays=[Delay(rank=1, kind="data_loading", ms=40)]), tmp_path / "slow")
    assert len(healthy.step_ms) == 8
    assert figures_of(WORLD, tmp_path / "again", first=1).step_ms[3:] == healthy.step_ms
    longer = sum(slow.step_ms) / 8 - sum(healthy.step_ms) / 8
    assert longer == pytest.approx(40, rel=0.15)
    # One of two ranks loads longer by 40 ms, and the other is blocked for as long.
    assert slow.zones["data_loading"] - healthy.zones["data_loading"] == pytest.approx(20, rel=0.15)
    assert slow.exposed is not None
    assert healthy.exposed is not None
    assert slow.exposed - healthy.exposed == pytest.approx(20, rel=0.15)
    assert sum(healthy.zones.values()) <= 1.001 * sum(healthy.step_ms) / 8


def test_a_launch_counts_by_its_mean_step() -> None:
    trial = Trial("x", 0, 1.0, step_ms=[10.0, 10.0, 10.0, 90.0], world_size=4, samples_per_step=6.0)
    assert trial.step == 30.0
    assert trial.samples_per_s == pytest.approx(800.0)
    assert Trial("x", 0, 1.0).step is None


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, world: World, **facts: object) -> Trial:
    """A trial whose launch is a world, with these facts in each rank."""

    def run(words: list[str], log: Path, cwd: Path | None, timeout_s: float | None) -> int:
        run_dir = Path(words[words.index("--run-dir") + 1])
        write(world, run_dir)
        log.write_text("training\n")
        for path in run_dir.glob("attempt0/rank*[0-9].json"):
            write_json(path, {**read_json(path), **facts})
        return 0

    monkeypatch.setattr(launching, "_run", run)
    trial = Launcher(folder, Training([], "train.py", [], module=False), [], first=4)(Point("x"), 0, None)
    assert trial is not None
    return trial


def test_a_setting_that_met_nothing_is_a_failure_although_the_training_was_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmet = {"asked": {"ddp.bucket_cap_mb": 1.0}, "met": [], "unmet": {"ddp.bucket_cap_mb": "the script made none"}}
    trial = launched(tmp_path, monkeypatch, WORLD, settings=unmet)
    assert trial.failure == "a setting had no effect: ddp.bucket_cap_mb: the script made none"
    assert trial.step_ms == []


def test_a_training_that_is_too_short_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = launched(tmp_path, monkeypatch, replace(WORLD, steps=3))
    assert trial.failure is not None
    assert "no steady step from step 4 on" in trial.failure
    assert trial.tail == ["training"]


def test_checksums_of_all_ranks_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = launched(tmp_path / "one", monkeypatch, WORLD, checksums={"SGD#0": "a"})
    same = launched(tmp_path / "same", monkeypatch, WORLD, checksums={"SGD#0": "a"})
    other = launched(tmp_path / "other", monkeypatch, WORLD, checksums={"SGD#0": "b"})
    none = launched(tmp_path / "none", monkeypatch, WORLD)
    assert one.failure is None
    assert one.host == host_name()
    assert one.checksums == same.checksums != other.checksums
    assert none.checksums is None


def test_of_a_failed_launch_the_ranks_own_words_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    ranks = [f"[rank0]: line {number}" for number in range(30)]
    failed = "E1129 api.py torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0"
    log.write_text("\n".join([*ranks, failed, *(f"torchrun says {number}" for number in range(40))]))
    tail = _tail(log)
    assert len(tail) == 20
    assert tail[-2:] == ["[rank0]: line 29", failed]
    log.write_text("a\nghp_abcdefghijklmnop\n")
    assert _tail(log) == ["a", "***"]


def test_a_launch_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launching._run(["sleep", "60"], tmp_path / "log.txt", None, timeout_s=0.2) is None
    assert launching._run(["sh", "-c", "echo $PYTHONHASHSEED; exit 3"], tmp_path / "log.txt", tmp_path, None) == 3
    assert (tmp_path / "log.txt").read_text() == "0\n"

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launching._run(["sleep", "60"], tmp_path / "log.txt", None, None)
