"""Writing files so that nobody ever sees half of one, and nothing earlier is overwritten."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

# Facts and manifests are some kB long.
_MOST_JSON = 16 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # file systems without hard links


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends: readers see the old file or the new one, whole.

    Raises:
        OSError: the disk is full or the folder cannot be written; it names `path`. The temporary file is
            removed, as after any other exception out of the block.
    """
    temporary = _beside(path)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            inode = os.fstat(file.fileno()).st_ino
        _replace(temporary, path, inode)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)  # the name that the user knows
        raise


def _beside(path: Path) -> Path:
    """A name for what is to become `path`: processes of several hosts share a folder, and their numbers recur."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{os.urandom(3).hex()}.tmp")


def _replace(temporary: Path, path: Path, inode: int) -> None:
    """Rename. On NFS the answer may be lost, and asked again the server knows no such file: then it was renamed."""
    try:
        os.replace(temporary, path)
    except FileNotFoundError:
        if not (path.exists() and path.stat().st_ino == inode):
            raise


def create_json(path: Path, value: Any) -> bool:
    """Write `value` as JSON to a file that is not there yet; of several who do so at once, on any host, one does.

    Returns:
        Whether it was this call that made the file. Whoever reads it finds it whole.

    Raises:
        OSError: the folder cannot be written.
    """
    temporary = _beside(path)
    try:
        with open(temporary, "xb") as file:
            file.write(_encode(value, indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return os.stat(temporary).st_nlink == 2  # on NFS the first answer may have been lost
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                os.close(os.open(path.with_name(f".{path.name}.taken"), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            os.replace(temporary, path)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, atomically.

    Raises:
        OSError: as `open_atomic`.
    """
    with open_atomic(path) as file:
        file.write(data)


def write_where_told(path: Path, data: bytes) -> None:
    """Write what the user wants at `path`: a file is replaced as by `write_atomic`, into a pipe or a device is written.

    Never in a run directory, which may be a stranger's: there a device could stand behind a name of ours.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    if path.is_file() or not path.exists():
        write_atomic(path, data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        error.filename = str(path)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically."""
    write_atomic(path, _encode(value, indent=1) + b"\n")


def _encode(value: Any, indent: int | None = None) -> bytes:
    """JSON as valid UTF-8, whatever bytes a command line or an exception's text brought along."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, indent=indent, separators=separators, default=str, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def check_inside(path: Path, folder: Path) -> None:
    """Check that no link leads from `path` out of the run directory `folder`.

    Raises:
        OSError: one does.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(errno.EPERM, "it is a link out of the run directory", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading that somebody else wrote: only a regular one, since a pipe or a device never ends.

    Raises:
        OSError: it cannot be read, or is none; `strerror` says which.
    """
    # Without O_NONBLOCK opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: not JSON, or longer than any of ours; the message names the file and the place.
        OSError: as `open_regular`.
    """
    with open_regular(path) as file:
        data = file.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise ValueError(f"{path} is longer than {_MOST_JSON >> 20} MiB")
    try:
        value = json.loads(data)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # halves of surrogate pairs cannot be written again
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep") from error
    except ValueError as error:  # broken, no Unicode, or a number of thousands of digits
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    return value


class Stream:
    """An append-only file of JSON lines, created exclusively: two writers of one file are an error.

    A block is one line and one `write`, so a killed process leaves whole lines and at most one cut one.

    Raises:
        FileExistsError: the file is there already; it belongs to somebody else.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._file = self._identity()
        self.append(header)

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def append(self, block: dict[str, Any]) -> None:
        """Append one block.

        Raises:
            OSError: the disk is full, the file system went away, or the process closed our descriptor.
        """
        if self._identity() != self._file:  # closed by a sweep over all descriptors, and now another file's
            raise OSError(errno.EBADF, "its descriptor was closed by the process")
        data = _encode(block) + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Close the file; appending afterwards is an error."""
        os.close(self._descriptor)
