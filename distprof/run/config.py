"""What capture is told to do: written by the launcher into the environment, read by every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

CONFIG_VARIABLE = "DISTPROF_CONFIG"
OWNER_VARIABLE = "DISTPROF_OWNER"
ACTIVITIES = ("cpu", "cuda", "xpu")
RECORDS = ("shapes", "memory", "stacks", "flops")


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
            raise ConfigError("--schedule needs wait and warmup of at least 0, active and repeat of at least 1")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read `wait=5,warmup=2,active=5,repeat=1`; what is left out keeps its default.

        Raises:
            ConfigError: an unknown word, or not a number.
        """
        values: dict[str, int] = {}
        for item in text.split(","):
            key, _, value = item.strip().partition("=")
            if key not in cls.__slots__ or not value.strip().isdigit():
                raise ConfigError(
                    f"--schedule {text!r}: {item.strip()!r} is not one of wait|warmup|active|repeat=NUMBER"
                )
            values[key] = int(value)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Capture settings of a run.

    `window_ranks` None means all; an empty list means that no rank records a Kineto window.
    """

    run_dir: str
    schedule: Schedule = field(default_factory=Schedule)
    window_ranks: list[int] | None = None
    activities: list[str] | None = None
    record: list[str] = field(default_factory=list)
    max_trace_mb: float | None = 200.0

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
        return self.window_ranks is None or rank in self.window_ranks


def inject_folder() -> Path:
    """The folder that PYTHONPATH must begin with to arm a Python process."""
    return Path(__file__).resolve().parent.parent / "inject"
