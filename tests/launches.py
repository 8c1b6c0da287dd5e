"""Starting real launches from tests. Each costs many CPU-seconds, so tests share them through session fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Launched:
    """A launch that has ended."""

    run_dir: Path
    returncode: int
    stdout: str
    stderr: str

    def printed(self) -> list[dict[str, object]]:
        """What the ranks printed as JSON objects, wherever it stands in the output (ranks share one line at times)."""
        decoder = json.JSONDecoder()
        found, position = [], self.stdout.find("{")
        while position >= 0:
            try:
                value, end = decoder.raw_decode(self.stdout, position)
            except json.JSONDecodeError:
                end = position + 1
            else:
                found.append(value)
            position = self.stdout.find("{", end)
        return found

    def slept_ms(self, rank: int) -> list[float]:
        """What an example's rank said it really slept in each step."""
        return next(list(row["slept_ms"]) for row in self.printed() if row.get("rank") == rank)  # type: ignore[call-overload]


def launch(
    run_dir: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    report: bool = False,
    python: str = sys.executable,
) -> Launched:
    """`distprof launch` with these arguments, to its end; without the report unless the test looks at it."""
    ours = ["--run-dir", str(run_dir), *([] if report else ["--no-report"])]
    return _run([python, "-m", "distprof", "launch", *ours, *arguments], run_dir, env, cwd)


def torchrun(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, python: str = sys.executable
) -> Launched:
    """Plain torchrun with these arguments, to its end."""
    return _run([python, "-m", "torch.distributed.run", *arguments], Path(), env, cwd)


def report(run_dir: Path, *options: str) -> Launched:
    """`distprof report`, as somebody outside of the launch calls it."""
    return _run([sys.executable, "-m", "distprof", "report", str(run_dir), *options], run_dir, None, None)


def _run(command: list[str], run_dir: Path, env: dict[str, str] | None, cwd: Path | None) -> Launched:
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun's agent ends its ranks, which sit in sessions of their own
        process.communicate(timeout=_TIMEOUT_S)
        raise
    return Launched(run_dir=run_dir, returncode=process.returncode, stdout=stdout, stderr=stderr)
