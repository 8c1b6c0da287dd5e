"""Our own recordings of one rank: its zones, its collectives and its facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.result import Setting
from distprof.run.files import read_json
from distprof.run.manifest import MOST_RANKS
from distprof.trace.jsonlines import read_stream
from distprof.trace.jumps import Jump, find_jumps
from distprof.trace.notes import Note, RecordingError
from distprof.trace.tables import BATCHES, DEVICE_ZONES, PROBES, ZONES, empty

FACTS_SCHEMA = "distprof.rank.v1"
ZONES_SCHEMA = "distprof.zones.v1"
COLLECTIVES_SCHEMA = "distprof.collectives.v1"
CLOCK_SCHEMA = "distprof.clock.v1"

# The flight recorder's entries of one rank as it wrote them; `group` is torch's name of the process group.
# `record` numbers a rank's entries: a gap means that entries were lost.
ENTRIES: dict[str, Any] = {
    "rank": pl.Int32,
    "record": pl.Int64,
    "group": pl.String,
    "seq": pl.Int64,
    "op": pl.String,
    "bytes": pl.Int64,
    "dtype": pl.String,
    "created": pl.Int64,
    "started": pl.Int64,
    "ended": pl.Int64,
    "p2p": pl.Boolean,
}

# Integers per row. rows: zone id, thread, start, duration; batches: time, samples, elements; device: zone id, start,
# duration on the device.
_MOST_THREADS = 2**31 - 1
_MOST_TOLD = 5  # times that a clock was set
_WIDTHS = {"rows": 4, "batches": 3, "device": 3}
Nanoseconds = npt.NDArray[np.int64]


# Sums of two of them still fit into the tables' 64 bits.
Number = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**61)]
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]


class GroupFacts(msgspec.Struct, frozen=True):
    """A process group that the rank is a member of."""

    name: str
    ranks: list[RankNumber]
    desc: str | None = None


class DdpFacts(msgspec.Struct, frozen=True):
    """A `DistributedDataParallel`; `bucket_bytes` in bucket order after the rebuild, None if it never came to one."""

    name: str
    bucket_bytes: list[Number] | None = None
    params: list[list[str]] | None = None


class WindowFacts(msgspec.Struct, frozen=True):
    """A Kineto window; start and end are None where it was never open or not closed."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    start_unix_ns: Number | None = None
    end_unix_ns: Number | None = None
    stop_s: float | None = None
    export_s: float | None = None
    reason: str | None = None


class _Exit(msgspec.Struct, frozen=True):
    reason: str | None = None
    exception: str | None = None


class _Told(msgspec.Struct, frozen=True):
    signal: str
    unix_ns: Number
    boundary: Count


class _Loader(msgspec.Struct, frozen=True):
    name: str
    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None


class _Model(msgspec.Struct, frozen=True):
    mode: str | None = None
    autocast: bool | None = None
    compiled: bool | None = None


class _Shapes(msgspec.Struct, frozen=True):
    shapes: list[str] = []


class _SettingMet(msgspec.Struct, frozen=True):
    setting: str
    target: str
    place: str | None = None
    had: Setting | None = None
    took: Setting | None = None
    why: str | None = None


class _Settings(msgspec.Struct, frozen=True):
    asked: dict[str, Setting] = {}
    met: list[_SettingMet] = []
    unmet: dict[str, str] = {}


class _Schedule(msgspec.Struct, frozen=True):
    wait: Count = 0
    warmup: Count = 0


class _OwnCost(msgspec.Struct, frozen=True):
    ns_per_zone: float | None = None
    zones: Count = 0
    drain_s: float | None = None
    lost_collectives: Count = 0


