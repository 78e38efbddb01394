"""Reads single files from a stored archive: only the directory and the requested members are
fetched. The contents of an archive come from a crawler, and the storage can belong to a third
party. So only the two compression methods that we use are read, in pieces, and a directory larger
than ``DIRECTORY_MAX`` is refused.
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

#: Size of the largest directory that is read, in bytes. This size is enough for about 20,000 files.
DIRECTORY_MAX = 2 * 1024 * 1024
#: Size of one request to the storage, and of one piece for the caller, in bytes.
BLOCK = 256 * 1024
PIECE = 64 * 1024
_MANIFEST = "manifest.json"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


class ArchivedFiles:
    """Lists and reads members of stored archives. The methods block, and raise ``NotDelivered`` if
    an archive cannot be read.
    """

    def __init__(self, archive: FileArchive) -> None:
        self._archive = archive

    def list(self, url: str, size: int, most: int) -> tuple[list[tuple[str, int]], int]:
        """Return at most ``most`` members as (name, size), and the number of further members.

        ``size`` is the archive's size.
        """
        with self._opened(url, size) as archive:
            found = [(member.filename, member.file_size) for member in _members(archive)]
        return found[:most], len(found[most:])

    def open(self, url: str, size: int, name: str) -> tuple[int, Iterator[bytes]] | None:
        """Return the size of a member and an iterator over its bytes, or ``None`` if no member has
        this name.
        """
        with self._opened(url, size) as archive:
            found = next((member for member in _members(archive) if member.filename == name), None)
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
            raise NotDelivered(
                f"{url}: the archive cannot be read: {error}; download it as a whole"
            ) from error


def _members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    for entry in archive.infolist():
        if (
            entry.filename != _MANIFEST
            and not entry.is_dir()
            and entry.compress_type in _PACKED
            and not entry.flag_bits & 1
        ):
            yield entry


class _Far(io.BufferedReader):
    """A file object over a stored archive, for ``zipfile``."""

    def __init__(self, archive: FileArchive, url: str, size: int) -> None:
        def fetch(offset: int) -> bytes:
            if offset >= size:
                return b""
            part = archive.part(url, offset, min(BLOCK, size - offset))
            if part.size != size or not part.data:
                raise ValueError(
                    f"it has {part.size:,} bytes, not {size:,}: it was replaced in the meantime"
                )
            return part.data

        super().__init__(FarFile(fetch, size), BLOCK)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read the next bytes.

        Refuse more than ``DIRECTORY_MAX``, because ``zipfile`` reads only a directory as a whole.
        """
        if size is not None and size > DIRECTORY_MAX:
            raise ValueError(f"its directory has more than {DIRECTORY_MAX:,} bytes")
        return super().read(size)
