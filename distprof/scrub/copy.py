"""Copying a run directory, or traces, without what is private in them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from distprof.run.directory import RunDirectory
from distprof.run.files import open_regular
from distprof.run.manifest import RunDirectoryError, read_manifest
from distprof.scrub.files import NamedEvent, lines_of, read_document, scrub_document, scrub_stream, scrub_trace
from distprof.scrub.known import Known, pieces
from distprof.scrub.names import Kind, Names, TooManyValuesError
from distprof.scrub.plan import Recording, Role, of_run, of_traces
from distprof.scrub.rewrite import Rewriter
from distprof.trace.chunks import EventChunks, NoTraceError
from distprof.trace.inflate import Text, TooLargeError

# What torch itself annotates; the analyses know these names.
_OF_TORCH = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|\w+\.forward$|nccl:|gloo:|PyTorch Profiler")


@dataclass(slots=True)
class Scrubbed:
    """What was done.

    Attributes:
        kinds: what was replaced, by kind.
        files: how many were written, or would be.
        left_out: (file, why) of those that were not.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    files: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)


def scrub(
    paths: Sequence[Path],
    output: Path | None,
    zones: Sequence[re.Pattern[str]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Scrubbed:
    """Write a copy of a run directory, or of traces, in which what is private is replaced.

    The same value is replaced by the same name everywhere. Numbers, times and the order of everything stay. Reports,
    timelines and digests are left out: they can be made from the copy. Links are not followed.

    Args:
        paths: one run directory; or traces: files, folders and globs.
        output: a folder that does not exist or is empty; it appears when everything in it is whole. None: nothing is
            written.
        zones: names of zones that one of these matches anywhere are private, too.
        progress: is called with the numbers of bytes read and to be read.

    Raises:
        RunDirectoryError: there is nothing to copy, or `output` is in use; the message says what to do.
        OSError: the copy cannot be written; it names `output`.
    """
    if output is not None:
        _check_output(output, paths)
    if len(paths) == 1 and RunDirectory(paths[0]).manifest.is_file():
        read_manifest(RunDirectory(paths[0]))
        recordings, left_out = of_run(paths[0])
    else:
        recordings, left_out = of_traces(paths)
    done = Scrubbed(left_out=left_out)
    known, names = Known(), Names()
    sizes = {recording.source: _size(recording.source) for recording in recordings}
    total = 2 * sum(sizes.values())
    read = 0

    def advance(recording: Recording) -> None:
        nonlocal read
        read += sizes[recording.source]
        if progress is not None:
            progress(read, total)

    for recording in recordings:
        _learn(recording, known, zones)
        advance(recording)
    for taken in sorted(known.replacements):
        names.take(taken)
    rewriter = Rewriter(known, names)
    with _folder(output) as folder:
        try:
            for recording in recordings:
                _copy(recording, folder, rewriter, names, done)
                advance(recording)
        except TooManyValuesError as error:
            raise RunDirectoryError(f"{names.place} cannot be scrubbed: {error}") from error
        if not done.files:
            reasons = "; ".join(f"{file}: {why}" for file, why in left_out[:5])
            raise RunDirectoryError(f"nothing can be copied ({reasons})")
    done.kinds = names.kinds
    return done


def _copy(recording: Recording, folder: Path | None, rewriter: Rewriter, names: Names, done: Scrubbed) -> None:
    names.place = recording.shown
    name = recording.name(rewriter.text)
    target = None if folder is None else _free(folder / name)
    try:
        if recording.role is Role.DOCUMENT:
            scrub_document(recording.source, target, rewriter)
        elif recording.role is Role.STREAM:
            scrub_stream(recording.source, target, rewriter)
        else:
            scrub_trace(recording.source, target, rewriter)
    except NoTraceError as error:
        done.left_out.append((recording.shown, f"{error}"))
    except OSError as error:
        if folder is not None and str(error.filename or "").startswith(str(folder)):
            raise
        done.left_out.append((recording.shown, f"it cannot be read ({error.strerror})"))
    else:
        done.files += 1


def _learn(recording: Recording, known: Known, zones: Sequence[re.Pattern[str]]) -> None:
    """Learn what a recording tells of hosts, users, arguments and zones. What cannot be read is told by `_copy`."""
    if recording.host is not None:
        known.add("host", recording.host)
    try:
        if recording.role is Role.DOCUMENT:
            data = read_document(recording.source)
            if data is not None:
                known.learn_json(json.loads(data))
                known.learn_bytes(data)
            return
        for piece in pieces(Text(recording.source).blocks()):
            known.learn_bytes(piece)
        if zones:
            found = _zones(recording.source) if recording.role is Role.STREAM else _annotations(recording.source)
            for name in found:
                if any(pattern.search(name) for pattern in zones):
                    known.add("zone", name)
    except (OSError, NoTraceError, TooLargeError):
        return


def _zones(source: Path) -> Iterator[str]:
    """Names of the zones in a stream."""
    with open_regular(source) as file:
        for line, _ in lines_of(file):
            if line is None or b'"names"' not in line:
                continue
            names = msgspec.json.decode(line).get("names")
            for pair in names.values() if isinstance(names, dict) else ():
                if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str):
                    yield pair[1]


def _annotations(source: Path) -> Iterator[str]:
    """Names of the annotations in a trace, but for torch's own."""
    for chunk in EventChunks(source, NamedEvent, raw=True):
        for event in chunk.events:
            if event.cat in ("user_annotation", "gpu_user_annotation") and not _OF_TORCH.match(event.name):
                yield event.name


def _check_output(output: Path, paths: Sequence[Path]) -> None:
    """Raises RunDirectoryError where the copy would take the place of something."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise RunDirectoryError(f"{output} exists and is no folder: give another name")
    if output.is_dir() and any(output.iterdir()):
        raise RunDirectoryError(f"{output} is not empty: give the name of a folder that does not exist yet")
    for path in paths:
        if path.is_dir() and output.resolve().is_relative_to(path.resolve()):
            raise RunDirectoryError(f"{output} lies in {path}: give a name outside of what is copied")


@contextmanager
def _folder(output: Path | None) -> Iterator[Path | None]:
    """A folder that becomes `output` if the block ends well, and vanishes if it does not."""
    if output is None:
        yield None
        return
    made = output.absolute().with_name(f".{output.name}.{os.getpid()}.{os.urandom(3).hex()}.tmp")
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        made.mkdir()
        yield made
        made.rename(output)  # succeeds on no folder, and on an empty one
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output)) from error  # not a name that is gone by now
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _free(path: Path) -> Path:
    """A path that is not in use: two sources may get one name."""
    name, dot, ending = path.name.partition(".")
    tried = path
    number = 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{name}-{number}{dot}{ending}")
    return tried


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
