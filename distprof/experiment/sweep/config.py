"""The configuration of a sweep: structured configs, and where the groups in `conf/` lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

PRIMARY = "config"


def told(text: str, default: Any = None, *, factory: Any = None) -> Any:
    """A field with its explanation, which the documentation is made of."""
    if factory is not None:
        return field(default_factory=factory, metadata={"doc": text})
    return field(default=default, metadata={"doc": text})


class Objective(Enum):
    """What a job returns to Hydra's sweeper; less is better."""

    ratio = "ratio"
    step = "step"


@dataclass
class LoaderConf:
    """What each `DataLoader` is given where the script makes it; null: what the script gives it."""

    num_workers: int | None = told("Worker processes; with 0 what needs workers is left away.")
    pin_memory: bool | None = told("Batches lie in page-locked memory, which a device copies from faster.")
    prefetch_factor: int | None = told("Batches that each worker prepares ahead.")
    persistent_workers: bool | None = told("Workers stay from epoch to epoch; this changes the shuffle's order.")
    only: str | None = told("The one loader that is meant: its number by order of construction, or FILE:LINE.")


@dataclass
class DdpConf:
    """What `DistributedDataParallel` is given where the script makes it; null: what the script gives it."""

    bucket_cap_mb: float | None = told("Megabytes of gradients that are reduced together.")
    static_graph: bool | None = told("The graph never changes, so that torch may plan ahead.")
    gradient_as_bucket_view: bool | None = told("Gradients lie in the buckets: a copy and its memory less.")
    find_unused_parameters: bool | None = told("Look for parameters without a gradient in each step.")


@dataclass
class CaptureConf:
    """The one run per point that explains it, after the measurement."""

    window: bool = told("Record a Kineto window; else zones alone.", True)
    active: int = told("Steps that are recorded.", 6)
    record: list[str] = told("What the window records beside times: shapes, memory, stacks, flops.", factory=list)
    activities: str = told("What it records: auto, cpu, `cpu,cuda`, `cpu,xpu`.", "auto")
    window_ranks: str = told("Which ranks record a window: all, auto, or ranks such as `0,8`.", "all")


@dataclass
class MeasureConf:
    """How the points are measured: outside of the profiler, zones only."""

    steps: int = told("Steps measured in each launch.", 40)
    warmup: int = told("Steps after the first one that are not measured.", 10)
    repeats: int = told("Launches of each point.", 3)
    budget: str | None = told("Time that all launches may take: 90s, 20min, 2h. Of each job, where jobs measure apart.")
    seed: int = told("Seeds the random numbers of Python, numpy and torch; of each rank with it + rank.", 0)
    together: bool | None = told(
        "Take the repeats of all points in turn; false: each job takes its point and the baseline in turn. null: "
        "together with Hydra's basic launcher and basic sweeper, apart with any other."
    )
    objective: Objective = told(
        "What a job that measures apart returns to Hydra's sweeper: `ratio`, its time over the baseline's, or `step`, "
        "the median step in milliseconds.",
        Objective.ratio,
    )
    explain: bool = told("Explain each point by one more, profiled run.", True)


@dataclass
class SweepConf:
    """A sweep."""

    script: str = told("Training script, module or program.", MISSING)
    script_args: list[str] = told(
        "Its own arguments. They may refer to anything here, such as `${loader.num_workers}` or `${args.lr}`; what is "
        "null there is left out, together with the option before it.",
        factory=list,
    )
    module: bool = told("The script is a module's name, as with `python -m`.", False)
    torchrun: list[str] = told("torchrun's options.", factory=list)
    nproc_per_node: str | None = told("Ranks; short for torchrun's option.")
    args: dict[str, Any] = told("Values of your own for `script_args`: `+args.lr=0.1,0.01`.", factory=dict)
    loader: LoaderConf = told("Settings of the loaders.", factory=LoaderConf)
    ddp: DdpConf = told("Settings of DistributedDataParallel.", factory=DdpConf)
    measure: MeasureConf = told("How it is measured.", factory=MeasureConf)
    capture: CaptureConf = told("How it is explained.", factory=CaptureConf)
    cwd: str = told(
        "Where the training starts, and what paths are relative to. Default: where the command was typed.", ""
    )
    out: str = told("Where results are kept. Default: below `./distprof-runs`.", "")


def register() -> None:
    """Make the schema known to Hydra."""
    ConfigStore.instance().store(name="sweep_schema", node=SweepConf, provider="distprof")


def conf_folder() -> Path:
    """Where the config groups lie: inside an installed package, beside an editable one.

    Raises:
        FileNotFoundError: they were not installed.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{PRIMARY}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"{package / 'conf'} is missing: distprof is not installed whole")
