"""What capture is told: read from options, carried by the environment, the same when it arrives."""

from __future__ import annotations

import pytest

from distprof.launcher.env import shell_lines
from distprof.launcher.spec import LaunchSpec
from distprof.run.config import (
    CONFIG_VARIABLE,
    OWNER_VARIABLE,
    SAMPLE_OF_RANKS,
    CaptureConfig,
    ConfigError,
    Schedule,
    inject_folder,
    parse_activities,
    parse_max_trace_mb,
    parse_record,
    parse_window_ranks,
    sample_of_ranks,
)

EVERYTHING = CaptureConfig(
    run_dir="/runs/a b/'c'",
    schedule=Schedule(wait=0, warmup=0, active=1, repeat=3),
    window_ranks=[0, 8],
    activities=["cpu", "cuda"],
    record=["shapes", "stacks"],
    max_trace_mb=None,
    probes=False,
    settings={"loader.num_workers": 4, "ddp.static_graph": True, "ddp.bucket_cap_mb": 0.5, "loader.only": "t.py:3"},
    stop_after=40,
    seed=7,
    checksum=True,
    only_steps=True,
)


@pytest.mark.parametrize("config", [CaptureConfig(run_dir="x"), EVERYTHING])
def test_it_arrives_as_it_was_sent(config: CaptureConfig) -> None:
    assert CaptureConfig.from_environment(config.to_environment()) == config


def test_without_the_variable_there_is_none() -> None:
    assert CaptureConfig.from_environment({}) is None
    assert CaptureConfig.from_environment({CONFIG_VARIABLE: ""}) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schedule": {}, "run_dir": "x", "unknown": 1}', '{"schedule": 1}'])
def test_another_versions_configuration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a capture configuration of this version"):
        CaptureConfig.from_environment({CONFIG_VARIABLE: text})


def test_schedule() -> None:
    assert Schedule.parse("active=3, wait=1") == Schedule(wait=1, active=3)
    for text in ("", "wait", "wait=", "wait=-1", "wait=1;active=2", "stop=3", "active=0", "repeat=0", "wait=²"):
        with pytest.raises(ConfigError):
            Schedule.parse(text)


def test_activities() -> None:
    assert parse_activities("auto") is None
    assert parse_activities("cpu") == ["cpu"]
    assert parse_activities("CUDA, cpu") == ["cpu", "cuda"]
    assert parse_activities("cpu,xpu") == ["cpu", "xpu"]
    for text in ("", "cuda", "auto,cpu", "cpu,cuda,xpu", "cpu,rocm"):
        with pytest.raises(ConfigError, match="is not one of auto"):
            parse_activities(text)


def test_window_ranks() -> None:
    assert parse_window_ranks("all") == "all"
    assert parse_window_ranks("auto") == "auto"
    assert parse_window_ranks("8, 0,8") == [0, 8]
    for text in ("", "0,", "a", "-1", "0-3", "1.0"):
        with pytest.raises(ConfigError, match="ranks such as 0,8"):
            parse_window_ranks(text)


def test_record_and_size() -> None:
    assert parse_record("shapes,flops") == ["shapes", "flops"]
    assert parse_record("") == []
    assert parse_max_trace_mb("0.5") == 0.5
    assert parse_max_trace_mb("none") is None
    for text in ("", "0", "-1", "nan", "inf", "1MB"):
        with pytest.raises(ConfigError, match="megabytes above 0"):
            parse_max_trace_mb(text)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 16), (16, 1), (2, 8)])
def test_of_a_small_world_all_are_taken(nodes: int, per_node: int) -> None:
    assert sample_of_ranks(nodes * per_node, per_node) is None


@pytest.mark.parametrize(
    ("nodes", "per_node"), [(1, 17), (3, 8), (8, 8), (9, 2), (15, 8), (16, 4), (125, 8), (4096, 1)]
)
def test_of_a_large_world_a_sample_is_taken(nodes: int, per_node: int) -> None:
    sample = sample_of_ranks(nodes * per_node, per_node)
    assert sample is not None
    assert sample == sorted(set(sample))
    assert len(sample) == SAMPLE_OF_RANKS
    assert sample[0] == 0
    assert sample[-1] < nodes * per_node
    firsts = {rank for rank in sample if rank % per_node == 0}
    assert len(firsts) == min(nodes, SAMPLE_OF_RANKS)


def test_the_sample_has_different_places_on_the_nodes() -> None:
    sample = sample_of_ranks(64, 8)
    assert sample is not None
    assert {rank % 8 for rank in sample} == set(range(8))


def test_who_records_a_window() -> None:
    assert CaptureConfig("x").wants_window(99)
    assert CaptureConfig("x", window_ranks=[0, 2]).wants_window(2)
    assert not CaptureConfig("x", window_ranks=[0, 2]).wants_window(1)
    assert not CaptureConfig("x", window_ranks=[]).wants_window(0)
    assert not CaptureConfig("x", only_steps=True).wants_window(0)


def test_arming_keeps_what_the_user_set_and_is_the_same_when_repeated() -> None:
    spec = LaunchSpec(command=[], script="", capture=EVERYTHING)
    inherited = {"PYTHONPATH": ":/mine", "TORCH_FR_BUFFER_SIZE": "77", "OTHER": "x"}
    armed = spec.environment(inherited)
    assert armed["PYTHONPATH"] == f"{inject_folder()}::/mine"
    assert armed["TORCH_FR_BUFFER_SIZE"] == "77"
    assert "OTHER" not in armed
    assert spec.environment({**inherited, **armed}) == armed
    assert spec.environment({"PYTHONPATH": ""})["PYTHONPATH"] == str(inject_folder())


def test_a_ranks_own_shell_can_start_a_run_of_its_own() -> None:
    spec = LaunchSpec(command=[], script="", capture=EVERYTHING)
    assert "unset" not in shell_lines(spec, {})
    assert f"unset {OWNER_VARIABLE}" in shell_lines(spec, {OWNER_VARIABLE: "123"}).splitlines()
