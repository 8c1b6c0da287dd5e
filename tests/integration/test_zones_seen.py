"""What the zones tell of loops that do more than train, and what capture says of the conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.pipeline import build
from distprof.run.config import Schedule
from tests.ranks import capture

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}

TRAINING = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(36, 8), torch.randint(0, 4, (36,)))
def epoch(**options):
    for x, y in DataLoader(data, batch_size=8, **options):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_validation_and_checkpoints_are_out_of_step(tmp_path: Path) -> None:
    script = (
        TRAINING
        + """
for number in range(4):
    epoch()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=4):
            model(x)
            time.sleep(0.01)
    model.train()
    torch.save(model.state_dict(), sys.argv[0] + ".pt")
    time.sleep(0.05)
"""
    )
    done = capture(tmp_path, script, env=RANK, config={"window_ranks": []})
    assert done.returncode == 0, done.stderr
    tables = done.run.tables
    assert tables.steps.height == 20  # the nine batches of each validation are none
    assert tables.zones.filter(kind="evaluation").height == 36
    assert tables.zones.filter(kind="checkpoint").height == 4
    assert tables.steps.filter(excluded="out_of_step")["step"].to_list() == [5, 10, 15]
    result = build(done.run)
    assert result.steps.excluded.out_of_step is not None
    assert result.steps.excluded.out_of_step > 3 * 9 * 10
    assert result.steps.steady.p90 is not None
    assert result.steps.steady.p90 < 50  # a validation takes more than 90 ms


def test_a_ddp_model_whose_first_batch_comes_late_is_the_only_one_timed(tmp_path: Path) -> None:
    script = """
        import os, time, torch
        import torch.distributed as dist
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        dist.init_process_group("gloo", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.MSELoss()
        time.sleep(1.5)
        for (x,) in DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4):
            optimizer.zero_grad(); loss(model(x), x).backward(); optimizer.step()
        dist.destroy_process_group()
    """
    done = capture(tmp_path, script, env={**RANK, "MASTER_PORT": "29549"}, config={"window_ranks": []})
    assert done.returncode == 0, done.stderr
    forwards = done.run.tables.zones.filter(kind="forward")["name"].to_list()
    assert forwards == 6 * ["DistributedDataParallel#0"]


def test_worker_start_up_is_apart(tmp_path: Path) -> None:
    script = TRAINING.replace("for x, y", "for x, y") + "\nif __name__ == '__main__':\n"
    script += "    for _ in range(3): epoch(num_workers=2)\n    epoch(num_workers=0)\n"
    done = capture(tmp_path, script, env=RANK, config={"window_ranks": []})
    assert done.returncode == 0, done.stderr
    kinds = done.run.tables.zones["kind"].value_counts()
    counts = dict(zip(kinds["kind"], kinds["count"], strict=True))
    assert counts["loader_start"] == 4
    assert counts["loader_first"] == 3
    assert counts["data_loading"] == 3 * 4 + 5
    assert counts["loader_end"] == 4


def test_conditions_of_the_measurement(tmp_path: Path) -> None:
    script = (
        TRAINING
        + """
epoch()
with torch.autocast("cpu", dtype=torch.bfloat16):
    epoch()
"""
    )
    environment = {**RANK, "NCCL_DEBUG": "WARN", "MY_PASSWORD": "s3cr3tvalue"}
    done = capture(tmp_path, script, env=environment, config={"window_ranks": []})
    assert done.returncode == 0, done.stderr
    facts = done.facts
    # 36 samples: four whole batches and one of four, in each of two epochs.
    assert facts["batches"] == [
        {"shapes": ["float32[8, 8]", "int64[8]"], "count": 8},
        {"shapes": ["float32[4, 8]", "int64[4]"], "count": 2},
    ]
    assert facts["models"][0] == {  # type: ignore[index]
        "name": "Sequential#0",
        "mode": "train",
        "autocast": False,
        "compiled": False,
    }
    assert facts["loaders"][0]["batch_size"] == 8  # type: ignore[index]
    assert facts["environment"]["NCCL_DEBUG"] == "WARN"  # type: ignore[index]
    assert "s3cr3tvalue" not in (done.run_dir / "attempt0" / "rank00000.json").read_text()
    batches = done.run.tables.batches
    assert batches["samples"].to_list() == [8, 8, 8, 8, 4] * 2
    assert batches["elements"].to_list() == [72, 72, 72, 72, 36] * 2
    assert batches["step"].to_list() == list(range(10))


def test_the_size_of_a_trace_is_capped(tmp_path: Path) -> None:
    script = TRAINING + "\nfor _ in range(6): epoch()\n"
    schedule = Schedule(wait=2, warmup=2, active=16)
    whole = capture(tmp_path, script, env=RANK, config={"schedule": schedule})
    (window,) = whole.facts["windows"]  # type: ignore[misc]
    assert window["reason"] is None
    second = tmp_path / "capped"
    second.mkdir()
    capped = capture(second, script, env=RANK, config={"schedule": schedule, "max_trace_mb": 0.1})
    assert capped.returncode == 0, capped.stderr
    (window,) = capped.facts["windows"]  # type: ignore[misc]
    assert "--max-trace-mb" in window["reason"]
    events = [done.run.tables.events.height for done in (whole, capped)]
    assert 0 < events[1] < events[0] / 2
    result = build(capped.run)
    assert any("--max-trace-mb" in row.reason for row in result.not_observed)


@pytest.mark.parametrize("ranks", [None, [], [3]])
def test_who_records_a_window(ranks: list[int] | None, tmp_path: Path) -> None:
    done = capture(tmp_path, TRAINING + "\nfor _ in range(3): epoch()\n", env=RANK, config={"window_ranks": ranks})
    assert done.returncode == 0, done.stderr
    traces = [path.name for path in (done.run_dir / "attempt0").glob("*.pt.trace.json.gz")]
    assert traces == (["rank00000.window0.pt.trace.json.gz"] if ranks is None else [])
