"""What capture is told to do: written by the launcher into the environment, read by every rank."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

CONFIG_VARIABLE = "DISTPROF_CONFIG"
OWNER_VARIABLE = "DISTPROF_OWNER"
RING_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_RING_SIZE = 2000
ACTIVITIES = ("cpu", "cpu,cuda", "cpu,xpu")
RECORDS = ("shapes", "memory", "stacks", "flops")
SAMPLE_OF_RANKS = 16


class ConfigError(ValueError):
    """A capture option has an unusable value; the message says what is accepted."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the Kineto window is open, in steps, as `torch.profiler.schedule` counts them."""

    wait: int = 5
    warmup: int = 2
    active: int = 5
    repeat: int = 1

    def __post_init__(self) -> None:
        if min(self.wait, self.warmup) < 0 or min(self.active, self.repeat) < 1:
            raise ConfigError("wait and warmup must be at least 0, active and repeat at least 1")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read `wait=5,warmup=2,active=5,repeat=1`; what is left out keeps its default.

        Raises:
            ConfigError: an unknown word, or not a number.
        """
        values: dict[str, int] = {}
        for item in text.split(","):
            key, _, value = item.strip().partition("=")
            if key not in cls.__slots__ or not value.strip().isdecimal():
                raise ConfigError(f"{item.strip()!r} is not one of wait|warmup|active|repeat=NUMBER")
            values[key] = int(value)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Capture settings of a run.

    Attributes:
        run_dir: the run directory, absolute.
        schedule: when the window is open.
        window_ranks: ranks that record a window; None: all; empty: none does.
        activities: what the window records, of cpu, cuda and xpu; None: all that a rank's torch can (`activities.py`).
        record: what it records beside times, of `RECORDS`.
        max_trace_mb: megabytes (10^6 bytes) that a rank's trace may have, uncompressed; None: no limit.
        probes: whether the ranks compare their clocks by small messages.
        settings: overrides of the script's own settings by name (`settings.py`).
        stop_after: end the training, as if it were over, after so many steps; None: it ends by itself.
        seed: seeds the random numbers of Python, numpy and torch before the script begins; None: nothing is seeded.
        checksum: whether the parameters are summed up at the end of the training.
        only_steps: record the step boundaries and nothing else, as close to nothing as step times can be had for.
    """

    run_dir: str
    schedule: Schedule = field(default_factory=Schedule)
    window_ranks: list[int] | None = None
    activities: list[str] | None = None
    record: list[str] = field(default_factory=list)
    max_trace_mb: float | None = 200.0
    probes: bool = True
    settings: dict[str, bool | int | float | str] = field(default_factory=dict)
    stop_after: int | None = None
    seed: int | None = None
    checksum: bool = False
    only_steps: bool = False

    def to_environment(self) -> dict[str, str]:
        """The variables that carry it to the ranks."""
        return {CONFIG_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CaptureConfig | None:
        """Read it back; None where this process was not started under distprof.

        Raises:
            ConfigError: the variable does not hold a configuration of this version.
        """
        text = environment.get(CONFIG_VARIABLE)
        if not text:
            return None
        try:
            value = json.loads(text)
            return cls(**{**value, "schedule": Schedule(**value["schedule"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{CONFIG_VARIABLE} is not a capture configuration of this version ({error})") from error

    def wants_window(self, rank: int) -> bool:
        """Whether `rank` records a Kineto window."""
        return not self.only_steps and (self.window_ranks is None or rank in self.window_ranks)


def parse_activities(text: str) -> list[str] | None:
    """Read `auto`, which is None, or one of `ACTIVITIES`, in any order.

    Raises:
        ConfigError: anything else.
    """
    words = {word.strip().lower() for word in text.split(",")}
    if words == {"auto"}:
        return None
    for choice in ACTIVITIES:
        if words == set(choice.split(",")):
            return choice.split(",")
    raise ConfigError(f"{text!r} is not one of auto|{'|'.join(ACTIVITIES)}")


def parse_window_ranks(text: str) -> list[int] | Literal["all", "auto"]:
    """Read `all`, `auto`, or ranks such as `0,8`.

    Raises:
        ConfigError: anything else.
    """
    if text in ("all", "auto"):
        return cast(Literal["all", "auto"], text)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"{text!r} is not 'all', 'auto' or ranks such as 0,8")
    return sorted({int(word) for word in words})


def parse_record(text: str) -> list[str]:
    """Read words of `RECORDS`.

    Raises:
        ConfigError: another word.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in RECORDS:
            raise ConfigError(f"{word!r} is not one of {', '.join(RECORDS)}")
    return words


def parse_max_trace_mb(text: str) -> float | None:
    """Read a positive number, or `none`.

    Raises:
        ConfigError: anything else.
    """
    if text == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{text!r} is not a number of megabytes above 0, or 'none'")
    return number


def sample_of_ranks(world_size: int, ranks_per_node: int) -> list[int] | None:
    """Ranks that stand for a world: None, which is all, of up to `SAMPLE_OF_RANKS`; else that many.

    They are rank 0, the first rank of each node (of more nodes than that: of some, evenly spaced), and others, evenly
    spaced over the world and over the places on a node.
    """
    if world_size <= SAMPLE_OF_RANKS:
        return None
    firsts = range(0, world_size, ranks_per_node)
    nodes = min(len(firsts), SAMPLE_OF_RANKS)
    chosen = [firsts[index * len(firsts) // nodes] for index in range(nodes)]
    others = [rank for rank in range(world_size) if rank % ranks_per_node]
    count = SAMPLE_OF_RANKS - nodes
    for index in range(count):
        begin, end = index * len(others) // count, (index + 1) * len(others) // count
        chosen.append(others[begin + index % (end - begin)])
    return sorted(chosen)


def ring_size(environment: Mapping[str, str]) -> int:
    """Entries that torch's flight recorder keeps: what the user set, else 2000."""
    text = environment.get(RING_VARIABLE, "")
    return int(text) if text.isdecimal() else _RING_SIZE


def inject_folder() -> Path:
    """The folder that PYTHONPATH must begin with to arm a Python process."""
    return Path(__file__).resolve().parent.parent / "inject"
