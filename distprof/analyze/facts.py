"""What the ranks said about themselves: who was there, under which conditions, in which windows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from distprof.analyze import listed
from distprof.analyze.hanging import hanging
from distprof.analyze.inputs import Inputs
from distprof.analyze.ranks import of_rank
from distprof.analyze.settings import setting_rows
from distprof.analyze.steady import samples_per_step, steps_in_windows
from distprof.result import Conditions, NotObserved, RankRow, Window
from distprof.trace.tables import Tables

# If more left nothing, one row stands for all ranks of which the same is known: a job may have very many, and a
# directory those of one host only.
_MOST_MISSING = 1000
_NO_RECORDING = "it left no recording"


def ranks(inputs: Inputs) -> tuple[list[RankRow], list[NotObserved]]:
    """One row for each rank of the world, but for very many that left nothing, and what went wrong in each."""
    tables, recording = inputs.tables, inputs.recording
    held_up = hanging(tables, inputs.clock)
    present = {*tables.ranks, *tables.facts}
    if tables.world_size - len(present) <= _MOST_MISSING:
        rows = [_row(inputs, rank, held_up.get(rank)) for rank in range(tables.world_size)]
        notes = [
            NotObserved("ranks", [row.rank], recording.absent.get(row.rank, "it left nothing that could be read"))
            for row in rows
            if row.status == "missing"
        ]
    else:
        missing = _very_many_missing(inputs, present)
        rows = [*missing, *(_row(inputs, rank, held_up.get(rank)) for rank in present)]
        rows.sort(key=lambda row: row.rank)
        notes = [NotObserved("ranks", [row.rank], row.reason or _NO_RECORDING) for row in missing]
    for rank, facts in sorted(tables.facts.items()):
        notes += [NotObserved("recording", [rank], text) for text in facts.get("problems", ())]
        for window in facts.get("windows", ()):
            if window["reason"]:
                notes.append(NotObserved(f"windows[{window['index']}]", [rank], window["reason"]))
    for row in rows:
        unseen = [activity for activity in row.requested if activity not in row.observed]
        if unseen and row.trace is not None:
            text = f"{', '.join(unseen)} activity was asked for and is not in the trace: no figure of it is given"
            notes.append(NotObserved("ranks.observed", [row.rank], text))
    return rows, notes + _never_opened(tables)


def _never_opened(tables: Tables) -> list[NotObserved]:
    without: dict[str, list[int]] = {}
    for rank, facts in sorted(tables.facts.items()):
        if facts.get("requested") and not facts["windows"]:
            schedule = facts["schedule"]
            opens = schedule["wait"] + max(0, schedule["warmup"] - 1)
            text = f"the run had {facts['boundaries']} steps, and the schedule opens the first window after {opens}"
            if told := facts.get("told"):
                text = (
                    f"the scheduler's {told['signal']} came at step {told['boundary']}; the first was due after {opens}"
                )
            without.setdefault(f"the Kineto window never opened: {text}", []).append(rank)
    return [NotObserved("windows", ranks, reason) for reason, ranks in without.items()]


def _very_many_missing(inputs: Inputs, present: set[int]) -> list[RankRow]:
    """Rows for ranks that left nothing, one for all of which the same is known."""
    alike: dict[str, list[int]] = {}
    known = {*inputs.recording.failures, *inputs.recording.absent}
    for rank in range(inputs.tables.world_size):
        if rank not in present:
            reason = _why_missing(inputs, rank) if rank in known else _NO_RECORDING
            alike.setdefault(reason, []).append(rank)
    shown = dict(islice(alike.items(), _MOST_MISSING))
    for numbers in islice(alike.values(), _MOST_MISSING, None):
        shown.setdefault(_NO_RECORDING, []).extend(numbers)
    rows = []
    for reason, numbers in shown.items():
        first, *others = sorted(numbers)
        own = "has no row of its own" if len(others) == 1 else "have no rows of their own"
        more = f"; the same is known of {listed.ranks(others)}, which {own}" if others else ""
        rows.append(RankRow(rank=first, host=None, device=None, status="missing", reason=reason + more))
    return rows


def _why_missing(inputs: Inputs, rank: int) -> str:
    reasons = (inputs.recording.failures.get(rank), inputs.recording.absent.get(rank))
    return "; ".join(reason for reason in reasons if reason is not None) or _NO_RECORDING


def _row(inputs: Inputs, rank: int, held_up: str | None) -> RankRow:
    tables, recording = inputs.tables, inputs.recording
    facts, failure = tables.facts.get(rank), recording.failures.get(rank)
    if facts is None and rank in tables.ranks:
        why = failure or "its facts are lost or cannot be read; what else it recorded is used"
        reason = "; ".join(filter(None, (held_up, why)))
        return RankRow(rank=rank, host=None, device=None, status="partial", reason=reason)
    if facts is None:
        return RankRow(rank=rank, host=None, device=None, status="missing", reason=_why_missing(inputs, rank))
    ended = facts["status"] == "finished"
    exception = (facts.get("exit") or {}).get("exception")
    status: Literal["complete", "partial"] = "complete" if ended else "partial"
    cut_off = None if ended else _cut_off(tables, rank, facts.get("told"))
    failed = ": ".join(reason for reason in (failure, exception) if reason is not None)
    return RankRow(
        rank=rank,
        host=facts["host"],
        device=facts["device"],
        status=status,
        reason="; ".join(filter(None, (held_up, failed or cut_off))) or None,
        trace=recording.traces.get(rank),
        requested=facts["requested"],
        observed=_observed(tables, rank, facts["device"]),
    )


def _cut_off(tables: Tables, rank: int, told: dict[str, Any] | None) -> str:
    steps = of_rank(tables.steps, rank)["step"]
    where = f" at step {int(steps.max()) + 1}" if len(steps) else ""  # type: ignore[arg-type]
    text = f"it was cut off{where}, or is still running: its last records may be missing"
    if told is None:
        return text
    return f"{text}; at step {told['boundary']} the scheduler's {told['signal']} had told that the job would end"


def _observed(tables: Tables, rank: int, device: str) -> list[str]:
    """Activities of which the rank's traces hold events."""
    categories = set(of_rank(tables.events, rank)["cat"].unique())
    return ["cpu"] * ("cpu_op" in categories) + [device] * ("kernel" in categories)


