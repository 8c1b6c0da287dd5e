"""The generated pages are what the code says, and say something about every field."""

from __future__ import annotations

import dataclasses

import jsonschema
import pytest

from distprof.cli.main import COMMANDS
from distprof.experiment.sweep.config import SweepConf
from distprof.experiment.sweep.result import Sweep
from distprof.experiment.sweep.result import json_schema as sweep_schema
from distprof.result import Result, json_schema
from tools import generate_docs


@pytest.mark.parametrize("name", generate_docs.PAGES)
def test_page_is_current(name: str) -> None:
    assert generate_docs.is_current(name), f"{name} is out of date: run `make docs`"


def test_check_names_the_page_that_is_out_of_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_docs, "PAGES", {"docs/report.md": lambda: "something else"})
    monkeypatch.setattr("sys.argv", ["generate_docs.py", "--check"])
    assert generate_docs.main() == 1
    assert "docs/report.md is out of date" in capsys.readouterr().err


def test_every_field_is_explained() -> None:
    rows = [line for line in generate_docs.report_page().splitlines() if line.startswith("| `")]
    assert len(rows) > len(dataclasses.fields(Result))
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_field_of_a_sweep_is_explained() -> None:
    rows = [line for line in generate_docs.sweep_page().splitlines() if line.startswith("| `")]
    assert len(rows) > len(dataclasses.fields(Sweep)) + len(dataclasses.fields(SweepConf))
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_command_has_a_section() -> None:
    page = (generate_docs.ROOT / "docs" / "cli.md").read_text()
    assert all(f"\n## distprof {name}\n" in page for name in COMMANDS)


def test_schema_is_a_valid_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.Draft202012Validator.check_schema(sweep_schema())
