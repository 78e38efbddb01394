"""Single files out of an archive that lies elsewhere: its directory and the members asked for, and nothing else of it.

What is in an archive came from a crawler, and its storage may be anybody's. So only our own two ways of packing are
read, in pieces, and a directory that is larger than ours may be is not read at all.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.ports.protocols import FileArchive

#: Bytes of a directory that are read: of some twenty thousand files.
DIRECTORY_MAX = 2 * 1024 * 1024
#: Bytes that are fetched at once, and given at once.
BLOCK, PIECE = 256 * 1024, 64 * 1024
_MANIFEST = "manifest.json"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class ArchivedFiles:
    """The members of stored archives. Methods block; all raise ``NotDelivered`` for what cannot be read."""

    def __init__(self, archive: FileArchive) -> None:
        self._archive = archive

    def list(self, url: str, size: int, most: int) -> tuple[list[tuple[str, int]], int]:
        """At most ``most`` names with sizes, and how many more there are. ``size`` is that of the archive."""
        with self._opened(url, size) as archive:
            found = [(one.filename, one.file_size) for one in _members(archive)]
        return found[:most], len(found[most:])

    def open(self, url: str, size: int, name: str) -> tuple[int, Iterator[bytes]] | None:
        """The size of a member and its bytes, in pieces; ``None`` when there is none of this name."""
        with self._opened(url, size) as archive:
            found = next((one for one in _members(archive) if one.filename == name), None)
        return None if found is None else (found.file_size, self._pieces(url, size, found))

    def _pieces(self, url: str, size: int, member: zipfile.ZipInfo) -> Iterator[bytes]:
        with self._opened(url, size) as archive, archive.open(member) as file:
            while piece := file.read(PIECE):
                yield piece

    @contextmanager
    def _opened(self, url: str, size: int) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(cast(IO[bytes], _Far(self._archive, url, size))) as archive:
                yield archive
        except _BROKEN as error:
            raise NotDelivered(f"{url}: the archive cannot be read: {error}; download it as a whole") from error


def _members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    for one in archive.infolist():
        if one.filename != _MANIFEST and not one.is_dir() and one.compress_type in _PACKED and not one.flag_bits & 1:
            yield one


class _Far:
    """A stored archive as a file that ``zipfile`` can read; one block of it is kept."""

    def __init__(self, archive: FileArchive, url: str, size: int) -> None:
        self._archive, self._url, self._size = archive, url, size
        self._place = self._begin = 0
        self._block = b""

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if self._place < 0:
            raise ValueError("it points to before its beginning")
        return self._place

    def read(self, most: int = -1) -> bytes:
        """Read on. ``zipfile`` asks for a directory as a whole, and for nothing else that is as large."""
        left = max(0, self._size - self._place)
        most = left if most < 0 else min(most, left)
        if most > DIRECTORY_MAX:
            raise ValueError(f"its directory has more than {DIRECTORY_MAX:,} bytes")
        found = b""
        while len(found) < most:
            at = self._place - self._begin
            if not 0 <= at < len(self._block):
                self._fetch(max(BLOCK, most - len(found)))
                continue
            piece = self._block[at : at + most - len(found)]
            self._place += len(piece)
            found += piece
        return found

    def _fetch(self, most: int) -> None:
        part = self._archive.part(self._url, self._place, min(most, self._size - self._place))
        if part.size != self._size or not part.data:
            raise ValueError(f"it has {part.size:,} bytes and not {self._size:,}: it is another one than was recorded")
        self._begin, self._block = self._place, part.data
