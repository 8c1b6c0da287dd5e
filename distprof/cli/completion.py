"""`distprof completion`: what a shell needs to complete the words of a command line."""

from __future__ import annotations

import argparse
import importlib

import shtab

from distprof.cli.main import COMMANDS
from distprof.cli.parser import Parser

_EPILOG = """examples:
  distprof completion bash > ~/.local/share/bash-completion/completions/distprof
  distprof completion zsh > "${fpath[1]}/_distprof"
"""


def build_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="distprof completion",
        description="Print the script by which a shell completes distprof's commands and options.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="The shell.")
    return parser


def main(argv: list[str]) -> int:
    """Print the script. Exit status 0."""
    arguments = build_parser().parse_args(argv)
    print(shtab.complete(_everything(), shell=arguments.shell))
    return 0


def _everything() -> argparse.ArgumentParser:
    """All commands in one parser: each is parsed by one of its own otherwise, which costs no import but that one."""
    parser = argparse.ArgumentParser(prog="distprof")
    parser.add_argument("--version", action="store_true", help="tell the version")
    commands = parser.add_subparsers()
    for name, summary in COMMANDS.items():
        of_command: argparse.ArgumentParser = importlib.import_module(f"distprof.cli.{name}").build_parser()
        has_help = any(action.dest == "help" for action in of_command._actions)
        commands.add_parser(name, parents=[of_command], help=summary, add_help=not has_help, conflict_handler="resolve")
    return parser