class Facts(msgspec.Struct, frozen=True):
    """A rank's facts, as far as reading and the analyses need them; of a rank without any, nothing is known."""

    schema: str = FACTS_SCHEMA
    rank: int | None = None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)] | None = None
    training_thread: Number | None = None
    host: str | None = None
    boot_id: str | None = None
    torch: str | None = None
    backend: str | None = None
    device: str = "cpu"
    status: Literal["running", "finished"] = "running"
    exit: _Exit | None = None
    told: _Told | None = None
    cpus: Count | None = None
    argv: list[str] = []
    peak_resident_bytes: Count | None = None
    requested: list[str] = []
    windows: list[WindowFacts] = []
    groups: list[GroupFacts] = []
    ddp: list[DdpFacts] = []
    loaders: list[_Loader] = []
    models: list[_Model] = []
    batches: list[_Shapes] = []
    settings: _Settings | None = None
    checksums: dict[str, str] = {}
    stopped_after: Count | None = None
    schedule: _Schedule = _Schedule()
    boundaries: Count = 0
    drained_unix_ns: Number | None = None
    zones_left_off: bool = False
    own_cost: _OwnCost | None = None
    problems: list[str] = []

    @classmethod
    def of(cls, values: dict[str, Any]) -> Facts:
        """Take from a facts file what is needed.

        Raises:
            msgspec.ValidationError: a fact has another type; the message names the place.
        """
        return msgspec.convert(values, cls)


class _ZonesBlock(msgspec.Struct):
    names: dict[Number, tuple[str, str]] = {}
    anchors: list[tuple[Number, Number]] = []
    rows: list[Number] = []
    batches: list[Number] = []
    device: list[Number] = []


class _ClockBlock(msgspec.Struct):
    peer: list[RankNumber]
    sent: list[Number]
    peer_received: list[Number]
    peer_sent: list[Number]
    received: list[Number]


class _CollectivesBlock(msgspec.Struct):
    record: list[Count]
    group: list[str]
    seq: list[Number]
    op: list[str]
    bytes: list[Number | None]
    dtype: list[str | None]
    created: list[Number]
    started: list[Number | None]
    ended: list[Number | None]
    p2p: list[bool]


def read_facts(path: Path, rank: int) -> tuple[dict[str, Any], list[Note]]:
    """Read a rank's facts.

    Returns:
        The facts, with defaults for those that `Facts` knows and the file lacks or has wrong, so that they are valid
        for `Facts.of`; and notes on the wrong ones.

    Raises:
        RecordingError: not readable, or not this rank's facts.
    """
    try:
        values = read_json(path)
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    except ValueError as error:
        text = f"these are no rank's facts ({error}); restore the file from the machine that recorded it"
        raise RecordingError(rank, path, None, text) from error
    if not isinstance(values, dict):
        text = "these are no rank's facts (no JSON object); restore the file from the machine that recorded it"
        raise RecordingError(rank, path, None, text)
    if values.get("schema") != FACTS_SCHEMA:
        text = f"its schema is {values.get('schema')!r:.60}, not {FACTS_SCHEMA!r}"
        text += "; use the distprof version that recorded it"
        raise RecordingError(rank, path, "$.schema", text)
    if type(values.get("rank")) is not int or values["rank"] != rank:
        text = f"these are the facts of rank {values.get('rank')!r:.20}; give the file the name of that rank again"
        raise RecordingError(rank, path, "$.rank", text)
    notes: list[Note] = []
    defaults: dict[str, Any] = msgspec.to_builtins(Facts())
    for fact in msgspec.structs.fields(Facts):
        told = values.setdefault(fact.name, defaults[fact.name])
        try:
            values[fact.name] = _with_defaults(told, msgspec.convert(told, fact.type))
        except msgspec.ValidationError as error:
            text = f"{error}: it was taken for {json.dumps(defaults[fact.name])}"
            notes.append(Note(rank, path, f"$.{fact.name}", text))
            values[fact.name] = defaults[fact.name]
    return values, notes


def _with_defaults(told: Any, known: Any) -> Any:
    """What was told, and defaults for what the known part of it lacks."""
    if isinstance(known, msgspec.Struct):
        inside = {
            name: _with_defaults(told[name], getattr(known, name)) for name in known.__struct_fields__ if name in told
        }
        return {**msgspec.to_builtins(known), **told, **inside}
    if isinstance(known, list):
        return [_with_defaults(*pair) for pair in zip(told, known, strict=True)]
    return told


