"""The options that say what is captured, shared by all commands that start or arm ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from distprof.run.config import (
    ACTIVITIES,
    RECORDS,
    SAMPLE_OF_RANKS,
    CaptureConfig,
    ConfigError,
    Schedule,
    parse_activities,
    parse_max_trace_mb,
    parse_record,
    parse_window_ranks,
)
from distprof.run.settings import SETTINGS, parse_setting, parse_settings

_Value = TypeVar("_Value")


def add_capture_options(parser: argparse._ArgumentGroup) -> None:
    """Add them to a group of a parser."""
    parser.add_argument(
        "--schedule",
        type=_checked(Schedule.parse),
        default=Schedule(),
        metavar="wait=5,warmup=2,active=5,repeat=1",
        help="When the Kineto window is open, in steps.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--window-ranks",
        type=_checked(parse_window_ranks),
        default="all",
        metavar="all|0,8|auto",
        help=f"Which ranks record a Kineto window. auto: all ranks of a world of up to {SAMPLE_OF_RANKS}, else "
        f"{SAMPLE_OF_RANKS} of them: rank 0, the first rank of each node, and others evenly spaced. Default: all.",
    )
    which.add_argument(
        "--no-window",
        action="store_true",
        help="Record zones and collectives only: the cheapest mode; stragglers are still found.",
    )
    parser.add_argument(
        "--activities",
        type=_checked(parse_activities),
        default=None,
        metavar="|".join(("auto", *ACTIVITIES)),
        help="What the window records. auto: what each rank's torch can record on its machine. Default: auto.",
    )
    parser.add_argument(
        "--record",
        type=_checked(parse_record),
        default=[],
        metavar=",".join(RECORDS),
        help="What the window records beside times; each costs.",
    )
    parser.add_argument(
        "--max-trace-mb",
        type=_checked(parse_max_trace_mb),
        default=CaptureConfig(run_dir="").max_trace_mb,
        metavar="N|none",
        help="Megabytes that the uncompressed trace of a rank's window may have: the window is closed early where it "
        "would have more. Default: %(default)g.",
    )
    parser.add_argument(
        "--no-probes",
        action="store_true",
        help="Do not compare the ranks' clocks by small UDP messages between each rank and rank 0.",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=_checked(_setting),
        default=[],
        metavar="KEY=VALUE",
        help="Override a setting where the script makes its DataLoader or DistributedDataParallel, without editing it; "
        f"can be repeated. KEY is one of {', '.join(SETTINGS)}; loader.only=INDEX|FILE:LINE sets one of several "
        "loaders.",
    )
    parser.add_argument(
        "--stop-after",
        type=_checked(_positive),
        metavar="STEPS",
        help="End the training after so many steps, as if the script were over: SystemExit behind a step's end.",
    )
    parser.add_argument(
        "--seed",
        type=_checked(_whole),
        metavar="N",
        help="Seed the random numbers of Python, numpy and torch before the script begins: of each rank with N + rank.",
    )
    parser.add_argument(
        "--checksum", action="store_true", help="Note a checksum of the parameters at the end of the training."
    )
    parser.add_argument(
        "--only-steps",
        action="store_true",
        help="Record the step boundaries and nothing else: the yardstick that the cost of the rest is measured with.",
    )


def capture_config(arguments: argparse.Namespace, run_dir: Path, window_ranks: list[int] | None) -> CaptureConfig:
    """The capture settings that the options ask for.

    Args:
        arguments: the parsed options.
        run_dir: the run directory.
        window_ranks: ranks that record a window, None for all; `--no-window` overrides it.

    Raises:
        ConfigError: settings that do not go together.
    """
    return CaptureConfig(
        run_dir=str(run_dir.absolute()),
        schedule=arguments.schedule,
        window_ranks=[] if arguments.no_window else window_ranks,
        activities=arguments.activities,
        record=arguments.record,
        max_trace_mb=arguments.max_trace_mb,
        probes=not (arguments.no_probes or arguments.only_steps),
        settings=parse_settings(arguments.set),
        stop_after=arguments.stop_after,
        seed=arguments.seed,
        checksum=arguments.checksum,
        only_steps=arguments.only_steps,
    )


def _setting(text: str) -> str:
    parse_setting(text)
    return text


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:10]) > 0):
        raise ConfigError(f"{text!r} is not a whole number above 0")
    return int(text)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{text!r} is not a whole number of at most nine digits")
    return int(text)


def _checked(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """`parse` as the type of an option: argparse would replace the text of its ConfigError."""

    def checked(text: str) -> _Value:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked
