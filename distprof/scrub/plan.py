"""Which files are copied, as what, and under which names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError
from distprof.trace.sources import find_files
from distprof.trace.whose import rank_by_name

_RANK = re.compile(r"^(rank\d{5,})(?:-(.+)-(\d+))?(\.json|\.zones\.jsonl|\.collectives\.jsonl|\.clock\.jsonl)$")
_WINDOW = re.compile(r"^(rank\d{5,})(?:-(.+)-(\d+))?(\.window\d+\.pt\.trace\.json(?:\.gz)?)$")
# As torch's tensorboard_trace_handler names its files: HOST_PROCESS.TIME.pt.trace.json. In a copy the rank is first.
_HANDLERS = re.compile(r"^(?:rank\d+-(?=host-\d+_))?(.+)_(\d+\.\d{10,19}\.pt\.trace\.json(?:\.gz)?)$")
_NO_HOSTS = ("localhost", "localhost.localdomain", "removed", "unknown")
_MADE = ("report.json", "report.html", "timeline.json.gz", "digest")
_MADE_AGAIN = "`distprof report` and `distprof merge` make it anew from the copy"


class Role(Enum):
    """How a file is scrubbed."""

    DOCUMENT = "document"
    STREAM = "stream"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Recording:
    """A file to be copied.

    Attributes:
        shown: its name to people, within what is copied.
        folder: of the copy.
        parts: of the copy's name; the second is a host's name, or None.
    """

    source: Path
    role: Role
    shown: str
    folder: str
    parts: tuple[str, str | None, str]

    @property
    def host(self) -> str | None:
        """The host that its name tells."""
        return self.parts[1]

    def name(self, scrubbed: Callable[[str], str]) -> Path:
        """Its name in the copy, where `scrubbed` replaces what is private in a text."""
        before, host, after = self.parts
        return Path(self.folder) / f"{before}{'' if host is None else _plain(scrubbed(host), host)}{after}"


def _plain(text: str, host: str) -> str:
    """A host's name for a file; `host` where a name that is too short to be known, or no name, would be left."""
    generic = host.lower() in _NO_HOSTS
    return text if generic or text != host or re.fullmatch(r"host-\d+", host) else "host"


def of_run(path: Path) -> tuple[list[Recording], list[tuple[str, str]]]:
    """The recordings of a run directory, in a steady order; and (file, why) of what is left out.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    directory = RunDirectory(path)
    found: list[Recording] = []
    left_out: list[tuple[str, str]] = []
    try:
        for entry, shown in _entries(path, "", left_out):
            if entry == directory.manifest:
                found.append(Recording(entry, Role.DOCUMENT, shown, "", (entry.name, None, "")))
            elif entry == directory.nodes and entry.is_dir():
                nodes = _in_folder(entry, left_out, _node)
                found += [replace(node, parts=(f"node-{number}", None, ".json")) for number, node in enumerate(nodes)]
            elif re.fullmatch(r"attempt\d+", entry.name) and entry.is_dir():
                found += _in_folder(entry, left_out, _of_attempt)
            else:
                left_out.append((shown, _MADE_AGAIN if entry.name in _MADE else "it is no recording"))
    except OSError as error:
        raise RunDirectoryError(f"{error.filename} cannot be read ({error.strerror})") from error
    return found, left_out


def _entries(folder: Path, before: str, left_out: list[tuple[str, str]]) -> Iterator[tuple[Path, str]]:
    """What lies in a folder, but for links."""
    for entry in sorted(folder.iterdir()):
        shown = f"{before}{entry.name}"
        if entry.is_symlink():
            left_out.append((shown, "it is a link, and links are not followed"))
        else:
            yield entry, shown


def _in_folder(
    folder: Path, left_out: list[tuple[str, str]], read: Callable[[Path, str], Recording | None]
) -> Iterator[Recording]:
    for entry, shown in _entries(folder, f"{folder.name}/", left_out):
        recording = read(entry, shown)
        if recording is None:
            left_out.append((shown, "it is no recording"))
        else:
            yield recording


def _node(path: Path, shown: str) -> Recording | None:
    if path.name.startswith(".") or path.suffix != ".json":
        return None
    return Recording(path, Role.DOCUMENT, shown, path.parent.name, ("", None, path.name))


def _of_attempt(path: Path, shown: str) -> Recording | None:
    if path.name == "rendezvous.json":
        return Recording(path, Role.DOCUMENT, shown, path.parent.name, (path.name, None, ""))
    window = _WINDOW.match(path.name)
    match = window or _RANK.match(path.name)
    if match is None:
        return None
    rank, host, process, ending = match.groups()
    role = Role.TRACE if window else Role.DOCUMENT if ending == ".json" else Role.STREAM
    parts = (rank, None, ending) if host is None else (f"{rank}-", host, f"-{process}{ending}")
    return Recording(path, role, shown, path.parent.name, parts)


def of_traces(paths: Sequence[Path]) -> tuple[list[Recording], list[tuple[str, str]]]:
    """Traces that anybody recorded, as `of_run`. Of a name only what a report reads in it is kept.

    Raises:
        RunDirectoryError: there are none.
    """
    for path in paths:
        runs = sorted([*path.glob("runs/*/run.json"), *path.glob("*/runs/*/run.json")])
        if runs:
            text = f"{path} is the folder of an experiment: give one of the run directories in it, as {runs[0].parent}"
            raise RunDirectoryError(text)
    files, notes = find_files(paths)
    left_out = [(note.file.name, note.text) for note in notes]
    given = {path.absolute() for path in paths}
    found: list[Recording] = []
    for number, path in enumerate(files, start=1):
        if path.is_symlink() and path.absolute() not in given:
            left_out.append((path.name, "it is a link, and links are not followed"))
            continue
        handlers = _HANDLERS.match(path.name)
        rank, by_name, folder = rank_by_name(path), rank_by_name(Path("/") / path.name), ""
        parts: tuple[str, str | None, str]
        if handlers:
            parts = ("" if by_name is None else f"rank{by_name}-", handlers[1], f"_{handlers[2]}")
            folder = "" if rank == by_name else f"rank{rank}"
        else:
            ending = ".json.gz" if path.name.lower().endswith(".gz") else ".json"
            parts = (f"trace-{number}" if rank is None else f"rank{rank}.trace-{number}", None, f".pt.trace{ending}")
        found.append(Recording(path, Role.TRACE, path.name, folder, parts))
    if not found:
        these = " and ".join(map(str, paths[:3]))
        raise RunDirectoryError(f"{these} has no run.json and no traces: give a run directory, or traces")
    return found, left_out
