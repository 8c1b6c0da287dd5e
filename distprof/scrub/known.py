"""Private values that the recordings tell themselves: they are replaced wherever they occur."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distprof.scrub.fields import is_kept_whole, kind_of_key
from distprof.scrub.names import KINDS, REPLACEMENT
from distprof.trace.tables import ZONE_KINDS

_SHORTEST = {"host": 3, "user": 3, "zone": 3}
_SHORT = 4
_MOST_KNOWN = 100_000
_WORD = re.compile(r"[^\W_]+")
# Words that the analyses, torch or the backends know something by. They are no names of anybody.
_WORDS_OF_ANALYSES = """
    own step zone wait gc forward backward optimizer evaluation checkpoint data_loading host_to_device host device
    cpu cuda gpu xpu kernel kernels data loader dataloader enumerate distributed parallel distributeddataparallel
    fullyshardeddataparallel profilerstep profiler pytorch torch python python3 nccl rccl gloo msccl mpi ucc oneccl
    hccl hcom c10d c10 aten at autograd engine evaluate_function function node default_pg undefined all reduce gather
    scatter
    broadcast barrier send recv allreduce allgather reduce_scatter all_reduce all_gather all_to_all alltoall sendrecv
    memcpy memset memory htod dtoh dtod dtoh pageable pinned stream event synchronize copy copy_ item buffers generation
    launch launchkernel record_param_comms dynamo_timed true false none null auto finished running float double half
    bfloat16 long int bool scalar void compute train eval distprof torchrun user_annotation gpu_user_annotation cpu_op
    cuda_runtime cuda_driver python_function gpu_memcpy gpu_memset trace spans default standard nproc-per-node
    standalone seconds steps warmup active repeat world_size local rank ranks
"""
_WORDS = frozenset(_WORDS_OF_ANALYSES.split()) | KINDS.keys() | ZONE_KINDS
# As they stand in JSON, where a backslash is two of them.
_HOME = re.compile(rb"(?:home|[Uu]sers)(?:\\?/|\\\\)+([^/\\\"\s:;,)]{1,64})(?=[/\\\"\s:;,)])")
_ESCAPED = re.compile(rb"\\(?:[^u]|u([0-9a-fA-F]{4}))", re.DOTALL)
_HOST = re.compile(rb'"(?:host_?name|host|node|nodename)"\s*:\s*"([^"\\]{1,255})"', re.IGNORECASE)
_USER = re.compile(rb'"(?:\w*user|username|login|logname)"\s*:\s*"([^"\\]{1,64})"', re.IGNORECASE)
_REPLACEMENT = re.compile(REPLACEMENT.pattern.encode())
OVERLAP = 512  # bytes that the expressions need around a place


class Known:
    """Values and their kinds."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self.replacements: set[str] = set()
        for kind, ask in (("user", getpass.getuser), ("host", socket.gethostname), ("path", lambda: str(Path.home()))):
            with suppress(OSError, RuntimeError, KeyError):
                self.add(kind, ask())

    def add(self, kind: str, value: str) -> None:
        """Add a value, if it is one that can be told from other words."""
        value = value.strip()
        if len(value) < _SHORTEST.get(kind, _SHORT) or len(value) > OVERLAP or value.lower() in _WORDS:
            return
        if is_kept_whole(kind, value) or (value.isdigit() and len(value) < 8) or not any(map(str.isalnum, value)):
            return
        if REPLACEMENT.fullmatch(value) is None and len(self._kinds) < _MOST_KNOWN and value != "/root":
            self._kinds.setdefault(value, kind)
            if kind == "host" and "." in value and not value[0].isdigit():
                self.add("host", value.partition(".")[0])

    def is_zone(self, text: str) -> bool:
        """Whether a whole text is a zone's name that is to be replaced."""
        return self._kinds.get(text) == "zone"

    def learn_json(self, value: Any, key: str = "") -> None:
        """Learn from a document of ours: what stands under keys that hold private values."""
        if isinstance(value, dict):
            for name, inner in value.items():
                # Names of variables tell nothing; their values do.
                self.learn_json(inner, key if key in ("environment", "scheduler") or name.isdigit() else name)
        elif isinstance(value, list):
            for inner in value:
                self.learn_json(inner, key)
        elif isinstance(value, str):
            kind = "environment" if key == "scheduler" else kind_of_key(key)
            if kind == "argument":
                self._learn_argument(value)
            elif kind in ("host", "user", "path", "environment", "id", "secret"):
                self.add(kind, value)

    def _learn_argument(self, word: str) -> None:
        option, equals, value = word.partition("=")
        self.add("argument", value if equals else word.lstrip("-") if word.startswith("--") else word)
        if equals:
            self.add("argument", option.lstrip("-"))

    def learn_bytes(self, text: bytes) -> None:
        """Learn from a piece of a trace: hosts, users and homes that it names, and names of ours that it holds."""
        if b"\\u" in text:
            text = _ESCAPED.sub(_plain, text)
        homes = (("user", _HOME),) if b"home" in text or b"sers" in text else ()
        for kind, expression in (*homes, ("host", _HOST), ("user", _USER)):
            for match in expression.finditer(text):
                self.add(kind, match[1].decode("utf-8", "replace"))
        self.replacements.update(match[0].decode() for match in _REPLACEMENT.finditer(text))

    def replacer(self) -> Callable[[str, Callable[[str, str], str]], str]:
        """A function that replaces all known values in a text, each by what its second argument names it.

        Hosts and users are found in any case, and all only where no letter or digit goes on. Of two that begin at one
        place the longer one is taken.
        """
        index: dict[str, list[_Value]] = {}
        for text, kind in sorted(self._kinds.items(), key=lambda item: -len(item[0])):
            first = _WORD.search(text)
            if first is not None:
                value = _Value(text, kind, first.start(), kind in ("host", "user"))
                index.setdefault(first[0].lower(), []).append(value)
        return partial(_replace, index)


def _plain(match: re.Match[bytes]) -> bytes:
    """An escape as the letter that it stands for, if that needs none."""
    letter = chr(int(match[1], 16)) if match[1] else ""
    if letter == "\\":
        return rb"\\"
    return letter.encode() if letter >= " " and letter != '"' and not "\ud800" <= letter < "\ue000" else match[0]


class _Value(NamedTuple):
    """A known value; `offset` is the place of its first word in it, `any_case`: upper and lower case are one."""

    text: str
    kind: str
    offset: int
    any_case: bool

    def begins(self, text: str, word: int) -> int | None:
        """Where it stands in a text that has its first word at `word`; None where it does not."""
        begin = word - self.offset
        end = begin + len(self.text)
        if begin < 0 or text[begin - 1 : begin].isalnum() or text[end : end + 1].isalnum():
            return None
        piece = text[begin:end]
        same = piece == self.text or (self.any_case and piece.lower() == self.text.lower())
        return begin if same else None


def _replace(index: dict[str, list[_Value]], text: str, name: Callable[[str, str], str]) -> str:
    parts: list[str] = []
    done = 0
    for word in _WORD.finditer(text):
        for value in index.get(word[0].lower(), ()):
            begin = value.begins(text, word.start())
            if begin is not None and begin >= done:
                parts += [text[done:begin], name(value.kind, value.text)]
                done = begin + len(value.text)
                break
    return "".join([*parts, text[done:]]) if parts else text


def pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of a text, each with the end of the one before, so that nothing is missed at their edges."""
    before = b""
    for block in blocks:
        yield before + block
        before = block[-OVERLAP:]
