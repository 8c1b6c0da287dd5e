"""`distprof doctor`: what can be observed on this machine, and why the rest cannot."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distprof.cli.checks import Check, all_checks
from distprof.cli.parser import Parser
from distprof.report import words

_STYLES = {"yes": "green", "no": "yellow", "bad": "bold red"}
_EPILOG = """examples:
  distprof doctor
  srun --nodes 1 distprof doctor        # what a node of the cluster can observe
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof doctor",
        description="Say what can be observed on this machine: torch's build, devices, activities of the profiler, "
        "flight recorder, clock probes, SLURM, disk space; with the reason for each 'no'.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=Path("distprof-runs"),
        metavar="DIR",
        help="Where runs would be kept. Default: ./distprof-runs.",
    )
    return parser


def main(argv: list[str]) -> int:
    """Print what was found. Exit status 0; 1 if distprof cannot work here."""
    arguments = build_parser().parse_args(argv)
    checks = all_checks(arguments.run_dir)
    Console().print(_table(checks))
    return 1 if any(check.answer == "bad" for check in checks) else 0


def _table(checks: list[Check]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for check in checks:
        text = Text(words.clean(check.said))
        if check.remedy is not None:
            text.append(f"\n{words.clean(check.remedy)}", style="dim")
        table.add_row(Text(check.answer, style=_STYLES[check.answer]), Text(check.what, style="bold"), text)
    return table
