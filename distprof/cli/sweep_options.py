"""The options of `distprof sweep`: torchrun's, an experiment's and Hydra's; then overrides; then the script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch.distributed.run import get_args_parser

from distprof.cli.experiments import ExperimentParser
from distprof.cli.fail_if import add_fail_if
from distprof.experiment.launching import Training
from distprof.experiment.sweep.config import MeasureConf
from distprof.experiment.sweep.overrides import is_override, listed, quoted
from distprof.experiment.sweep.result import Sweep

_EPILOG = """overrides, between the options and the script, are Hydra's; what has several values is swept:
  loader.num_workers=0,2,4  ddp.bucket_cap_mb=1,25,100  ...  settings, as with --set of `distprof launch`
  loader=own,workers  ddp=glob(*)  capture=zones|light|deep  config groups, those of --config-dir among them
  sweep=loader|buckets|all                                  settings that are worth trying
  +args.lr=0.1,0.01 train.py --lr '${args.lr}'              values for the script's own options
  measure.together=false  hydra/launcher=submitit_local     whatever else Hydra configures
docs/sweeps.md explains them, docs/sweep.md lists all.

examples:
  distprof sweep --nproc 4 loader.num_workers=0,2,4 ddp.bucket_cap_mb=1,25,100 train.py
  distprof sweep --nproc 4 --budget 20min sweep=loader train.py --epochs 1
  distprof sweep --cfg job loader=workers train.py
"""
_DEFAULTS = MeasureConf()
# Hydra's own options: name, short name unless torchrun has it, what follows, help.
_HYDRAS = (
    ("--cfg", "-c", "job|hydra|all", "Show the configuration of a point, and launch nothing."),
    ("--package", "-p", "PACKAGE", "With --cfg: of this part."),
    ("--resolve", None, None, "With --cfg: with interpolations resolved."),
    ("--info", "-i", "WHAT", "Show how Hydra comes to it: all, config, defaults, defaults-tree, plugins, searchpath."),
    ("--config-dir", "-cd", "DIR", "More config groups, your own."),
    ("--config-name", "-cn", "NAME", "Another primary config, such as one in --config-dir."),
    ("--multirun", None, None, "The default."),
    ("--hydra-help", None, None, "Hydra's own help."),
    ("--shell-completion", "-sc", None, "install=bash prints what completes settings: eval it; zsh likewise."),
)


class SweepParser(ExperimentParser):
    """torchrun's options, an experiment's, Hydra's; then overrides; then the script."""

    def split(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse a command line: its options and script, and the overrides between them.

        Options may follow overrides, too.
        """
        before, rest = list(argv), list[str]()
        overrides: list[str] = []
        while True:
            arguments = self.parse_args([*before, *rest])
            words = [] if arguments.training_script is None else [arguments.training_script]
            words += arguments.training_script_args
            count = next((index for index, word in enumerate(words) if not is_override(word)), len(words))
            if not count:
                return arguments, overrides
            overrides += words[:count]
            options = [*before, *rest]
            before, rest = options[: len(options) - len(words)], words[count:]


def build_parser() -> SweepParser:
    """The command's options, torchrun's, and those of Hydra."""
    parser = SweepParser(
        "sweep",
        repeats=_DEFAULTS.repeats,
        description="Try settings on a training script as it is, and say which are better, by how much and why, or "
        "that no difference can be told. The baseline, always a point, is the script's own settings.",
        epilog=_EPILOG,
    )
    for action in parser._actions:
        if action.dest == "training_script":
            action.nargs = "?"
            action.default = None
    add_fail_if(parser.ours, Sweep, 'verdict == "faster"')
    hydra = parser.add_argument_group("Hydra")
    for name, short, follows, text in _HYDRAS:
        names = [name] if short is None else [name, short]
        if follows is None:
            hydra.add_argument(*names, action="store_true", help=text)
        else:
            hydra.add_argument(*names, metavar=follows, help=text)
    # What is not given is left to Hydra's configuration.
    parser.set_defaults(**dict.fromkeys(("steps", "warmup", "repeats", "budget", "seed", "out"), None))
    return parser


def words_for_hydra(arguments: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """A command line that was split, as Hydra reads it."""
    return [*_options(arguments), *_told(arguments), *overrides]


def _options(arguments: argparse.Namespace) -> list[str]:
    """Hydra's options as Hydra reads them."""
    words: list[str] = []
    for name, _, follows, _ in _HYDRAS:
        value = getattr(arguments, name.removeprefix("--").replace("-", "_"))
        if value:
            words += [name] if follows is None else [name, value]
    return words


def _told(arguments: argparse.Namespace) -> list[str]:
    """Our options, torchrun's and the script as overrides."""
    words = [
        f"measure.{name}={value}"
        for name in ("steps", "warmup", "repeats", "seed")
        if (value := getattr(arguments, name)) is not None
    ]
    if arguments.budget is not None:
        words.append(f"measure.budget={arguments.budget:g}s")
    if arguments.out is not None:
        words.append(f"out={quoted(str(arguments.out))}")
    if arguments.training_script is not None:
        words.append(f"script={quoted(arguments.training_script)}")
        words.append(listed("script_args", arguments.training_script_args, literal=False))
    torchrun = argparse.Namespace(
        **{**vars(arguments), "training_script": "", "training_script_args": [], "module": False}
    )
    words_of_torchrun = [word for word in Training.of(torchrun, get_args_parser()).torchrun if word != "--standalone"]
    if words_of_torchrun:
        words.append(listed("torchrun", words_of_torchrun))
    if arguments.module:
        words.append("module=true")
    return words
