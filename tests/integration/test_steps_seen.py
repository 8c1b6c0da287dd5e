"""Steps of real loops of every kind, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks import Captured, capture

HEAD = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
x = torch.randn(4, 8)
def loss():
    return model(x).square().mean()
"""

LOOPS = {
    "sgd": (
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad(); loss().backward(); optimizer.step()
        """,
        ("optimizer", 6),
    ),
    "accumulation": (
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(12):
            loss().backward()
            if i % 3 == 2:
                optimizer.step(); optimizer.zero_grad()
        """,
        ("optimizer", 4),
    ),
    "closure": (
        """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        def closure():
            optimizer.zero_grad(); value = loss(); value.backward(); return value
        for _ in range(5):
            optimizer.step(closure)
        """,
        ("optimizer", 5),
    ),
    "a subclass that calls super": (
        """
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        class Twice(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                return super().step(closure)
        optimizer = Twice(model.parameters(), lr=0.1)
        for _ in range(6):
            loss().backward(); optimizer.step()
        """,
        ("optimizer", 6),
    ),
    "two optimizers": (
        """
        often = torch.optim.SGD(model[0].parameters(), lr=0.1)
        rarely = torch.optim.Adam(model[2].parameters(), lr=0.1)
        for i in range(12):
            loss().backward(); often.step()
            if i % 3 == 2:
                rarely.step()
        """,
        ("optimizer", 4),
    ),
    "a scaler that skips": (
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for i in range(6):
            optimizer.zero_grad()
            value = loss() * (float("inf") if i % 2 else 1.0)
            scaler.scale(value).backward(); scaler.step(optimizer); scaler.update()
        """,
        ("optimizer", 6),
    ),
    "a step that raises": (
        """
        class Odd(torch.optim.SGD):
            def step(self, closure=None):
                if self.param_groups[0].pop("raise", False):
                    raise ValueError("odd")
                return super().step(closure)
        optimizer = Odd(model.parameters(), lr=0.1)
        for i in range(6):
            loss().backward()
            optimizer.param_groups[0]["raise"] = i == 2
            try:
                optimizer.step()
            except ValueError:
                pass
        """,
        ("optimizer", 6),
    ),
    "the user's own": (
        """
        import distprof
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(8):
            loss().backward(); optimizer.step()
            if i % 2:
                distprof.step()
        """,
        ("user", 4),
    ),
    "only evaluation": (
        """
        import time
        from torch.utils.data import DataLoader
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(torch.randn(260, 8), batch_size=1):
                model(batch)
                time.sleep(0.05)
        """,
        ("none", 0),
    ),
}


def run_loop(tmp_path: Path, name: str) -> Captured:
    source = HEAD + "\n".join(line.removeprefix("        ") for line in LOOPS[name][0].splitlines())
    done = capture(tmp_path, source, env={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    assert done.returncode == 0, done.stderr
    assert done.facts["problems"] == []
    return done


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "only evaluation"])
def test_steps_of(name: str, tmp_path: Path) -> None:
    source, count = LOOPS[name][1]
    tables = run_loop(tmp_path, name).run.tables
    assert tables.step_source == source
    assert tables.steps.height == count


def test_a_loop_without_steps_gets_a_window_by_time(tmp_path: Path) -> None:
    done = run_loop(tmp_path, "only evaluation")
    tables = done.run.tables
    assert (tables.step_source, tables.steps.height) == ("none", 0)
    assert tables.zones.filter(kind="evaluation").height > 200  # but for the first second's
    (window,) = done.facts["windows"]  # type: ignore[misc]
    assert "by time" in window["reason"]
    assert tables.events.filter(name="aten::addmm").height > 10


def test_micro_steps_and_nesting(tmp_path: Path) -> None:
    tables = run_loop(tmp_path, "accumulation").run.tables
    assert tables.steps["backwards"].to_list() == [3, 3, 3, 3]
    assert tables.zones.filter(kind="forward").height == 9  # a plain module is watched from the second step on


def test_a_closure_nests_forward_and_backward_in_the_optimizer(tmp_path: Path) -> None:
    zones = run_loop(tmp_path, "closure").run.tables.zones
    (optimizer,) = zones.filter(kind="optimizer").sort("start").head(1).rows(named=True)
    inner = zones.filter(kind="backward").filter(
        (zones.filter(kind="backward")["start"] >= optimizer["start"])
        & (zones.filter(kind="backward")["end"] <= optimizer["end"])
    )
    assert inner.height >= 2
