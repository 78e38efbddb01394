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

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run_data import FarFile
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
            with zipfile.ZipFile(_Far(self._archive, url, size)) as archive:
                yield archive
        except _BROKEN as error:
            raise NotDelivered(f"{url}: the archive cannot be read: {error}; download it as a whole") from error


def _members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    for one in archive.infolist():
        if one.filename != _MANIFEST and not one.is_dir() and one.compress_type in _PACKED and not one.flag_bits & 1:
            yield one


class _Far(io.BufferedReader):
    """A stored archive as a file that ``zipfile`` can read."""

    def __init__(self, archive: FileArchive, url: str, size: int) -> None:
        def fetch(offset: int) -> bytes:
            if offset >= size:
                return b""
            part = archive.part(url, offset, min(BLOCK, size - offset))
            if part.size != size or not part.data:
                raise ValueError(f"it has {part.size:,} bytes and not {size:,}: it is another one than was recorded")
            return part.data

        super().__init__(FarFile(fetch, size), BLOCK)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on. ``zipfile`` asks for a directory as a whole, and for nothing else that is as large."""
        if size is not None and size > DIRECTORY_MAX:
            raise ValueError(f"its directory has more than {DIRECTORY_MAX:,} bytes")
        return super().read(size)
