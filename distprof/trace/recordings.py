"""Our own recordings of one rank: its zones, its collectives and its facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.run.files import read_json
from distprof.trace.jsonlines import read_stream
from distprof.trace.notes import Note, RecordingError
from distprof.trace.tables import ZONES, empty

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

_ROW = 4  # integers per zone: id, thread, start, duration
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


def read_zones(path: Path, rank: int) -> tuple[pl.DataFrame, list[Note]]:
    """Read a rank's zones into a ZONES table, on its host's Unix clock; a zone comes before those inside it.

    Raises:
        RecordingError: the file cannot be used at all.
    """
    blocks, notes = read_stream(path, schema=ZONES_SCHEMA, rank=rank, block=_ZonesBlock)
    names: dict[int, tuple[str, str]] = {}
    rows: list[int] = []
    anchors: list[tuple[int, int]] = []
    for number, block in blocks:
        if len(block.rows) % _ROW:
            notes.append(Note(rank, path, f"line {number}", "its rows are incomplete and were left out"))
        else:
            rows += block.rows
        anchors += block.anchors
        names.update(block.names)
    if rows and not anchors:
        text = "it has no pair of clock readings, so its zones have no place in time and were left out"
        return empty(ZONES), [*notes, Note(rank, path, None, text)]
    ids, thread, start, duration = np.array(rows, dtype=np.int64).reshape(-1, _ROW).T
    known = sorted(names)
    which = np.searchsorted(known, ids)
    named = (which < len(known)) & (np.append(known, -1)[which] == ids)
    if not named.all():
        text = f"{np.count_nonzero(~named)} zones were left out, since the line with their names is lost"
        notes.append(Note(rank, path, None, text))
    which, thread, start, duration = which[named], thread[named], start[named], duration[named]
    unix_start = to_unix(start, anchors)
    zones = pl.DataFrame(
        {
            "rank": np.full(len(start), rank),
            "kind": pl.Series([names[key][0] for key in known], dtype=pl.String).gather(which),
            "name": pl.Series([names[key][1] for key in known], dtype=pl.String).gather(which),
            "thread": thread,
            "start": unix_start,
            "end": np.maximum(unix_start, to_unix(start + duration, anchors)),
        },
        schema=ZONES,
    )
    return zones.sort("start", "end", descending=[False, True], maintain_order=True), notes


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
