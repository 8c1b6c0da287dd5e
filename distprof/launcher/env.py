"""Arming whatever another launcher starts: the lines that a shell evaluates before it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from distprof.launcher.spec import LaunchSpec
from distprof.run.config import OWNER_VARIABLE


def shell_lines(spec: LaunchSpec, inherited: Mapping[str, str]) -> str:
    """Lines for a POSIX shell whose environment is `inherited`; what it starts afterwards is armed."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment(inherited).items()]
    if OWNER_VARIABLE in inherited:
        lines.append(f"unset {OWNER_VARIABLE}")  # a rank's own shell: what it starts now is a run of its own
    return "\n".join(lines)
