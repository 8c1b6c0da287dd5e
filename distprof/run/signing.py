"""Signatures by which this user's distprof knows what it wrote itself, wherever that lay in the meantime."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from distprof.run.files import open_regular, write_atomic

_BYTES = 32


def signature(data: bytes, key: bytes) -> bytes:
    """What only who has `key` can make of `data`."""
    return hmac.new(key, data, hashlib.sha256).hexdigest().encode()


def is_signed(data: bytes, by: bytes, key: bytes) -> bool:
    """Whether `by` is the signature of `data`."""
    return hmac.compare_digest(signature(data, key), by)


def read_signed(path: Path, key: bytes) -> bytes | None:
    """What `write_signed` wrote with this key; None where the file, or its folder, is not this user's own."""
    try:
        if not is_own_folder(path.parent):
            return None
        with open_regular(path) as file:
            signed, _, text = file.read().partition(b"\n")
    except OSError:
        return None
    return text if is_signed(text, signed, key) else None


def write_signed(path: Path, text: bytes, key: bytes) -> None:
    """Write a file with a signature in its first line, and make its folder if there is none.

    Raises:
        OSError: it cannot be written, or the folder's place is taken by something else.
    """
    path.parent.mkdir(exist_ok=True)
    if not is_own_folder(path.parent):
        raise NotADirectoryError(f"{path.parent} is not this user's own folder")
    write_atomic(path, signature(text, key) + b"\n" + text)


def is_own_folder(folder: Path) -> bool:
    """Whether it is a folder, and not a link to one, that this user made.

    Raises:
        OSError: there is none.
    """
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def users_key() -> bytes | None:
    """This user's own key, made when it is first needed; None where it cannot be kept, or is not this user's alone."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distprof"
        path = folder / "key"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(path)
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            key = file.read(_BYTES + 1)
    except (OSError, RuntimeError):  # RuntimeError: no home
        return None
    private = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return key if private and len(key) == _BYTES else None


def _make(path: Path) -> None:
    """Write a new key; of two processes that do so at once the first one's stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_BYTES))
    finally:
        os.close(descriptor)
    with suppress(FileExistsError):
        os.link(temporary, path)  # unlike a renaming it never replaces
    temporary.unlink()
