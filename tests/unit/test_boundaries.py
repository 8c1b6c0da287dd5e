"""Which marks of a step's end count: those of the best kind, and of one optimizer."""

from __future__ import annotations

from distprof.capture.boundaries import Boundaries


def test_a_better_kind_of_mark_starts_the_count_anew_and_a_worse_one_counts_no_more() -> None:
    boundaries = Boundaries()
    assert [boundaries.see("backward", "") for _ in range(3)] == ["anew", "next", "next"]
    assert (boundaries.kind, boundaries.count) == ("backward", 3)
    assert boundaries.see("optimizer", "SGD#0") == "anew"
    assert boundaries.see("backward", "") is None
    assert boundaries.see("user", "") == "anew"
    assert boundaries.see("optimizer", "SGD#0") is None
    assert (boundaries.kind, boundaries.count) == ("user", 1)


def test_of_several_optimizers_the_first_one_counts_while_it_steps() -> None:
    boundaries = Boundaries()
    seen = [boundaries.see("optimizer", name) for name in 5 * ("G#0", "D#1", "D#1")]
    assert seen == ["anew", None, None, *4 * ["next", None, None]]
    assert boundaries.count == 5


def test_an_optimizer_that_steps_alone_takes_over_and_the_count_goes_on() -> None:
    boundaries = Boundaries()
    seen = [boundaries.see("optimizer", name) for name in ("warm#0", *5 * ("main#1",))]
    assert seen == ["anew", None, None, None, "taken over", "next"]
    assert (boundaries.kind, boundaries.count) == ("optimizer", 3)
