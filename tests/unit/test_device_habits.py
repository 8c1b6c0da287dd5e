"""Habits that show in a Kineto window, each planted, and its healthy twin; times are ms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from distprof.analyze.device_habits import DEVICE_HABITS
from distprof.result import Finding
from distprof.trace.tables import SHAPES
from tests.unit.tables import Kernel, Operator, Step, Zone, inputs, judged, tables

RANKS, NUMBERS = (0, 1), range(1, 6)
STEPS = [Step(rank, step, 100 * step, 100 * step + 100) for rank in RANKS for step in NUMBERS]
WINDOWS = [(rank, 99.0, 601.0) for rank in RANKS]
PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
ZONES = [
    Zone(rank, kind, 100 * step + start, 100 * step + end, kind)
    for rank in RANKS
    for step in NUMBERS
    for kind, start, end in (("data_loading", 0, 10), ("forward", 20, 40), ("backward", 40, 80), ("optimizer", 85, 99))
]


def facts(device: str = "cuda", **loader: Any) -> dict[int, dict[str, Any]]:
    loaders = [{"name": "data_loading", "num_workers": 2, "pin_memory": False} | loader]
    return {
        rank: {"host": "a", "boot_id": "b", "device": device, "argv": ["train.py"], "loaders": loaders}
        for rank in RANKS
    }


def offered(shapes: pl.DataFrame | None = None, **what: Any) -> list[Finding]:
    of = tables(**{"ranks": RANKS, "steps": STEPS, "windows": WINDOWS, "zones": ZONES, "facts": facts(), **what})
    prepared = inputs(of if shapes is None else replace(of, shapes=shapes))
    return [finding for habit in DEVICE_HABITS for finding in habit(prepared, judged(prepared))]


def each_step(at: float, ms: float, name: str = "gemm", *, steps: Iterable[int] = NUMBERS, **more: Any) -> list[Kernel]:
    """Work of every rank in every step, launched so long after its beginning."""
    begins = [(rank, 100 * step + at) for rank in RANKS for step in steps]
    return [Kernel(rank, begin + 1, begin + 1 + ms, name, launched=begin, **more) for rank, begin in begins]


BUSY = each_step(20, 60)
BATCH = each_step(12, 1, PINNED, cat="gpu_memcpy", bytes=4096)


def test_a_healthy_job_on_devices() -> None:
    assert offered(kernels=[*BUSY, *BATCH]) == []


def test_the_same_copy_in_every_step() -> None:
    mask = each_step(25, 4, PINNED, cat="gpu_memcpy", bytes=1_000_000)
    (found,) = offered(kernels=[*BUSY, *BATCH, *mask])
    assert (found.id, found.ranks, found.steps) == ("habit.repeated_copy", [0, 1], [1, 2, 3, 4, 5])
    assert found.saves == pytest.approx(4)
    assert "in forward rank 1 copies 1000000 bytes to the device 1 times in every step" in found.observation


@pytest.mark.parametrize(
    "copies",
    [
        each_step(12, 4, PINNED, cat="gpu_memcpy", bytes=1_000_000),  # between the zones: the batch
        each_step(25, 4, PINNED, cat="gpu_memcpy", bytes=1_000_000, steps=(1, 2, 3, 4)),  # not in every step
        each_step(25, 4, PINNED, cat="gpu_memcpy"),  # of unknown size
        each_step(25, 0.5, PINNED, cat="gpu_memcpy", bytes=64),  # too little
        each_step(25, 4, "Memcpy DtoD (Device -> Device)", cat="gpu_memcpy", bytes=1_000_000),
        [
            row
            for step in NUMBERS
            for row in each_step(25, 4, PINNED, cat="gpu_memcpy", bytes=1_000 * step, steps=[step])
        ],
    ],
)
def test_other_copies_are_none(copies: list[Kernel]) -> None:
    assert offered(kernels=[*BUSY, *copies]) == []


def test_copies_from_memory_that_is_not_pinned_block_the_host() -> None:
    blocking = each_step(12, 2, PAGEABLE, cat="gpu_memcpy", bytes=4096, blocked=6)
    (found,) = offered(kernels=[*BUSY, *blocking])
    assert (found.id, found.ranks) == ("habit.pageable_copy", [0, 1])
    assert found.saves == pytest.approx(6), "the call takes longer than the copy"
    assert "--candidate loader.pin_memory=true train.py`" in found.next_check
    assert found.severity == "warning"


def test_where_the_loader_pins_already_something_else_is_copied() -> None:
    blocking = each_step(12, 6, PAGEABLE, cat="gpu_memcpy", bytes=4096)
    (found,) = offered(kernels=[*BUSY, *blocking], facts=facts(pin_memory=True))
    assert "validate" not in found.next_check
    assert "Tensor.pin_memory()" in found.next_check


def test_a_copy_that_is_both_is_told_once() -> None:
    both = each_step(25, 4, PAGEABLE, cat="gpu_memcpy", bytes=1_000_000)
    assert [found.id for found in offered(kernels=[*BUSY, *both])] == ["habit.repeated_copy"]


@pytest.mark.parametrize("name", ["CopyHostToDevice", "Memcpy M2D", "Memcpy HtoD (Host -> Device)"])
def test_copies_of_every_vendor(name: str) -> None:
    mask = each_step(25, 4, name, cat="gpu_memcpy", bytes=1_000_000)
    (found,) = offered(kernels=[*BUSY, *BATCH, *mask])
    assert (found.id, found.saves) == ("habit.repeated_copy", pytest.approx(4))


@pytest.mark.parametrize("name", ["CopyHostToDevice", "Memcpy M2D", "Memcpy HtoD (Host -> Device)"])
def test_copies_that_keep_the_host_where_names_do_not_tell_of_pinned_memory(name: str) -> None:
    blocking = each_step(12, 6, name, cat="gpu_memcpy", bytes=4096, blocked=7.5)  # it begins 1 ms after the call
    (found,) = offered(kernels=[*BUSY, *blocking])
    assert (found.id, found.saves) == ("habit.pageable_copy", pytest.approx(7.5))
    assert "rank 0 waits in its copies to the device until they are over, 1.0 times and 7.50 ms per step" in (
        found.observation
    )
    assert "not pinned" not in found.observation, "the name does not tell it"
    returned = each_step(12, 6, name, cat="gpu_memcpy", bytes=4096)
    assert offered(kernels=[*BUSY, *returned]) == [], "the call returned at once"
    pinned = each_step(12, 6, PINNED, cat="gpu_memcpy", bytes=4096, blocked=7.5)
    assert offered(kernels=[*BUSY, *pinned]) == []


def tiny(start: float, count: int, us: float, gap_us: float) -> list[Kernel]:
    """So many kernels, one after the other, in every step."""
    period = (us + gap_us) / 1000
    return [row for index in range(count) for row in each_step(start + index * period, us / 1000)]


@pytest.mark.parametrize(("start", "zone"), [(20, "forward"), (40, "backward")])
def test_many_tiny_kernels_with_gaps(start: float, zone: str) -> None:
    (found,) = offered(kernels=tiny(start, 400, us=4, gap_us=76))
    assert (found.id, found.ranks) == ("habit.tiny_kernels", [0, 1])
    assert found.saves == pytest.approx(400 * 0.076, rel=0.02)
    assert "400 kernels per step of 4.0 us" in found.observation
    assert "torch.compile" in found.next_check


def test_where_the_optimizer_launches_them_it_has_a_remedy() -> None:
    zones = [Zone(rank, "optimizer", 100 * step + 20, 100 * step + 99, "SGD#0") for rank in RANKS for step in NUMBERS]
    (found,) = offered(kernels=tiny(30, 400, us=4, gap_us=76), zones=zones)
    assert "most in optimizer" in found.observation
    assert "fused=True" in found.next_check


@pytest.mark.parametrize(("inside", "told"), [(210, True), (190, False)])
def test_a_place_is_named_that_has_more_than_half_of_all_kernels(inside: int, told: bool) -> None:
    # Where torch alone annotates, most kernels are launched in no zone.
    zones = [Zone(rank, "optimizer", 100 * step + 60, 100 * step + 99, "SGD#0") for rank in RANKS for step in NUMBERS]
    kernels = [*tiny(10, 400 - inside, us=4, gap_us=76), *tiny(61, inside, us=4, gap_us=76)]
    (found,) = offered(kernels=kernels, zones=zones)
    assert found.id == "habit.tiny_kernels"
    assert ("most in optimizer" in found.observation) is told
    assert ("fused=True" in found.next_check) is told
    assert ("torch.compile" in found.next_check) is not told


@pytest.mark.parametrize(
    "kernels",
    [
        tiny(20, 50, us=4, gap_us=90),  # few
        tiny(20, 400, us=70, gap_us=60),  # not tiny
        tiny(20, 400, us=8, gap_us=2),  # the device does not wait for them
        tiny(0, 200, us=4, gap_us=400),  # it waits for something else
    ],
)
def test_kernels_that_are_few_or_large_or_close_are_none(kernels: list[Kernel]) -> None:
    assert offered(kernels=kernels) == []


def operators(count: int, ms: float, gap: float, name: str = "aten::add") -> list[Operator]:
    return [
        Operator(rank, 100 * step + 20 + index * (ms + gap), 100 * step + 20 + index * (ms + gap) + ms, name)
        for rank in RANKS
        for step in NUMBERS
        for index in range(count)
    ]


def test_on_a_cpu_operators_take_the_kernels_place() -> None:
    (found,) = offered(operators=operators(500, 0.01, 0.06), facts=facts("cpu"))
    assert found.id == "habit.tiny_operators"
    assert found.saves == pytest.approx(500 * 0.06, rel=0.01)
    assert offered(operators=operators(500, 0.04, 0.06, "aten::mm"), facts=facts("cpu")) == []
    assert offered(operators=operators(500, 0.01, 0.06)) == [], "a device's host: its kernels would tell"


def test_one_operator_for_everything_with_its_shapes() -> None:
    rows = operators(2, 20, 1, "aten::index_put_")
    shapes = pl.DataFrame(
        [(0, 0, "aten::index_put_", f"[[{size}]]", 5, 10 * size) for size in (10, 90, 50)], schema=SHAPES, orient="row"
    )
    (found,) = offered(operators=rows, facts=facts("cpu"), shapes=shapes)
    assert (found.id, found.severity, found.saves) == ("habit.dominating_operator", "info", None)
    assert "aten::index_put_ takes 40.0 ms per step by itself, 40% of it, in 2 calls" in found.observation
    assert "[[90]]" in found.observation
    (found,) = offered(operators=rows, facts=facts("cpu"))
    assert "--record shapes" in found.next_check


@pytest.mark.parametrize("name", ["aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::convolution"])
def test_multiplications_may_dominate(name: str) -> None:
    assert offered(operators=operators(2, 20, 1, name), facts=facts("cpu")) == []


def test_a_smaller_share_does_not_dominate() -> None:
    rows = operators(2, 10, 1, "aten::index_put_")
    assert offered(operators=rows, facts=facts("cpu")) == []


def sorting(ms: float = 30, operator: str = "aten::sort", *, of: str = "at::native::radixSort") -> dict[str, Any]:
    """In every step an operator whose two kernels take so long together, and a multiplication."""
    called = [
        Operator(rank, 100 * step + at, 100 * step + at + 0.2, name)
        for rank in RANKS
        for step in NUMBERS
        for at, name in ((12, operator), (13, "aten::mm"))
    ]
    names = (f"void {of}<float, 2>(float*)", f"void {of}Last<float>(float*)")
    kernels = [
        *each_step(12.05, 0.8 * ms, names[0]),
        *[replace(row, start=row.start + ms, end=row.end + ms) for row in each_step(12.1, 0.2 * ms, names[1])],
        *[replace(row, start=row.start + 50, end=row.end + 50) for row in each_step(13.1, 20)],
    ]
    return {"kernels": kernels, "operators": called}


def test_one_operator_for_everything_on_a_device() -> None:
    (found,) = offered(**sorting())
    assert (found.id, found.severity, found.saves, found.ranks) == ("habit.dominating_kernel", "info", None, [0])
    assert found.observation == (
        "the kernels of aten::sort take 30.0 ms per step, 30% of it, in 2 launches, most of it in at::native::radixSort"
    )
    assert found.evidence == {"kernels.total": pytest.approx(30), "kernels.calls": pytest.approx(2)}
    assert "--record shapes" in found.next_check


def shaped(*rows: tuple[str, int]) -> pl.DataFrame:
    """SHAPES of aten::sort; rows are (shapes, ns)."""
    return pl.DataFrame([(0, 0, "aten::sort", text, 5, ns) for text, ns in rows], schema=SHAPES, orient="row")


def test_it_tells_the_shapes() -> None:
    (found,) = offered(shaped(("[[4096, 64], [], []]", 10)), **sorting())
    assert found.observation.endswith("on inputs of shapes [[4096, 64], [], []]")
    assert "--record" not in found.next_check
    # The host's times do not tell which of several calls kept the device.
    (found,) = offered(shaped(("[[8], [], []]", 90), ("[[64, 4096], []]", 10), ("[]", 1)), **sorting())
    assert found.observation.endswith("on inputs of shapes [[64, 4096], []] and smaller ones")


def test_a_kernel_that_no_operator_launched_goes_by_its_own_name() -> None:
    (found,) = offered(**{**sorting(40, of="triton_red_fused_sum_0"), "operators": []})
    assert found.observation == "the kernel triton_red_fused_sum_0 takes 32.0 ms per step, 32% of it, in 1 launch"


@pytest.mark.parametrize(
    "what",
    [
        sorting(20),  # a smaller share
        sorting(operator="aten::mm"),  # its operator multiplies
        sorting(operator="aten::convolution_backward"),
        {**sorting(60, of="ampere_sgemm_128x64_tn"), "operators": []},  # the kernel's name says so
        {**sorting(60, of="cutlass::Kernel2"), "operators": []},
        {**sorting(60, of="Cijk_Alik_Bljk_SB_MT64x16x32"), "operators": []},
        {**sorting(60, of="pytorch_flash::flash_fwd_kernel"), "operators": []},
        {"kernels": each_step(12, 60, "ncclDevKernel_AllReduce", collective="all_reduce")},  # it communicates
        {"kernels": each_step(12, 60, "Memcpy DtoD (Device -> Device)", cat="gpu_memcpy")},
    ],
)
def test_what_may_dominate_a_device(what: dict[str, Any]) -> None:
    assert offered(**what) == []


def test_what_one_rank_alone_has_is_shared_out_over_the_ranks() -> None:
    what = sorting(40)
    alone = [row for row in what["kernels"] if row.rank == 1 or row.name == "gemm"]
    assert offered(**{**what, "kernels": alone}) == [], "20 ms in the mean: who is late is another question"
