"""The option `--fail-if`, shared by the commands that judge something."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from distprof.report.fail_if import Condition, ConditionError, failed
from distprof.report.words import clean
from distprof.result import NotObserved

CONDITION_HOLDS = 3


def add_fail_if(parser: argparse.ArgumentParser | argparse._ArgumentGroup, kind: type, example: str) -> None:
    """Add the option; its conditions are on the fields of the dataclass `kind`."""

    def condition(text: str) -> Condition:
        try:
            return Condition.parse(text, kind)
        except ConditionError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parser.add_argument(
        "--fail-if",
        action="append",
        type=condition,
        default=[],
        metavar="CONDITION",
        help=f"End with status 3 if this holds, such as '{example}', or if a field that it asks for was not observed. "
        "Can be repeated. docs/fail-if.md has the grammar.",
    )


def tell_failed(conditions: Sequence[Condition], value: Any, missing: Iterable[NotObserved] = ()) -> bool:
    """Say on standard error which of the conditions fail; whether any does."""
    told = failed(conditions, value, missing)
    for text in told:
        print(f"distprof: --fail-if {clean(text)}", file=sys.stderr)
    return bool(told)
