"""Our own recordings of one rank: its zones, its collectives and its facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.run.files import read_json
from distprof.trace.jsonlines import read_stream
from distprof.trace.notes import Note, RecordingError
from distprof.trace.tables import BATCHES, DEVICE_ZONES, ZONES, empty

FACTS_SCHEMA = "distprof.rank.v1"
ZONES_SCHEMA = "distprof.zones.v1"
COLLECTIVES_SCHEMA = "distprof.collectives.v1"

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
_WIDTHS = {"rows": 4, "batches": 3, "device": 3}
Nanoseconds = npt.NDArray[np.int64]


class GroupFacts(msgspec.Struct, frozen=True):
    """A process group that the rank is a member of."""

    name: str
    ranks: list[int]
    desc: str | None = None


class DdpFacts(msgspec.Struct, frozen=True):
    """A `DistributedDataParallel`; `bucket_bytes` in bucket order after the rebuild, None if it never came to one."""

    name: str
    bucket_bytes: list[int] | None = None


class WindowFacts(msgspec.Struct, frozen=True):
    """A Kineto window; start and end are None where it was never open or not closed."""

    index: int
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None


class Facts(msgspec.Struct, frozen=True):
    """What reading needs of a rank's facts; of a rank without any, nothing is known."""

    schema: str = FACTS_SCHEMA
    rank: int | None = None
    world_size: int | None = None
    training_thread: int | None = None
    groups: list[GroupFacts] = []
    ddp: list[DdpFacts] = []
    windows: list[WindowFacts] = []

    @classmethod
    def of(cls, values: dict[str, Any]) -> Facts:
        """Take from a facts file what is needed.

        Raises:
            msgspec.ValidationError: a fact has another type; the message names the place.
        """
        return msgspec.convert(values, cls)


class _ZonesBlock(msgspec.Struct):
    names: dict[int, tuple[str, str]] = {}
    anchors: list[tuple[int, int]] = []
    rows: list[int] = []
    batches: list[int] = []
    device: list[int] = []


class _CollectivesBlock(msgspec.Struct):
    record: list[int]
    group: list[str]
    seq: list[int]
    op: list[str]
    bytes: list[int | None]
    dtype: list[str | None]
    created: list[int]
    started: list[int | None]
    ended: list[int | None]
    p2p: list[bool]


def read_facts(path: Path, rank: int) -> tuple[dict[str, Any], list[Note]]:
    """Read a rank's facts; they are valid for `Facts.of`, and there are no notes on them.

    Raises:
        RecordingError: not readable, or not this rank's facts.
    """
    try:
        values: dict[str, Any] = read_json(path)
        facts = Facts.of(values)
    except OSError as error:
        raise RecordingError(rank, path, None, f"cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, msgspec.ValidationError) as error:
        text = f"these are no rank's facts ({error}); restore the file from the machine that recorded it"
        raise RecordingError(rank, path, None, text) from error
    if facts.schema != FACTS_SCHEMA:
        text = f"its schema is {facts.schema!r}, not {FACTS_SCHEMA!r}; use the distprof version that recorded it"
        raise RecordingError(rank, path, "$.schema", text)
    if facts.rank != rank:
        text = f"these are the facts of rank {facts.rank}; give the file the name of that rank again"
        raise RecordingError(rank, path, "$.rank", text)
    return values, []


@dataclass(frozen=True, slots=True)
class Timeline:
    """A zone stream as tables: ZONES, BATCHES (its `step` is null yet) and DEVICE_ZONES."""

    zones: pl.DataFrame = field(default_factory=lambda: empty(ZONES))
    batches: pl.DataFrame = field(default_factory=lambda: empty(BATCHES))
    device_zones: pl.DataFrame = field(default_factory=lambda: empty(DEVICE_ZONES))


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
    columns = {name: np.array(flat[name], dtype=np.int64).reshape(-1, width).T for name, width in _WIDTHS.items()}
    ids, thread, start, duration = columns["rows"]
    named, kinds = _named(ids, names)
    if not named.all():
        text = f"{np.count_nonzero(~named)} zones were left out, since the line with their names is lost"
        notes.append(Note(rank, path, None, text))
    thread, start, duration = thread[named], start[named], duration[named]
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
    )
    return timeline, notes


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
    blocks, notes = read_stream(path, schema=COLLECTIVES_SCHEMA, rank=rank, block=_CollectivesBlock)
    columns: dict[str, list[Any]] = {name: [] for name in ENTRIES if name != "rank"}
    for number, block in blocks:
        values = msgspec.structs.asdict(block)
        if len({len(column) for column in values.values()}) > 1:
            notes.append(Note(rank, path, f"line {number}", "its columns differ in length; it was left out"))
            continue
        for name, column in values.items():
            columns[name] += column
    entries = pl.DataFrame({"rank": [rank] * len(columns["record"]), **columns}, schema=ENTRIES).sort("record")
    lost = int(entries["record"][-1]) + 1 - len(entries) if len(entries) else 0
    if lost:
        text = f"{lost} collectives are missing in it: the ring lost them before they were written, or a line is lost"
        notes.append(Note(rank, path, None, text))
    return entries.with_columns(pl.col("dtype").replace("", None)), notes