@dataclass(frozen=True, slots=True)
class Timeline:
    """A zone stream as tables: ZONES, BATCHES (its `step` is null yet) and DEVICE_ZONES.

    Attributes:
        written: when the rank last wrote to it, in Unix ns; None: it is not known.
        jumps: how its clock was set, which is undone in all of these.
    """

    zones: pl.DataFrame = field(default_factory=lambda: empty(ZONES))
    batches: pl.DataFrame = field(default_factory=lambda: empty(BATCHES))
    device_zones: pl.DataFrame = field(default_factory=lambda: empty(DEVICE_ZONES))
    written: int | None = None
    jumps: list[Jump] = field(default_factory=list)


def read_zones(path: Path, rank: int) -> tuple[Timeline, list[Note]]:
    """Read a rank's zone stream, on its host's Unix clock; a zone comes before those inside it.

    Raises:
        RecordingError: the file cannot be used at all.
    """
    blocks, notes = read_stream(path, schema=ZONES_SCHEMA, rank=rank, block=_ZonesBlock)
    names: dict[int, tuple[str, str]] = {}
    flat: dict[str, list[int]] = {column: [] for column in _WIDTHS}
    anchors: list[tuple[int, int]] = []
    for number, block in blocks:
        names.update(block.names)
        anchors += block.anchors
        for column, width in _WIDTHS.items():
            values: list[int] = getattr(block, column)
            if len(values) % width:
                notes.append(Note(rank, path, f"line {number}", f"its {column} are incomplete and were left out"))
            else:
                flat[column] += values
    if flat["rows"] and not anchors:
        text = "it has no pair of clock readings, so its zones have no place in time and were left out"
        return Timeline(), [*notes, Note(rank, path, None, text)]
    anchors, jumps, left_alone = find_jumps(anchors)
    columns = {name: np.array(flat[name], dtype=np.int64).reshape(-1, width).T for name, width in _WIDTHS.items()}
    ids, thread, start, duration = columns["rows"]
    named, kinds = _named(ids, names)
    if not named.all():
        text = f"{np.count_nonzero(~named)} zones were left out, since the line with their names is lost"
        notes.append(Note(rank, path, None, text))
    thread, start, duration = np.clip(thread[named], 0, _MOST_THREADS), start[named], duration[named]
    unix_start = to_unix(start, anchors)
    zones = kinds.with_columns(
        rank=pl.lit(rank),
        thread=pl.Series(thread, dtype=pl.Int64),
        start=pl.Series(unix_start, dtype=pl.Int64),
        end=pl.Series(np.maximum(unix_start, to_unix(start + duration, anchors)), dtype=pl.Int64),
    )
    moment, samples, elements = columns["batches"]
    batches = pl.DataFrame(
        {"rank": [rank] * len(moment), "time": to_unix(moment, anchors), "samples": samples, "elements": elements},
        schema={name: BATCHES[name] for name in ("rank", "time", "samples", "elements")},
    )
    ids, start, device_ns = columns["device"]
    named, kinds = _named(ids, names)
    device_zones = kinds.with_columns(
        rank=pl.lit(rank),
        start=pl.Series(to_unix(start[named], anchors), dtype=pl.Int64),
        device_ns=pl.Series(device_ns[named], dtype=pl.Int64),
    )
    timeline = Timeline(
        zones=_typed(zones, ZONES).sort("start", "end", descending=[False, True], maintain_order=True),
        batches=_typed(batches.with_columns(step=None), BATCHES),
        device_zones=_typed(device_zones, DEVICE_ZONES),
        written=anchors[-1][1] if anchors else None,
        jumps=jumps,
    )
    return timeline, [*notes, *(Note(rank, path, None, text) for text in _on_jumps(jumps, left_alone, anchors))]


