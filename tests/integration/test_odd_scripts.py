"""Scripts that do what scripts rarely do: they run as without distprof, and what can be recorded is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.run.config import Schedule
from tests.ranks import Captured, capture

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
HEAD = """
import os, sys, threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Linear(8, 4)
def train(optimizer, steps, loader=None):
    batches = iter(loader) if loader is not None else None
    for _ in range(steps):
        x = next(batches)[0] if batches is not None else torch.randn(4, 8)
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
# The window is open from step 3 on, and the short trainings below end inside it.
OPEN: dict[str, object] = {"schedule": Schedule(wait=3, warmup=1, active=50)}


def run(tmp_path: Path, body: str) -> Captured:
    done = capture(tmp_path, HEAD + body, env=RANK, config=OPEN)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_fork_that_exits_in_an_open_window_leaves_the_recording_alone(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(optimizer, 8)
child = os.fork()
if child == 0:
    print("the child speaks")
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
facts = open(os.path.join(os.path.dirname(sys.argv[0]), "run", "attempt0", "rank00000.json")).read()
assert '"running"' in facts, facts
train(optimizer, 4)
""",
    )
    assert done.facts["status"] == "finished"
    assert done.run.tables.steps.height == 12
    assert done.stdout == "the child speaks\n"
    (window,) = done.facts["windows"]  # type: ignore[misc]
    assert window["reason"] == "closed early: the script forked the process"


def test_training_on_another_thread_than_the_main_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
thread = threading.Thread(target=train, args=(optimizer, 8)); thread.start(); thread.join()
""",
    )
    assert done.run.tables.steps.height == 8
    (window,) = done.facts["windows"]  # type: ignore[misc]
    assert "not run in the main thread" in window["reason"]


@pytest.mark.parametrize(
    "thing",
    [
        "class Odd(DataLoader):\n    def _get_iterator(self): return iter([[torch.randn(4, 8)]] * 6)\n",
        "class Odd(DataLoader):\n    __hash__ = None\n",
        "class Odd(DataLoader):\n    def __hash__(self): raise ValueError('no')\n",
    ],
    ids=["a list's iterator", "unhashable", "cannot be hashed"],
)
def test_odd_loaders(thing: str, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        thing
        + """
train(torch.optim.SGD(model.parameters(), lr=0.1), 6, Odd(TensorDataset(torch.randn(24, 8)), batch_size=4))
print("trained")
""",
    )
    assert done.stdout == "trained\n"
    assert done.facts["problems"] == []
    assert done.run.tables.steps.height == 6


def test_a_batch_of_the_scripts_own_kind_is_not_looked_into(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
from collections.abc import Mapping, Sequence
class Lazy(Mapping):
    touched = 0
    def __getitem__(self, key): Lazy.touched += 1; return torch.randn(4, 8)
    def __iter__(self): Lazy.touched += 1; return iter(["x"])
    def __len__(self): return 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(list(range(24)), batch_size=4, collate_fn=lambda items: Lazy()):
    assert Lazy.touched == 0
    x = batch["x"]; Lazy.touched = 0
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
""",
    )
    assert done.facts["batches"] == []
    assert done.facts["problems"] == []


def test_an_exception_whose_text_raises(tmp_path: Path) -> None:
    body = """
class Odd(Exception):
    def __str__(self): raise ValueError("no text")
train(torch.optim.SGD(model.parameters(), lr=0.1), 2)
raise Odd
"""
    done = capture(tmp_path, HEAD + body, env=RANK, config=OPEN)
    assert done.returncode == 1
    assert "Error in sys.excepthook" not in done.stderr
    assert done.facts["exit"] == {"reason": "exception", "exception": "Odd"}


def test_accumulation_counts_optimizer_steps_from_the_first_on(tmp_path: Path) -> None:
    body = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    for micro in range(8):
        model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""
    done = capture(tmp_path, HEAD + body, env=RANK, config={"schedule": Schedule(wait=2, warmup=1, active=3)})
    assert done.returncode == 0, done.stderr
    assert done.facts["boundaries"] == 12
    tables = done.run.tables
    marks = tables.events.filter(tables.events["name"].str.starts_with("ProfilerStep#"))["name"].to_list()
    assert marks == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert tables.events.filter(name="aten::addmm").height == 4 * 8


def test_a_smaller_ring_is_read_in_time(tmp_path: Path) -> None:
    body = """
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29547")
dist.init_process_group("gloo")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    train(optimizer, 1)
    for _ in range(10): dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
    done = capture(tmp_path, HEAD + body, env={**RANK, "TORCH_FR_BUFFER_SIZE": "100"}, config={"window_ranks": []})
    assert done.returncode == 0, done.stderr
    assert done.facts["own_cost"]["lost_collectives"] == 0  # type: ignore[index]
    assert done.run.tables.collectives.height == 600
    assert json.dumps(done.run.notes, default=str) == "[]"


def test_what_a_signal_handler_raises_inside_our_code_reaches_the_script(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import signal
from distprof.capture.window import Window
class Preempted(Exception): pass
def handler(number, frame): raise Preempted
signal.signal(signal.SIGUSR1, handler)
close = Window.close
def close_in_a_storm(self, reason):  # the signal comes in the middle of an export
    if reason is None: os.kill(os.getpid(), signal.SIGUSR1)
    return close(self, reason)
Window.close = close_in_a_storm
from torch.utils.data import DataLoader
try:
    train(torch.optim.SGD(model.parameters(), lr=0.1), 80)
except Preempted:
    print("preempted")
""",
    )
    assert done.stdout == "preempted\n"


def test_files_of_the_script_get_nothing_of_ours_after_a_sweep_over_descriptors(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(optimizer, 2)
os.closerange(3, 256)
files = [open(f"{sys.argv[0]}.{number}", "w+") for number in range(12)]
for file in files: print("mine", file=file, flush=True)
for _ in range(4):
    train(optimizer, 1); time.sleep(0.5)
print({open(file.name).read() for file in files})
""",
    )
    assert done.stdout == "{'mine\\n'}\n"
    assert "its descriptor was closed" in done.stderr


def test_all_threads_can_be_joined_and_save_can_be_pickled(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pickle
train(torch.optim.SGD(model.parameters(), lr=0.1), 3)
for thread in threading.enumerate():
    if thread is not threading.main_thread(): thread.join()
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
""",
    )
    assert done.run.tables.steps.height == 3


def test_the_thread_that_trains_is_recorded_though_another_one_claimed_the_rank(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
loader = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
list(loader)  # the main thread claims
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
thread = threading.Thread(target=train, args=(optimizer, 8)); thread.start(); thread.join()
""",
    )
    tables = done.run.tables
    assert (tables.step_source, tables.steps.height) == ("optimizer", 8)
    assert tables.zones.filter(kind="backward", thread=0).height == 8


def test_ever_new_loaders_and_models_cost_no_more_than_the_first(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
for _ in range(300):
    model = nn.Linear(8, 4)
    train(torch.optim.SGD(model.parameters(), lr=0.1), 1, DataLoader(TensorDataset(torch.randn(4, 8)), batch_size=4))
""",
    )
    assert len(done.facts["loaders"]) == len(done.facts["models"]) == 100  # type: ignore[arg-type]
