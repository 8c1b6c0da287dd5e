"""Latency and bandwidth fitted to all-reduces of several sizes; times are ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distprof.analyze.transfer_models import transfer_models
from distprof.analyze.waits import match
from distprof.result import NotObserved, TransferModel
from tests.unit.tables import Call, tables

KB, MB = 1_000, 1_000_000
Transfer = Callable[[int], float]


def at(latency: float, gbps: float) -> Transfer:
    return lambda size: latency + size / (gbps * 1e6)


def fitted(
    sizes: Sequence[int], transfer: Transfer, *, steps: int = 5, apart: float = 100.0, kind: str = "all_reduce"
) -> tuple[list[TransferModel], list[NotObserved]]:
    """Each step reduces all sizes; one begins every `apart` ms. Rank 1 creates each 3 ms late."""
    calls = []
    for number in range(steps * len(sizes)):
        size, now = sizes[number % len(sizes)], apart * number
        for rank in (0, 1):
            ended = now + 3 + transfer(size)
            step = number // len(sizes)
            begun = now + 3 * rank
            calls.append(Call(rank, number, begun, started=begun, ended=ended, kind=kind, bytes=size, step=step))
    of = tables(ranks=[0, 1], calls=calls)
    return transfer_models(match(of), range(steps))


@pytest.mark.parametrize(("latency", "gbps"), [(0.05, 0.1), (2.0, 1.0), (0.01, 40.0)])
def test_latency_and_bandwidth_are_what_was_planted(latency: float, gbps: float) -> None:
    (model,), missing = fitted([10 * KB, MB, 25 * MB], at(latency, gbps), apart=1000)
    assert (model.latency, model.algbw_gbps) == (pytest.approx(latency, rel=1e-3), pytest.approx(gbps, rel=1e-3))
    assert (model.calls, model.smallest_bytes, model.largest_bytes) == (15, 10 * KB, 25 * MB)
    assert model.error < 1e-3
    assert missing == []


def test_noise_moves_them_little() -> None:
    noise = iter(np.random.default_rng(0).lognormal(sigma=0.1, size=200))
    (model,), _ = fitted([10 * KB, MB, 4 * MB, 25 * MB], lambda size: at(0.5, 1)(size) * next(noise), steps=12)
    assert model.latency == pytest.approx(0.5, rel=0.2)
    assert model.algbw_gbps == pytest.approx(1, rel=0.2)
    assert model.error < 0.1


@given(st.floats(0.01, 10), st.floats(0.05, 100), st.integers(KB, 10 * MB), st.integers(4, 100))
def test_two_sizes_that_are_far_apart_suffice(latency: float, gbps: float, size: int, times: int) -> None:
    planted = at(latency, gbps)
    assume(planted(times * size) > 1.2 * planted(size))
    (model,), _ = fitted([size, times * size], planted, apart=1e6, steps=3)
    assert at(model.latency, model.algbw_gbps)(size) == pytest.approx(planted(size), rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "transfer", "more", "why"),
    [
        ([MB, 2 * MB, 3 * MB], at(1, 1), {}, "span less than 4 times"),
        ([10 * KB, MB], at(1, 1), {"steps": 2}, "seen 3 times"),
        ([10 * KB, MB], at(1, 1), {"kind": "all_gather"}, None),
        ([10 * KB, MB, 10 * MB], lambda size: 2.0 - size / 1e7, {}, "hardly longer the larger"),
        ([KB, 10 * KB, 100 * KB, MB], lambda size: {KB: 9.0, 10 * KB: 1.0, MB: 20.0}.get(size, 0.5), {}, "only"),
    ],
)
def test_where_they_cannot_be_told_apart_there_is_no_model(
    sizes: list[int], transfer: Transfer, more: dict[str, float], why: str | None
) -> None:
    models, missing = fitted(sizes, transfer, **more)  # type: ignore[arg-type]
    assert models == []
    assert [row.what for row in missing] == ["communication.transfer_models"] * (why is not None)
    assert all(why is not None and why in row.reason for row in missing)


@pytest.mark.parametrize("at_once", [1, 2])
def test_time_in_the_queue_is_no_transfer(at_once: int) -> None:
    """A new one every ms, and each takes longer than that, so that it waits for those before it."""
    free, calls, sizes = [0.0] * at_once, [], [200 * KB, MB]
    for number in range(20):
        started = max(min(free), float(number))
        ended = started + at(1.5, 1)(sizes[number % 2])
        free[free.index(min(free))] = ended
        for rank in (0, 1):
            size = sizes[number % 2]
            calls.append(Call(rank, number, number, started=started, ended=ended, bytes=size, step=0))
    (model,), missing = transfer_models(match(tables(ranks=[0, 1], calls=calls)), [0])
    assert (model.latency, model.algbw_gbps) == (pytest.approx(1.5, rel=1e-3), pytest.approx(1, rel=1e-3))
    assert model.at_once == at_once
    assert missing == []


def test_what_not_all_members_recorded_does_not_count() -> None:
    calls = [Call(rank, n, 100 * n, started=100 * n, ended=100 * n + 2, step=0) for rank in (0, 1) for n in range(9)]
    models, (row,) = transfer_models(match(tables(ranks=[0, 1], calls=calls, world_size=3)), [0])
    assert models == []
    assert "on all members" in row.reason
