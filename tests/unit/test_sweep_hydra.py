"""Hydra's part of a sweep: overrides, groups, options, completion, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from distprof.cli import sweep as command
from distprof.cli.sweep_options import words_for_hydra
from distprof.experiment.sweep import app
from distprof.experiment.sweep.config import conf_folder, register
from distprof.experiment.sweep.overrides import identity, is_override, listed, quoted
from distprof.experiment.sweep.result import read
from tests.unit.sweeps import Launches, workers_needed

TEXTS = st.text(alphabet="ab \\'\"${},=[]:.\n-~é*", max_size=12)


@pytest.mark.parametrize(("launcher", "sees"), [("submitit_slurm", None), ("submitit_local", "7")])
def test_jobs_that_slurm_runs_inherit_nothing_of_the_job_in_which_they_are_submitted(
    monkeypatch: pytest.MonkeyPatch, launcher: str, sees: str | None
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with app._as_submitted(["loader.num_workers=1,2", f"hydra/launcher={launcher}"]):
        assert (os.environ.get("SLURM_JOB_ID"), os.environ["SLURM_CONF"]) == (sees, "/etc/slurm.conf")
    assert os.environ["SLURM_JOB_ID"] == "7"


@given(TEXTS)
def test_texts_mean_in_overrides_what_they_should(text: str) -> None:
    parser = OverridesParser.create()
    one, many = parser.parse_override(f"k={quoted(text)}"), parser.parse_override(listed("k", [text, text]))
    assert not one.is_sweep_override()
    assert OmegaConf.create({"k": one.value()}).k == text
    assert list(OmegaConf.create({"k": many.value()}).k) == [text, text]
    # Hydra's sweeper writes them again for each job.
    again = parser.parse_override(f"k={many.get_value_element_as_str()}")
    assert list(OmegaConf.create({"k": again.value()}).k) == [text, text]


@pytest.mark.parametrize(
    "word",
    ["loader.num_workers=0,2", "+args.lr=1", "++a.b=1", "~ddp", "loader=glob(*)", "hydra/launcher=x", "a@b.c=d", "x="],
)
def test_overrides_are_known_from_scripts(word: str) -> None:
    assert is_override(word)
    assert not any(map(is_override, ("train.py", "pkg.train", "./a=b.py", "--lr=1", "../x=1/train.py", "/bin/x=1")))


def test_options_overrides_and_script_are_told_apart() -> None:
    parser = command.build_parser()
    words = ["--nproc", "4", "--steps", "9", "loader.num_workers=0,2", "+args.lr=1", "--cfg", "job", "ddp=own"]
    arguments, overrides = parser.split([*words, "-m", "pkg.train", "--lr", "${args.lr}", "x=1", "--cfg", "it's"])
    assert overrides == ["loader.num_workers=0,2", "+args.lr=1", "ddp=own"]
    assert (arguments.training_script, arguments.module, arguments.cfg) == ("pkg.train", True, "job")
    assert arguments.training_script_args == ["--lr", "${args.lr}", "x=1", "--cfg", "it's"]
    told = words_for_hydra(arguments, overrides)
    assert told[:2] == ["--cfg", "job"]
    assert {"measure.steps=9", "module=true", "torchrun=['--nproc-per-node=4']", "script='pkg.train'"} <= set(told)
    assert r"script_args=['--lr','${args.lr}','x=1','--cfg','it\'s']" in told
    assert not any("measure.repeats" in word for word in told)  # left to the configuration


def test_a_sweep_goes_on_with_more_repeats_and_not_with_other_settings() -> None:
    key = identity(["here"], ["loader.num_workers=0,2", "measure.repeats=3", "capture=light"])
    assert key == identity(["here"], ["measure.repeats=5", "measure.budget=9s", "loader.num_workers=0,2"])
    assert key != identity(["here"], ["loader.num_workers=0,4"])
    assert key != identity(["there"], ["loader.num_workers=0,2"])


def shown(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert command.main(list(words)) == status
    return capsys.readouterr().out


def test_the_configuration_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = shown(capsys, "--cfg", "job", "loader=workers", "ddp.bucket_cap_mb=1,2", "--nproc", "3", "train.py", "--x")
    config = OmegaConf.create(text)
    assert (config.loader.num_workers, config.loader.persistent_workers, config.ddp.bucket_cap_mb) == (4, True, None)
    assert (config.script, config.script_args, config.torchrun) == ("train.py", ["--x"], ["--nproc-per-node=3"])
    capture = OmegaConf.create(shown(capsys, "--cfg", "job", "--package", "capture", "capture=deep"))
    assert (capture.active, capture.record) == (12, ["shapes", "memory"])
    params = shown(capsys, "--cfg", "hydra", "--package", "hydra.sweeper.params", "sweep=all")
    assert OmegaConf.create(params) == {
        "loader.num_workers": "choice(0,2,4)",
        "loader.pin_memory": "choice(true,false)",
        "ddp.bucket_cap_mb": "choice(1,25,100)",
    }
    assert f"file://{conf_folder()}" in shown(capsys, "--info", "searchpath")
    assert "sweep_schema" in shown(capsys, "--info", "defaults")


def test_groups_of_ones_own_and_presets(sweep: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "mine" / "loader").mkdir(parents=True)
    (tmp_path / "mine" / "loader" / "many.yaml").write_text("num_workers: 16\nprefetch_factor: 4\n")
    launches = Launches(workers_needed())
    assert (
        sweep(launches, "--out", "a", "--repeats", "1", "--config-dir", "mine", "loader=own,inline,many", "train.py")
        == 0
    )
    assert [point.values for point in read(tmp_path / "a").points] == [
        {},
        {"loader.num_workers": 0},
        {"loader.num_workers": 16, "loader.prefetch_factor": 4},
    ]
    assert (
        sweep(launches, "--out", "b", "--repeats", "1", "sweep=loader", "loader.num_workers=range(1,4)", "train.py")
        == 0
    )
    assert [point.values for point in read(tmp_path / "b").points[1:]] == [{"loader.num_workers": n} for n in (1, 2, 3)]
    assert sweep(launches, "--out", "c", "--repeats", "1", "loader=glob(*,exclude=own)", "train.py") == 0
    assert len(read(tmp_path / "c").points) == 4


def test_it_is_a_hydra_app_of_its_own(sweep: Callable[..., int], tmp_path: Path) -> None:
    launches = Launches(workers_needed())
    words = [
        "-m",
        "script=train.py",
        "nproc_per_node=2",
        "out=out",
        "measure.repeats=1",
        "loader.num_workers=choice(0,2)",
    ]
    assert sweep(launches, *words, entry=lambda argv: app.main(argv, ["x"]).status) == 0
    assert launches.launchers[0].training.torchrun == ["--nproc-per-node=2", "--standalone"]
    assert [point.values for point in read(tmp_path / "out").points[1:]] == [
        {"loader.num_workers": 0},
        {"loader.num_workers": 2},
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("loader.num_workers=some train.py", "could not be converted to Integer"),
        ("loader.workers=1 train.py", "Could not override 'loader.workers'"),
        ("loader=none_such train.py", "Could not find 'loader/none_such'"),
        ("loader.num_workers=-1 train.py", "loader.num_workers cannot be '-1': it is a whole number of at least 0"),
        ("measure.steps=1,2 train.py", "measure.steps cannot be swept"),
        ("--nnodes=2 loader.num_workers=1 train.py", "sweeps launch on one host"),
        ("measure.budget=soon loader.num_workers=1 train.py", "'soon' is no time such as 90s"),
        ("--out full loader.num_workers=1 train.py", "is not empty and holds no sweep"),
        ("loader.num_workers=1 train.py ${args.lrr}", "script_args refers to 'args.lrr'"),
        ("loader.num_workers=1", "there is no script to launch"),
        ("train.py", "nothing is swept"),
        ("measure.together=true hydra/launcher=submitit_local loader.num_workers=1 train.py", "basic launcher"),
    ],
)
def test_wrong_command_lines_launch_nothing_and_say_why(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    launches = Launches(workers_needed())
    assert sweep(launches, *words.split()) == 2
    assert launches.done == []
    assert told in " ".join(capsys.readouterr().err.split())


def test_one_job_alone_is_measured_beside_the_baseline(sweep: Callable[..., int], tmp_path: Path) -> None:
    words = ["--out", "out", "hydra.mode=RUN", "loader.num_workers=2", "train.py"]
    assert sweep(Launches(workers_needed()), *words) == 0
    assert read(tmp_path / "out").recommended == "p1"


def test_settings_and_groups_are_completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        return shown(capsys, "-sc", "query=bash").split()

    assert completed("distprof sweep --nproc 4 loader.num_w") == ["loader.num_workers="]
    assert set(completed("distprof sweep --nproc 4 ddp.bucket_cap_mb=1 loader=")) == {
        "loader=deep_queue",
        "loader=inline",
        "loader=own",
        "loader=workers",
    }
    assert "capture=" in completed("distprof sweep ")
    assert "complete -o nospace" in shown(capsys, "-sc", "install=bash")
    assert shown(capsys, "-sc", "install=fish", status=2) == ""


def test_every_setting_has_its_place_in_the_groups() -> None:
    register()
    with hydra.initialize_config_dir(str(conf_folder()), version_base="1.3"):
        for group in ("loader", "ddp", "capture"):
            for path in (conf_folder() / group).glob("*.yaml"):
                config = hydra.compose("config", [f"{group}={path.stem}"])
                assert set(OmegaConf.load(path)) <= set(config[group])


def test_bash_completes_settings_of_a_sweep_and_leaves_the_rest_to_others(capsys: pytest.CaptureFixture[str]) -> None:
    script = shown(capsys, "-sc", "install=bash")
    program = "other() { COMPREPLY=(other); }; complete -F other distprof\n" + script
    for line in ("distprof sweep --nproc 2 capture=", "distprof sweep --np", "distprof rep"):
        program += (
            f'\nCOMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=(); _distprof_sweep; echo "${{COMPREPLY[@]}}"'
        )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", program], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["capture=deep capture=light capture=zones", "other", "other"]
