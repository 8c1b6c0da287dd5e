"""The facts of a rank, as they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.capture import facts as module
from distprof.capture.facts import Facts
from distprof.run.config import CaptureConfig
from distprof.run.directory import RunDirectory
from distprof.run.identity import Identity


def test_facts_that_could_not_be_written_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunDirectory(tmp_path).rank(0, 0)
    files.facts.parent.mkdir()
    facts = Facts(files, Identity(0, 0, 1, attempt=0, launcher="torchrun"), CaptureConfig(run_dir=str(tmp_path)), [])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            facts.write()
    assert not files.facts.exists()
    facts.write()
    assert json.loads(files.facts.read_text())["rank"] == 0
    files.facts.unlink()
    facts.write()  # nothing changed
    assert not files.facts.exists()
