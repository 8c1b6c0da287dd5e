"""Settings of the script's loaders and of its DDP that can be overridden without editing it: names and values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from distprof.run.config import ConfigError

Value = bool | int | float | str

ONLY = "loader.only"
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_PLACE = re.compile(r".+:\d{1,9}")


def parse_setting(text: str) -> tuple[str, Value]:
    """Read `loader.num_workers=4`.

    Raises:
        ConfigError: no such setting, or not a value of it.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError(f"{text!r} is not SETTING=VALUE, such as loader.num_workers=4")
    if key not in SETTINGS:
        import difflib

        close = difflib.get_close_matches(key, SETTINGS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        raise ConfigError(f"there is no setting {key!r}: {hint}")
    try:
        return key, SETTINGS[key](value.strip())
    except ValueError as error:
        raise ConfigError(f"{key} cannot be {value.strip()!r}: {error}") from error


def parse_settings(texts: Iterable[str]) -> dict[str, Value]:
    """Read several; of those with one name the last counts.

    Raises:
        ConfigError: as `parse_setting`; or `loader.only` chooses a loader and nothing is set on it.
    """
    settings = dict(parse_setting(text) for text in texts)
    if ONLY in settings and not any(name.startswith("loader.") for name in settings.keys() - {ONLY}):
        raise ConfigError(f"{ONLY} says which loader is set, and no setting of a loader is given beside it")
    return settings


def written(settings: dict[str, Value]) -> list[str]:
    """Settings as they are typed: `parse_settings` reads them back."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("it is true or false")
    return _BOOLEANS[text.lower()]


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
            raise ValueError(f"it is a whole number of at least {least}")
        return int(text)

    return whole


def _megabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("it is a number above 0")
    return number


def _loader(text: str) -> int | str:
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    if not _PLACE.fullmatch(text):
        raise ValueError("it is the number of a loader, in the order in which they are made from 0, or FILE:LINE")
    return text


SETTINGS: dict[str, Callable[[str], Value]] = {
    "loader.num_workers": _whole(0),
    "loader.pin_memory": _boolean,
    "loader.prefetch_factor": _whole(1),
    "loader.persistent_workers": _boolean,
    ONLY: _loader,
    "ddp.bucket_cap_mb": _megabytes,
    "ddp.static_graph": _boolean,
    "ddp.gradient_as_bucket_view": _boolean,
    "ddp.find_unused_parameters": _boolean,
}
