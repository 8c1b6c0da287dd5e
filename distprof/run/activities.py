"""Which activities torch's profiler can record: in this build, on this machine."""

from __future__ import annotations

from typing import Any

_DEVICES = ("cuda", "xpu")


def available_activities(torch: Any) -> list[str]:
    """What `--activities auto` stands for.

    Args:
        torch: the module, since this package does not import it.
    """
    return ["cpu", *(name for name in _DEVICES if why_unavailable(name, torch) is None)]


def why_unavailable(activity: str, torch: Any) -> str | None:
    """Why `activity` (`cpu`, `cuda` or `xpu`) cannot be recorded, and the way out; None: it can.

    Args:
        activity: its name.
        torch: the module.
    """
    if activity == "cpu":
        return None
    if activity.upper() not in {supported.name for supported in torch.profiler.supported_activities()}:
        return f"torch {torch.__version__} was built without {activity} profiling: install a build that has it"
    if not getattr(torch, activity).is_available():
        return f"torch.{activity}.is_available() is False: check the driver and which devices are visible"
    return None
