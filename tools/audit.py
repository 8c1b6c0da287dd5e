"""Ask the databases of known vulnerabilities about the pinned dependencies (`make audit`).

Exit status 0: every one was looked up and none is known to be vulnerable; 1: some are; 2: some could not be looked up,
as on a machine that reaches no database, so nothing can be said of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SERVICES = ("pypi", "osv")
_SHOWN = 5


def audit(command: str, requirements: Path, service: str) -> tuple[list[dict[str, Any]], str]:
    """What one database says of each requirement; none where it cannot be reached, and why."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(
        [command, "--requirement", str(requirements), "--vulnerability-service", service, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout)["dependencies"], ""
    except (ValueError, KeyError, TypeError):
        return [], (done.stderr.strip().splitlines() or ["it said nothing"])[-1]


def pinned(requirements: Path) -> dict[str, str]:
    """The packages of a file of pins, and their versions."""
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in requirements.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def verdict(packages: Iterable[str], answers: Iterable[list[dict[str, Any]]]) -> tuple[list[str], int]:
    """What to tell, and the exit status.

    Args:
        packages: what was to be looked up.
        answers: of each database, a row per package: `vulns`, or `skip_reason`.
    """
    names = sorted(packages)
    rows = [row for answer in answers for row in answer if "vulns" in row]
    known = {row["name"].lower().replace("_", "-") for row in rows}
    vulnerable = {
        f"{row['name']} {row['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
        for row in rows
        for found in row["vulns"]
    }
    unknown = [name for name in names if name not in known]
    lines = [f"{len(names) - len(unknown)} of {len(names)} pinned packages were looked up", *sorted(vulnerable)]
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        these = ", ".join(unknown[:_SHOWN])
        lines.append(f"NOT looked up, since no database of vulnerabilities answered for them: {these}{more}")
    return lines, 1 if vulnerable else 2 if unknown else 0


def main() -> int:
    """Audit `constraints.txt` with the pip-audit that is given."""
    requirements = ROOT / "constraints.txt"
    answers = []
    for service in SERVICES:
        rows, problem = audit(sys.argv[1], requirements, service)
        answers.append(rows)
        if problem:
            print(f"{service}: {problem[:200]}", file=sys.stderr)
    lines, status = verdict(pinned(requirements), answers)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
