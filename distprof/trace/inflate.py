"""The text of a file, plain or gzipped, block after block, and never more of it than is sensible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from distprof.run.files import open_regular
from distprof.trace.workers import Advance, no_advance

# What is decompressed at a time, and what is read for it: what a processor's cache holds is decoded faster.
BLOCK = 1 << 18
_READ = 1 << 18
# What is given beyond the end of one of a gzip file's members is copied: so of each further one little is given first.
_FIRST = 1 << 10
# Traces compress ten- to fortyfold. What is far beyond that, after a size that no accident explains, is a bomb.
_BOMB_BYTES = 256 << 20
_BOMB_RATIO = 200
_MOST_BYTES = 64 << 30
_MAGIC = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + isal_zlib.MAX_WBITS


class TooLargeError(Exception):
    """The file unpacks to more than can be meant."""


class Text:
    """A file's text. `damage` says, after reading, how the file is broken: None for a whole one."""

    def __init__(self, path: Path, advance: Advance = no_advance) -> None:
        self._path = path
        self._advance = advance
        self.damage: str | None = None

    def blocks(self) -> Iterator[bytes]:
        """The text from its beginning; whether it is gzipped is seen from its first bytes, not from its name.

        A damaged gzip file ends where the damage begins.

        Raises:
            OSError: it cannot be read, vanished, or is no regular file.
            TooLargeError: it is a gzip bomb.
        """
        with open_regular(self._path) as file:
            packed = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            size = read = 0
            for block in self._unpacked(file) if packed else iter(lambda: file.read(BLOCK), b""):
                size += len(block)
                if size > _MOST_BYTES or (packed and size > max(_BOMB_BYTES, _BOMB_RATIO * file.tell())):
                    raise TooLargeError(f"it unpacks to more than {size >> 20} MiB, which no trace does; not read")
                yield block
                self._advance(file.tell() - read)
                read = file.tell()

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        inflater = isal_zlib.decompressobj(_WITH_GZIP_HEADER)
        data, at, given = memoryview(file.read(_READ)), 0, _READ
        try:
            while data:
                piece = data[at : at + given]
                if inflater.eof:
                    rest = bytes(piece).lstrip(b"\0")  # tapes and tar pad with zeros
                    at += len(piece) - len(rest)
                    if rest:
                        inflater, given = isal_zlib.decompressobj(_WITH_GZIP_HEADER), _FIRST
                else:
                    block = inflater.decompress(piece, BLOCK)
                    left = len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
                    at += len(piece) - left
                    given = given if left else min(8 * given, _READ)
                    if block:
                        yield block
                if at == len(data):
                    data, at = memoryview(file.read(_READ)), 0
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub takes the class for an instance
            self.damage = f"the gzip file is damaged at byte {file.tell()} or before ({error})"
            return
        if not inflater.eof:
            self.damage = f"the gzip file ends early, at byte {file.tell()}"
