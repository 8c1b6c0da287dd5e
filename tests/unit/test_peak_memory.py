"""The most memory that a process held at once, as it tells when it ends."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.capture import facts
from distprof.capture.facts import peak_resident_bytes


def test_it_is_what_the_system_says() -> None:
    peak = peak_resident_bytes()
    assert peak is not None
    assert 0 < peak <= 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.1


def test_it_grows_with_what_is_held() -> None:
    """In a process of its own: this one may have memory to spare that it once held."""
    program = (
        "from distprof.capture.facts import peak_resident_bytes as peak; before = peak(); "
        "held = bytearray(200_000_000); held[::4096] = b'x' * len(held[::4096]); print(peak() - before)"
    )
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 150_000_000 < int(grown) < 260_000_000


@pytest.mark.parametrize("text", ["", "Name:\tpython\n", "VmHWM:\n", "VmHWM:\tmuch kB\n"])
def test_where_the_system_does_not_tell_it_is_null(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text(text)
    monkeypatch.setattr(facts, "_STATUS", status)
    assert peak_resident_bytes() is None
    monkeypatch.setattr(facts, "_STATUS", tmp_path / "none")
    assert peak_resident_bytes() is None
