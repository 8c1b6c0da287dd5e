"""Roots of collectives: where traces tell them, and DDP's own broadcasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import distprof
from distprof.result import Group
from distprof.trace.recordings import DdpFacts
from distprof.trace.roots import TOLD, root_of_inputs, root_of_record, roots_of
from distprof.trace.tables import ZONES, empty
from tests.unit.handmade import Event, kernel, launch, mark, span, write_trace


@pytest.mark.parametrize(
    ("operator", "inputs", "root"),
    [  # as torch 2.13 recorded them with shapes
        ("c10d::broadcast_", '["", "", "1", "0", "False", "-1"]', 1),
        ("c10d::reduce_", '["", "", "", "2", "0", "False", "-1"]', 2),
        ("c10d::gather_", '["[]", "", "", "1", "False", "-1"]', 1),
        ("c10d::scatter_", '["", "[]", "", "0", "False", "-1"]', 0),
        ("c10d::allreduce_", '["", "", "", "", "False", "-1"]', None),
        ("c10d::recv_", '["", "", "0", "0"]', None),
        ("c10d::broadcast_", '["", ""]', None),
        ("c10d::broadcast_", '["", "", "", "0"]', None),
        ("c10d::broadcast_", '["", "", "-1", "0"]', None),
        ("c10d::broadcast_", '["", "", "12345678901234567890", "0"]', None),
        ("c10d::broadcast_", '["", "", ["1"]]', None),
        ("c10d::broadcast_", "[" * 5000, None),
    ],
)
def test_inputs_of_operators(operator: str, inputs: str, root: int | None) -> None:
    assert root_of_inputs(operator, inputs.encode()) == root


@pytest.mark.parametrize(
    ("collective", "rank", "root"),
    [
        ("broadcast", 3, 3),
        ("_broadcast_oop", 0, 0),
        ("reduce", 1, 1),
        ("allreduce", 3, None),  # there it is the rank that recorded it
        ("broadcast", None, None),
        ("broadcast", True, None),
        ("broadcast", -1, None),
        (7, 1, None),
    ],
)
def test_records_of_collectives(collective: object, rank: object, root: int | None) -> None:
    assert root_of_record(collective, rank) == root


GROUPS = [Group(0, "0", None, [0, 1, 2, 3]), Group(1, "1", None, [2, 3])]
MODEL = [DdpFacts(name="DistributedDataParallel#0")]


def roots(
    calls: list[tuple[str, int, int]],
    zones: list[tuple[str, str, int, int]],
    *,
    models: list[DdpFacts] = MODEL,
    told: list[tuple[int, int, str, int]] | None = None,
) -> list[int | None]:
    entries = pl.DataFrame(calls, schema={"kind": pl.String, "created": pl.Int64, "group": pl.Int32}, orient="row")
    rows: list[tuple[Any, ...]] = [(2, kind, name, 0, start, end) for kind, name, start, end in zones]
    training = pl.DataFrame(rows, schema=ZONES, orient="row")
    operators = empty(TOLD) if told is None else pl.DataFrame(told, schema=TOLD, orient="row")
    return roots_of(entries, operators, training, models, GROUPS).to_list()


FORWARD = ("forward", "DistributedDataParallel#0", 100, 200)
BUFFERS = ("wait", "broadcast of buffers", 100, 130)


def test_buffers_come_from_the_first_of_the_group() -> None:
    calls = [("broadcast", 50, 0), ("broadcast", 101, 0), ("broadcast", 102, 1), ("broadcast", 150, 0)]
    assert roots(calls, [FORWARD, BUFFERS]) == [None, 0, 2, None]
    assert roots(calls, [("evaluation", *FORWARD[1:]), BUFFERS]) == [None, 0, 2, None]
    assert roots(calls, [FORWARD, BUFFERS], models=[]) == [None] * 4
    assert roots(calls, [FORWARD]) == [None] * 4
    assert roots(calls, [BUFFERS]) == [None] * 4, "a wrapper's constructor may say from whom"


def test_ranks_that_first_look_for_a_root_have_any() -> None:
    """As DDP's do in `join`, where ranks have different numbers of batches."""
    zones = [FORWARD, ("wait", "broadcast of buffers", 115, 130)]
    assert roots([("all_reduce", 110, 0), ("broadcast", 120, 0)], zones) == [None, None]
    assert roots([("all_reduce", 90, 0), ("broadcast", 120, 0), ("all_reduce", 140, 0)], zones) == [None, 0, None]


def test_a_collective_has_the_root_of_the_operator_that_created_it() -> None:
    calls = [("broadcast", 60, 0), ("reduce", 70, 1), ("broadcast", 101, 0), ("gather", 300, 0), ("scatter", 400, 1)]
    told = [(59, 61, "broadcast", 3), (69, 71, "reduce", 1), (299, 301, "broadcast", 2), (399, 401, "scatter", 2)]
    # The operator around the gather is none of its own, and group 1 has no third member.
    assert roots(calls, [FORWARD, BUFFERS], told=told) == [3, 3, 0, None, None]


def of_device(root: int, *, by_record: bool) -> list[Event]:
    """A broadcast and an all-reduce, as torch describes them on the calls or by the inputs of its operators."""
    events = [mark(3, 0, 1000)]
    for number, name, ts in ((1, "broadcast", 100), (2, "allreduce", 400)):
        inputs = {} if by_record else {"Concrete Inputs": ["", "", str(root), "0", "False", "-1"]}
        told = {"Collective name": name, "In msg nelems": 8, "dtype": "Float", "Seq": number}
        group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
        rank = {"Rank": root} if by_record else {}
        events += [
            span(f"c10d::{name}_", ts, 60, cat="cpu_op", **inputs),
            span("record_param_comms", ts + 5, 50, cat="cpu_op", **told, **group, **rank),
            launch(ts + 20, number),
            kernel(f"ncclDevKernel_{name}(x)", ts + 80, 50, stream=20, correlation=number),
        ]
    return events


@pytest.mark.parametrize("by_record", [True, False])
def test_roots_of_a_devices_collectives(by_record: bool, tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json", of_device(1, by_record=by_record), rank=rank)
    calls = distprof.load(tmp_path).tables.collectives
    assert calls.select("rank", "kind", "root").rows() == [
        (rank, *row) for rank in (0, 1) for row in (("broadcast", 1), ("all_reduce", None))
    ]


def test_a_root_is_not_known_where_ranks_of_its_group_are_missing(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank0.json", of_device(1, by_record=True), rank=0, world_size=3)
    assert distprof.load(tmp_path).tables.collectives["root"].to_list() == [None, None]


def test_roots_of_gloos_collectives(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [mark(3, 0, 1000)]
        for name, ts, inputs in (
            ("broadcast", 100, ["", "", "1", "0", "False", "-1"]),
            ("reduce", 200, ["", "", "", "0", "0", "False", "-1"]),
            ("barrier", 300, ["", "", "[]", "False", "-1"]),
        ):
            events.append(span(f"c10d::{name}_", ts, 60, cat="cpu_op", **{"Concrete Inputs": inputs}))
            events.append({**span(f"gloo:{name}", ts + 30, 60), "tid": 1001})
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank)
    calls = distprof.load(tmp_path).tables.collectives.filter(rank=0)
    assert calls.select("kind", "root").rows() == [("broadcast", 1), ("reduce", 0), ("barrier", None)]
