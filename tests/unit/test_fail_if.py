"""Conditions on a report: what holds, what cannot be told, and what is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.cli import report
from distprof.experiment.compare import Comparison, compare
from distprof.report.fail_if import Condition, ConditionError, NoValue, failed
from distprof.result import NotObserved, Result
from tests.unit.results import healthy

RESULT = healthy()


def holds(text: str, result: Result = RESULT) -> bool:
    return Condition.parse(text, Result).holds(result, result.not_observed)


@pytest.mark.parametrize(
    "text",
    [
        "run.world_size == 4",
        "run.world_size / 2 == 1 + 1",
        "-run.world_size < 0 and not run.world_size > 4",
        "1 < run.world_size <= 4 != 5",
        "1 > 2 or run.world_size == 4",
        "min(run.world_size, 3, 7) == 3",
        "max(breakdown[:].rank) == 3",
        "max(breakdown[:].rank, 9) == 9",
        "abs(2 - run.world_size) == 2",
        "breakdown[rank=2].rank == 2",
        "breakdown[ rank == 2 ].rank == 2",
        "breakdown[2].rank == breakdown[-2].rank",
        "ranks[rank=0].host == 'node-a'",
        'stragglers.verdict == "none"',
        "conditions.loader[0].num_workers == 2",
        "conditions.loader[name='DataLoader#0'].num_workers == 2",
    ],
)
def test_it_holds(text: str) -> None:
    assert holds(text)
    assert not holds(f"not ({text})")


def test_and_and_or_go_no_further_than_they_must() -> None:
    unseen = replace(RESULT, memory=None)
    assert not holds("run.world_size == 1 and memory[0].peak_bytes > 0", unseen)
    assert holds("run.world_size == 4 or memory[0].peak_bytes > 0", unseen)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("memory[0].peak_bytes > 0", "memory[0].peak_bytes was not observed (it was not recorded)"),
        ("not memory[0].peak_bytes > 0", "memory[0].peak_bytes was not observed"),
        ("breakdown[9].compute > 0", "breakdown[9] was not observed: there are 4 rows"),
        ("breakdown[rank=9].compute > 0", "breakdown[rank=9] was not observed: there is no such row"),
        ("max(findings[:].saves) > 0", "findings[:].saves was not observed: there are no rows"),
        ("steps.first > 0", "steps.first was not observed (the first step was not recorded)"),
        ("1 / (run.world_size - 4) > 0", "divides by 0"),
        ("conditions.loader[0].workers > 0", "there is no 'workers' in 'name'"),
        ("ranks[host='node-a'].rank == 0", "chooses 4 rows"),
    ],
)
def test_what_was_not_observed_does_not_pass(text: str, told: str) -> None:
    rows = [
        NotObserved("memory", None, "it was not recorded"),
        NotObserved("steps.first", None, "the first step was not recorded"),
    ]
    result = replace(RESULT, memory=None, findings=[], steps=replace(RESULT.steps, first=None), not_observed=rows)
    condition = Condition.parse(text, Result)
    with pytest.raises(NoValue) as error:
        condition.holds(result, rows)
    assert told in str(error.value)
    assert failed([condition], result, rows) == [f"`{text}` cannot be told: {error.value}"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps.stedy.median > 1", "there is no field steps.stedy: did you mean steps.steady?"),
        ("comunication.exposed > 1", "did you mean communication"),
        ("breakdown[rank=2].data_weit > 1", "did you mean breakdown[rank=2].data_wait"),
        ("breakdown[rnk=2].data_wait > 1", "did you mean breakdown[].rank"),
        ("breakdown.compute > 1", "choose a row"),
        ("steps.median.x[0] > 1", "there is no field steps.median"),
        ("run[0].name == 'x'", "`run` is no list"),
        ("steps.steady.median", "is a value and no condition"),
        ("steps > 1", "name one of its fields"),
        ("stragglers.verdict == 3", "compares a text with a number"),
        ("stragglers.verdict > 'a'", "does not compare a text"),
        ("max(breakdown) > 1", "max takes numbers"),
        ("max() > 1", "max takes values"),
        ("abs(1, 2) > 1", "abs takes one value"),
        ("run.world_size and run.world_size > 3", "a condition is needed there"),
        ("run.world_size = 4", "cannot be read"),
        ("", "cannot be read"),
        ("breakdown[", "cannot be read"),
        ("run.world_size ** 2 > 1", "is not a part of a condition"),
        ("len(findings) > 1", "is not a part of a condition"),
        ("__import__('os').system('true') == 0", "is not a part of a condition"),
        ("(lambda: 1)() > 0", "is not a part of a condition"),
        ("run.__class__ == 1", "there is no field run.__class__"),
        ("[x for x in ranks] == 1", "is not a part of a condition"),
        ("'a' 'b' == f'{run}'", "is not a part of a condition"),
        ("(" * 300 + "1" + ")" * 300 + " > 0", "cannot be read"),
        ("-" * 200 + "1 > 0", "nested more than"),
        ("1 > 0 or " * 1000 + "1 > 0", "at most"),
    ],
)
def test_what_is_no_condition_is_told(text: str, told: str) -> None:
    with pytest.raises(ConditionError) as error:
        Condition.parse(text, Result)
    assert told in str(error.value)


@given(st.text(alphabet="abcdefrunksteps.[]()=<>!+-*/ 0123'\":,and", max_size=40))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    with suppress(ConditionError):
        assert Condition.parse(text, Result).kind is Result


def test_a_comparisons_fields_are_those_of_two_reports() -> None:
    found = compare(RESULT, replace(RESULT, steps=replace(RESULT.steps, first=None)))
    condition = Condition.parse("after.steps.first > before.steps.first", Comparison)
    with pytest.raises(NoValue, match=r"after.steps.first was not observed"):
        condition.holds(found, found.not_observed)
    assert Condition.parse("changes[what='steps.steady.median'].before > 0", Comparison).holds(found)


def test_a_report_ends_with_3_where_a_condition_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "load_recordings", lambda arguments: None)
    monkeypatch.setattr("distprof.pipeline.build", lambda run, *steps: RESULT)
    words = ["x", "--json", str(tmp_path / "report.json"), "--fail-if"]
    assert report.main([*words, "run.world_size == 4"]) == 3
    assert "--fail-if `run.world_size == 4` holds" in capsys.readouterr().err
    assert report.main([*words, "run.world_size == 5"]) == 0
    assert report.main([*words, "run.world_size == 5", "--fail-if", "memory[7].peak_bytes == 5"]) == 3
    with pytest.raises(SystemExit) as end:
        report.main([*words, "run.worldsize == 5"])
    assert end.value.code == 2
    assert "did you mean run.world_size?" in capsys.readouterr().err