def windows(inputs: Inputs) -> tuple[list[Window], list[NotObserved]]:
    """Windows, and the steady steps that lie inside each on all ranks that recorded it."""
    tables = inputs.tables
    rows = []
    for (index,), of_index in tables.windows.partition_by("window", as_dict=True, maintain_order=True).items():
        recorded = sorted(of_index["rank"].to_list())
        steps = set.intersection(*(set(steps_in_windows(tables, rank, index)) for rank in recorded))
        rows.append(Window(index=int(index), ranks=recorded, steps=sorted(steps)))
    return sorted(rows, key=lambda row: row.index), []


def conditions(inputs: Inputs) -> tuple[Conditions, list[NotObserved]]:
    """Batches', models' and loaders' settings; ranks with the same ones share a row."""
    tables = inputs.tables
    facts = list(tables.facts.values())
    models = [row for of_rank in facts for row in of_rank.get("models", ())]
    shapes = sorted({", ".join(row["shapes"]) for of_rank in facts for row in of_rank.get("batches", ())})
    section = Conditions(
        batch_shapes=shapes or None,
        samples_per_step=samples_per_step(tables),
        autocast=any(row["autocast"] for row in models) if models else None,
        mode="train" if any(row["mode"] == "train" for row in models) else "eval" if models else None,
        compiled=any(row["compiled"] for row in models) if models else None,
        loader=_by_setting(tables, "loaders"),
        ddp=_by_setting(tables, "ddp"),
        settings=setting_rows(tables),
        checksums=_checksums(tables),
        stopped_after=next((row["stopped_after"] for row in facts if row.get("stopped_after")), None),
    )
    missing = []
    if not shapes:
        reason = "no torch DataLoader gave the training thread a batch with tensors"
        missing += [NotObserved(f"conditions.{name}", None, reason) for name in ("batch_shapes", "samples_per_step")]
    if not models:
        reason = "no model was called in the training thread"
        missing += [NotObserved(f"conditions.{name}", None, reason) for name in ("autocast", "mode", "compiled")]
    return section, missing


def _checksums(tables: Tables) -> dict[str, str] | None:
    """One for each optimizer that all ranks have: of the ranks' own ones, in the order of the ranks."""
    if len(tables.facts) < tables.world_size:
        return None
    of_ranks = [facts.get("checksums") or {} for _, facts in sorted(tables.facts.items())]
    names = set.intersection(*(set(sums) for sums in of_ranks))
    together = {name: hashlib.sha256("".join(sums[name] for sums in of_ranks).encode()) for name in sorted(names)}
    return {name: digest.hexdigest() for name, digest in together.items()} or None


def _by_setting(tables: Tables, key: str) -> list[dict[str, Any]]:
    shared: dict[str, list[int]] = {}
    for rank, facts in sorted(tables.facts.items()):
        for row in _rows(facts, key):
            shared.setdefault(json.dumps(row, sort_keys=True), []).append(rank)
    return [{**json.loads(row), "ranks": sharing} for row, sharing in shared.items()]


def _rows(facts: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    return ({name: value for name, value in row.items() if name != "params"} for row in facts.get(key, ()))
