"""One operator that takes much of the step: of a CPU's time, or of a device's."""

from __future__ import annotations

import math
import re

import polars as pl

from distprof.analyze.blocking import named_around
from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import VIEW_RUN, Judged
from distprof.analyze.operators import in_steps, steps_of_windows
from distprof.analyze.steady import MS, on_device
from distprof.result import Finding, Operator
from distprof.trace.kinds import own_name
from distprof.trace.tables import Tables

_DOMINATES = 0.25  # of the step
# Multiplications are what a training is for.
_MULTIPLIES = re.compile(r"mm$|mm_|matmul|linear|conv|bmm|attention|lstm|gru|rnn|einsum|c10d|record_param_comms", re.I)
# The same by names of kernels: cuBLAS, cuDNN and CUTLASS, rocBLAS (Cijk) and MIOpen, attention, and compilers' own.
_KERNEL_MULTIPLIES = re.compile(
    r"gemm|gemv|splitk|nvjet|xmma|[^a-z]mma|tensorop|cutlass|cijk|wino|[wd]grad|fprop|flash|fmha|attn|_mm\b|"
    + _MULTIPLIES.pattern.replace("conv", "conv(?!ert)"),
    re.I,
)
_DIMS = re.compile(r"\[(\d+(?:, ?\d+)*)\]")
_HYPOTHESIS = (
    "one operator that multiplies nothing does much of the work: its inputs are larger than they need be, or it has a "
    "faster form"
)


def dominating_operator(inputs: Inputs, judged: Judged) -> list[Finding]:
    """One operator takes much of the step on a CPU and is no multiplication. What it would save is not known."""
    if on_device(inputs.tables) or not judged.operators:
        return []
    row = judged.operators[0]
    if row.per != "step" or row.self is None or _MULTIPLIES.search(row.name):
        return []
    share = judged.share(judged.outside(row.self))
    if share < _DOMINATES:
        return []
    shapes = _costliest_shapes(inputs.tables, row)
    return [
        Finding(
            id="habit.dominating_operator",
            severity="info",
            ranks=[] if row.slowest_rank is None else [row.slowest_rank],
            steps=[],
            observation=f"{row.name} takes {row.self:.1f} ms per step by itself, {share:.0%} of it, "
            f"in {row.calls:.0f} calls{f', most of it on inputs of shapes {shapes}' if shapes else ''}",
            hypothesis=_HYPOTHESIS,
            next_check=_look(shapes),
            evidence={"operators.self": row.self, "operators.calls": row.calls},
        )
    ]


def dominating_kernel(inputs: Inputs, judged: Judged) -> list[Finding]:
    """The same on devices: kernels of one operator, or without a known operator of one name."""
    tables = inputs.tables
    computing = tables.kernels.filter((pl.col("cat") == "kernel") & pl.col("collective").is_null())
    steps = steps_of_windows(tables, computing)
    if not any(steps.values()):
        return []
    launched = computing.with_columns(at=pl.coalesce("launched", "start"), ns=pl.col("end") - pl.col("start"))
    used = _with_operators(tables, in_steps(tables, launched, steps, "at"))
    of = pl.coalesce("operator", "name").alias("of")
    sums = used.group_by(of, "operator", "name", "rank").agg(pl.len().alias("calls"), pl.col("ns").sum())
    top = sums.group_by("of", "operator").agg(pl.col("ns", "calls").sum()).sort("ns", "of")
    if not len(top):
        return []
    name, operator, ns, calls = top.row(-1)
    counted = sum(map(len, steps.values()))
    taken, per_step = ns / MS / counted, calls / counted
    share = judged.share(judged.outside(taken))
    own = sums.filter(pl.col("of") == name)
    kernel = own.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name")["name"][-1]
    if share < _DOMINATES or _KERNEL_MULTIPLIES.search(kernel) or _MULTIPLIES.search(operator or ""):
        return []
    by_rank = own.group_by("rank").agg(pl.col("ns").sum()).sort("ns", -pl.col("rank"))
    shapes = _largest_shapes(tables, operator) if operator else None
    of_shapes = f", on inputs of shapes {shapes}" if shapes else ""
    what = f"the kernels of {operator} take" if operator else f"the kernel {own_name(name)} takes"
    return [
        Finding(
            id="habit.dominating_kernel",
            severity="info",
            ranks=[by_rank["rank"][-1]] if len(steps) > 1 else [],
            steps=[],
            observation=f"{what} {taken:.1f} ms per step, {share:.0%} of it, "
            f"in {per_step:.0f} launch{'' if round(per_step) == 1 else 'es'}"
            f"{f', most of it in {own_name(kernel)}' if operator else ''}{of_shapes}",
            hypothesis=_HYPOTHESIS,
            next_check=_look(shapes),
            evidence={"kernels.total": taken, "kernels.calls": per_step},
        )
    ]


def _look(shapes: str | None) -> str:
    record = "" if shapes else "; record its shapes with `distprof launch --record shapes`"
    return f"look at where it is called ({VIEW_RUN}){record}"


def _with_operators(tables: Tables, kernels: pl.DataFrame) -> pl.DataFrame:
    """With the column `operator`: the outermost one around the launch (`at`), null where none was recorded."""
    leaves = tables.events.filter("leaf")
    of_thread = leaves.partition_by("rank", "thread", as_dict=True)
    parts = [kernels.clear().with_columns(operator=pl.lit(None, pl.String))]
    for key, own in kernels.partition_by("rank", "launch_thread", as_dict=True, maintain_order=True).items():
        names, _ = named_around(own["at"].to_numpy(), of_thread.get(key, leaves.clear()))
        parts.append(own.with_columns(operator=names))
    return pl.concat(parts)


def _costliest_shapes(tables: Tables, row: Operator) -> str | None:
    """Shapes of the inputs with which the operator took the most time, where they were recorded."""
    taken = tables.shapes.filter(pl.col("name") == row.name).group_by("shapes").agg(pl.col("ns").sum())
    return str(taken.sort("ns", "shapes")["shapes"][-1]) if len(taken) else None


def _largest_shapes(tables: Tables, operator: str) -> str | None:
    """Shapes of its largest inputs, where they were recorded: the host's time does not tell which kept the device."""
    shapes = sorted(tables.shapes.filter(pl.col("name") == operator)["shapes"].unique(), key=_elements)
    return f"{shapes[-1]}{' and smaller ones' if len(shapes) > 1 else ''}" if shapes else None


def _elements(shapes: str) -> tuple[int, str]:
    """Of all inputs together; and the text itself, which orders equals."""
    return sum(math.prod(map(int, dims.split(","))) for dims in _DIMS.findall(shapes)), shapes
