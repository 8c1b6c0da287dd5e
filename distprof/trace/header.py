"""What a trace says of itself beside its events: whose it is, of which job, and what its times count from."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distprof.run.manifest import MOST_RANKS
from distprof.trace.repair import repaired

_LONGEST_LITERAL = 1 << 20
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d{1,19})')
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}\[\]]{0,1000})')
_FIELD = re.compile(rb'"(rank|world_size)"\s*:\s*(\d{1,9})')


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """A process group that the trace's rank is a member of."""

    name: str
    members: list[int]
    desc: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What could be told; None where the trace does not say.

    Attributes:
        rank, world_size, backend, groups: of `distributedInfo`.
        base: Unix time in ns that its times count from; None: the trace names none, as before 2024.
        host: of the machine it was recorded on.
        problems: (place, text): what it says and cannot be.
    """

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: list[GroupHeader] = field(default_factory=list)
    base: int | None = None
    host: str | None = None
    problems: list[tuple[str | None, str]] = field(default_factory=list)


class _Fields(msgspec.Struct, rename={"info": "distributedInfo", "base": "baseTimeNanoseconds"}):
    info: Any = None
    base: Any = None
    host_name: Any = None
    hostname: Any = None


def read_header(text: bytes) -> tuple[Header, bool]:
    """Read a trace without its events.

    Returns:
        What it says, and whether it is whole: of a broken one, rank, world size and base are searched for.
    """
    for attempt in (text, repaired(text)):
        try:
            fields = msgspec.json.decode(attempt or b"", type=_Fields)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
        return _header(fields), attempt is text
    info, base = _INFO.search(text), _BASE.search(text)
    found = {name.decode(): int(value) for name, value in _FIELD.findall(info[1])} if info else {}
    return _header(_Fields(info=found, base=base and int(base[1]))), False


def _header(fields: _Fields) -> Header:
    info = _mapping(fields.info)
    rank, size = _natural(info.get("rank")), _natural(info.get("world_size"))
    problems: list[tuple[str | None, str]] = [
        (f"$.distributedInfo.{name}", f"{name} {number} cannot be and was ignored: there are no more than {MOST_RANKS}")
        for name, number, most in (("rank", rank, MOST_RANKS - 1), ("world_size", size, MOST_RANKS))
        if number is not None and number > most
    ]
    rank = rank if rank is not None and rank < MOST_RANKS else None
    size = size if size is not None and size <= MOST_RANKS else None
    return Header(
        rank=None if rank is not None and size is not None and rank >= size else rank,
        world_size=size,
        backend=info["backend"] if isinstance(info.get("backend"), str) else None,
        groups=_groups(info.get("pg_config")),
        base=_natural(fields.base),
        host=next((host for host in (fields.host_name, fields.hostname) if isinstance(host, str) and host), None),
        problems=problems,
    )


def _mapping(info: Any) -> dict[str, Any]:
    """`distributedInfo`: an object, or one written as text, be it JSON or Python."""
    if isinstance(info, str) and len(info) <= _LONGEST_LITERAL:
        try:
            info = ast.literal_eval(info)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return {}
    return info if isinstance(info, dict) else {}


def _groups(config: Any) -> list[GroupHeader]:
    found = []
    for row in config if isinstance(config, list) else []:
        if isinstance(row, dict) and isinstance(row.get("ranks"), list):
            name = row.get("pg_name", row.get("uid"))
            members = [rank for rank in map(_natural, row["ranks"]) if rank is not None and rank < MOST_RANKS]
            desc = row.get("pg_desc")
            if name is not None and members:
                found.append(GroupHeader(str(name), members, desc if isinstance(desc, str) else None))
    return found


def _natural(value: Any) -> int | None:
    """A number from 0 that fits into 63 bits, also where it was written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None
