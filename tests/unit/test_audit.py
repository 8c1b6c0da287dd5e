"""`make audit` never says that all is well where nothing was looked up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.audit import ROOT, audit, pinned, verdict

FINE = {"name": "a_b", "version": "1", "vulns": []}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (2)"}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": []}]}


def test_all_were_looked_up_and_none_is_vulnerable() -> None:
    assert verdict({"a-b": "1"}, [[FINE], []]) == (["1 of 1 pinned packages were looked up"], 0)


def test_what_a_database_skipped_was_not_looked_up() -> None:
    lines, status = verdict({"a-b": "1", "c": "2"}, [[FINE, SKIPPED], []])
    assert status == 2
    assert lines[0] == "1 of 2 pinned packages were looked up"
    assert "NOT looked up" in lines[1] and lines[1].endswith(": c")
    assert verdict({"a-b": "1"}, [[], []])[1] == 2


def test_a_vulnerable_one_is_named_with_its_remedy() -> None:
    lines, status = verdict({"c": "2"}, [[SKIPPED], [BAD]])
    assert (lines[1], status) == ("c 2: PYSEC-1, fixed in 3", 1)


def test_the_pins_are_read() -> None:
    pins = pinned(ROOT / "constraints.txt")
    assert len(pins) > 40
    assert "msgspec" in pins and "ast-serialize" in pins


def test_an_auditor_that_fails_or_answers(tmp_path: Path) -> None:
    answer = json.dumps({"dependencies": [FINE]})
    for name, text in (("good", f"print({answer!r})"), ("bad", "import sys; sys.exit('no such host')")):
        (tmp_path / name).write_text(f"#!{sys.executable}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert audit(str(tmp_path / "good"), tmp_path, "osv") == ([FINE], "")
    assert audit(str(tmp_path / "bad"), tmp_path, "osv") == ([], "no such host")
