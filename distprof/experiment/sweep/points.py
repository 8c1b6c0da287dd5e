"""From a configuration to what is launched: the training, the point, and the baseline beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from distprof.experiment.launching import Training
from distprof.experiment.settings import Point
from distprof.run.config import ConfigError, Schedule
from distprof.run.settings import Value, parse_settings, written

BASELINE = "baseline"
_SWEPT = ("loader", "ddp", "args")
_NEEDS_WORKERS = ("loader.prefetch_factor", "loader.persistent_workers")
_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][\w.]*)\}")
_ABSENT = object()


def training_of(config: DictConfig) -> Training:
    """What all points launch.

    Raises:
        ConfigError: the script is missing, or it is for more hosts than this one.
        SystemExit: torchrun does not know its options.
    """
    if OmegaConf.is_missing(config, "script"):
        raise ConfigError("there is no script to launch")
    words = list(config.torchrun)
    if config.nproc_per_node is not None:
        words.append(f"--nproc-per-node={config.nproc_per_node}")
    if config.module:
        words.append("--module")
    parser = get_args_parser()
    arguments = parser.parse_args([*words, config.script])
    if parse_min_max_nnodes(arguments.nnodes) != (1, 1):
        raise ConfigError("--nnodes: sweeps launch on one host; a launcher such as submitit takes one per job")
    return replace(Training.of(arguments, parser), folder=config.cwd or None)


def point_of(config: DictConfig) -> Point:
    """The point that a configuration describes; its name is left open.

    Raises:
        ConfigError: a setting cannot have its value, or `script_args` refers to nothing.
    """
    settings = parse_settings(
        written_value(f"{group}.{name}", value)
        for group in ("loader", "ddp")
        for name, value in config[group].items()
        if value is not None
    )
    if settings.get("loader.num_workers") == 0:
        # What needs workers means nothing here, and two points that differ by it alone are one.
        settings = {name: value for name, value in settings.items() if name not in _NEEDS_WORKERS}
    values = {f"args.{name}": value for name, value in _leaves(config.args) if value is not None}
    return Point("", settings, options=["--no-window"], arguments=_arguments(config), values=values)


def baseline_of(config: DictConfig) -> Point:
    """The script's own settings: what is swept is null, and arguments that refer to it are left out.

    Raises:
        ConfigError: `script_args` refers to nothing.
    """
    bare = config.copy()
    OmegaConf.set_struct(bare, False)
    for group in ("loader", "ddp"):
        for name in bare[group]:
            bare[group][name] = None
    _set_null(bare.args)
    return replace(point_of(bare), name=BASELINE)


def distinct(points: Sequence[Point], baseline: Point) -> list[Point]:
    """Points that launch something else than the baseline and each other, named `p1`, `p2` and so on."""
    seen = [baseline]
    for point in points:
        if not any(_same(point, other) for other in seen):
            seen.append(replace(point, name=f"p{len(seen)}"))
    return seen[1:]


def _same(one: Point, other: Point) -> bool:
    return (one.settings, one.arguments) == (other.settings, other.arguments)


def common(config: DictConfig) -> dict[str, Any]:
    """What all points of a sweep must share."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return {name: value for name, value in plain.items() if name not in _SWEPT}


def explained(point: Point, config: DictConfig) -> Point:
    """The same point, launched once more under the profiler."""
    capture, warmup = config.capture, config.measure.warmup
    if not capture.window:
        return point
    opens = max(0, warmup - 2)
    schedule = Schedule(opens, warmup - opens, capture.active)
    options = [
        f"--schedule=wait={schedule.wait},warmup={schedule.warmup},active={schedule.active}",
        f"--activities={capture.activities}",
        f"--window-ranks={capture.window_ranks}",
        *([f"--record={','.join(capture.record)}"] if capture.record else []),
    ]
    return replace(point, options=options)


def written_value(name: str, value: Any) -> str:
    """A setting as it is typed."""
    return written({name: value})[0]


def shown(value: Value) -> str:
    """A value for people: 25 and not 25.0."""
    return f"{value:g}" if isinstance(value, float) else written_value("", value)[1:]


def values_of(point: Point) -> dict[str, Value]:
    """All that makes a point, by name."""
    return {**point.settings, **point.values}


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in config.items():
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{prefix}{name!s}.")
        else:
            plain = value is None or isinstance(value, bool | int | float | str)
            yield f"{prefix}{name!s}", value if plain else str(value)


def _set_null(config: DictConfig) -> None:
    for name, value in list(config.items()):
        if isinstance(value, DictConfig):
            _set_null(value)
        else:
            config[name] = None


def _arguments(config: DictConfig) -> list[str]:
    """The script's arguments. One that refers to what is null is left out; if it is nothing but that, then the option
    before it, too."""
    found: list[str] = []
    raw: list[str] = OmegaConf.to_container(config.script_args, resolve=False)  # type: ignore[assignment]
    for index, text in enumerate(raw):
        references = _REFERENCE.findall(text)
        missing = [name for name in references if OmegaConf.select(config, name, default=_ABSENT) is _ABSENT]
        if missing:
            raise ConfigError(f"script_args refers to {missing[0]!r}, which is not in the configuration")
        if any(OmegaConf.select(config, name) is None for name in references):
            if _REFERENCE.fullmatch(text) and found and found[-1].startswith("-") and "=" not in found[-1]:
                found.pop()
            continue
        try:
            found.append(config.script_args[index])
        except OmegaConfBaseException as error:
            raise ConfigError(f"script_args: {text!r} cannot be resolved ({str(error).splitlines()[0]})") from error
    return found
