"""What is different between two runs, and which cannot be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from distprof.cli import compare as command
from distprof.experiment.compare import compare, incomparable
from distprof.result import BreakdownRow, Result, Spread, to_json
from tests.unit.results import healthy

BEFORE = healthy()


def with_parts(result: Result, **parts: float) -> Result:
    rows: list[BreakdownRow] = [replace(row, **parts) for row in result.breakdown]
    return replace(result, breakdown=rows)


def write(folder: Path, result: Result) -> str:
    folder.mkdir()
    path = folder / "report.json"
    path.write_bytes(to_json(result))
    return str(path)


def test_each_part_has_its_change_and_its_ranges() -> None:
    steps = replace(BEFORE.steps, steady=Spread(count=20, median=80.0, p10=78.0, p90=83.0))
    before = replace(with_parts(BEFORE, data_wait=10.0), steps=steps)
    after = replace(
        with_parts(BEFORE, data_wait=2.0),
        steps=replace(steps, steady=Spread(count=20, median=72.0, p10=71.0, p90=74.0)),
    )
    found = {change.what: change for change in compare(before, after).changes}
    step, data = found["steps.steady.median"], found["breakdown.data_wait"]
    assert (step.before, step.after, step.ratio) == (80.0, 72.0, 0.9)
    assert (step.before_low, step.before_high, step.after_low, step.after_high) == (78.0, 83.0, 71.0, 74.0)
    assert step.apart
    assert (data.before, data.after, data.ratio, data.apart) == (10.0, 2.0, 0.2, True)
    assert not found["breakdown.compute"].apart
    assert compare(before, after).conditions == []


def test_what_one_of_them_lacks_is_not_a_change() -> None:
    found = compare(BEFORE, replace(BEFORE, steps=replace(BEFORE.steps, steady=Spread(0, None, None, None))))
    step = found.changes[0]
    assert (step.before is None, step.after, step.ratio, step.apart) == (False, None, None, False)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (healthy(2), "ranks: 4 and 2"),
        (replace(BEFORE, run=replace(BEFORE.run, device="cuda")), "device: cpu and cuda"),
        (replace(BEFORE, conditions=replace(BEFORE.conditions, batch_shapes=["float32[8]"])), "batch shapes: "),
        (replace(BEFORE, conditions=replace(BEFORE.conditions, samples_per_step=8.0)), "samples per step: "),
    ],
)
def test_what_is_not_comparable_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Result, told: str
) -> None:
    conditions = replace(BEFORE.conditions, batch_shapes=["float32[4]"], samples_per_step=4.0)
    before = replace(BEFORE, conditions=conditions)
    if other.conditions.batch_shapes is None:
        other = replace(other, conditions=replace(other.conditions, batch_shapes=["float32[4]"]))
    assert any(reason.startswith(told) for reason in incomparable(before, other))
    paths = [write(tmp_path / "a", before), write(tmp_path / "b", other)]
    with pytest.raises(SystemExit) as end:
        command.main(paths)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert command.main([*paths, "--anyway"]) == 0
    assert f"different: {told}" in capsys.readouterr().out


def test_other_settings_are_told_and_are_what_is_compared() -> None:
    assert BEFORE.conditions.ddp is not None
    ddp = [{**row, "bucket_cap_mb": 1, "bucket_bytes": [1], "ranks": [0]} for row in BEFORE.conditions.ddp]
    after = replace(BEFORE, conditions=replace(BEFORE.conditions, ddp=ddp, compiled=True))
    before = replace(BEFORE, conditions=replace(BEFORE.conditions, compiled=False))
    assert incomparable(before, after) == []
    assert compare(before, after).conditions == [
        "compiled: False and True",
        "ddp DistributedDataParallel#0, bucket_cap_mb: 25 and 1",
    ]


def test_the_command_shows_writes_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = replace(BEFORE, steps=replace(BEFORE.steps, steady=Spread(count=9, median=200.0, p10=190.0, p90=210.0)))
    paths = [write(tmp_path / "a", BEFORE), write(tmp_path / "b", after)]
    out = tmp_path / "out.json"
    slower = "after.steps.steady.median > 1.05 * before.steps.steady.median"
    assert command.main([*paths, "--json", str(out), "--fail-if", slower]) == 3
    printed = capsys.readouterr()
    assert "steady step, median" in printed.out
    assert "distprof validate" in printed.out
    assert f"--fail-if `{slower}` holds" in printed.err
    data = msgspec.json.decode(out.read_bytes())
    assert data["changes"][0]["what"] == "steps.steady.median"
    assert command.main([paths[0], paths[0], "--fail-if", slower]) == 0
    (tmp_path / "b" / "report.json").write_text("{}")
    with pytest.raises(SystemExit) as end:
        command.main(paths)
    assert end.value.code == 2
    assert "no report of this version" in capsys.readouterr().err