def _on_jumps(undone: Sequence[Jump], left_alone: Sequence[Jump], anchors: Sequence[tuple[int, int]]) -> Iterator[str]:
    """What is said of a clock that was set, a few times at most."""
    outcomes = [
        (undone, "all times are on the clock as it was before"),
        (left_alone, "times that were taken from it later are not put back"),
    ]
    for jumps, outcome in outcomes:
        for jump in jumps[:_MOST_TOLD]:
            begin, end = ((moment - anchors[0][1]) / 1e9 for moment in (jump.begin, jump.end))
            when = f"between {begin:.1f} and {end:.1f} s after the rank's first record"
            yield f"the clock was set by {jump.by / 1e9:+.3f} s {when}: {outcome}"
        if len(jumps) > _MOST_TOLD:
            yield f"the clock was set {len(jumps) - _MOST_TOLD} times more: {outcome}"


def _named(ids: Nanoseconds, names: dict[int, tuple[str, str]]) -> tuple[npt.NDArray[np.bool_], pl.DataFrame]:
    """Which of `ids` have a name, and the `kind` and `name` of those that do."""
    known = sorted(names)
    which = np.searchsorted(known, ids)
    named: npt.NDArray[np.bool_] = (which < len(known)) & (np.append(known, -1)[which] == ids)
    table = pl.DataFrame([names[key] for key in known], schema={"kind": pl.String, "name": pl.String}, orient="row")
    return named, table[which[named]]


def _typed(table: pl.DataFrame, schema: dict[str, Any]) -> pl.DataFrame:
    return table.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def to_unix(monotonic: Nanoseconds, anchors: list[tuple[int, int]]) -> Nanoseconds:
    """Convert monotonic to Unix ns: between two anchors linearly, outside them by the nearest one's offset.

    Only the small difference to the first anchor's offset goes through floating point, so that no digit is lost.

    Args:
        anchors: (monotonic, Unix) pairs in any order, at least one if there is anything to convert.
    """
    if not len(monotonic):
        return monotonic
    pairs = np.array(sorted(anchors), dtype=np.int64)
    origin = pairs[0, 0]
    offset = pairs[:, 1] - pairs[:, 0]
    drift = np.interp(monotonic - origin, pairs[:, 0] - origin, offset - offset[0])
    unix: Nanoseconds = monotonic + offset[0] + np.rint(drift).astype(np.int64)
    return unix


def read_collectives(path: Path, rank: int) -> tuple[pl.DataFrame, list[Note]]:
    """Read a rank's flight recorder into an ENTRIES table, in the order of creation.

    Raises:
        RecordingError: the file cannot be used at all.
    """
    columns, notes = _read_columns(path, rank, COLLECTIVES_SCHEMA, _CollectivesBlock)
    entries = pl.DataFrame({"rank": [rank] * len(columns["record"]), **columns}, schema=ENTRIES).sort("record")
    lost = int(entries["record"][-1]) + 1 - len(entries) if len(entries) else 0
    if lost > 0:
        text = f"{lost} collectives are missing in it: the ring lost them before they were written, or a line is lost"
        notes.append(Note(rank, path, None, text))
    return entries.with_columns(pl.col("dtype").replace("", None)), notes


def read_probes(path: Path, rank: int) -> tuple[pl.DataFrame, list[Note]]:
    """Read a rank's probes of the clocks into a PROBES table.

    Raises:
        RecordingError: the file cannot be used at all.
    """
    columns, notes = _read_columns(path, rank, CLOCK_SCHEMA, _ClockBlock)
    return pl.DataFrame({"rank": [rank] * len(columns["peer"]), **columns}, schema=PROBES), notes


def _read_columns(
    path: Path, rank: int, schema: str, block: type[msgspec.Struct]
) -> tuple[dict[str, list[Any]], list[Note]]:
    """The columns of a stream whose blocks hold columns, in the order of the file, but for blocks of uneven ones."""
    blocks, notes = read_stream(path, schema=schema, rank=rank, block=block)
    columns: dict[str, list[Any]] = {name: [] for name in block.__struct_fields__}
    for number, values in blocks:
        of_block = msgspec.structs.asdict(values)
        if len({len(column) for column in of_block.values()}) > 1:
            notes.append(Note(rank, path, f"line {number}", "its columns differ in length; it was left out"))
            continue
        for name, column in of_block.items():
            columns[name] += column
    return columns, notes
