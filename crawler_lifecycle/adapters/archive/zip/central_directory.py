"""The zip's central directory, in a temporary file until the end of the archive is written.

``zipfile`` keeps about half a kilobyte for each member in memory, which is more than all the rest of us for an archive
of a hundred thousand files.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Iterator

#: Length of the name, flags, crc, sizes packed and unpacked, offset of the header.
_ENTRY = struct.Struct("<HHLQQQ")


class Directory:
    """Stands in for ``ZipFile.filelist``: appended to as members end, read once when the archive is closed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="directory-")  # noqa: SIM115 closed by close()
        self._count = 0

    def append(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.encode()
        sizes = (info.compress_size, info.file_size, info.header_offset)
        self._file.write(_ENTRY.pack(len(name), info.flag_bits, info.CRC, *sizes) + name)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[zipfile.ZipInfo]:
        self._file.seek(0)
        for _ in range(self._count):
            length, flags, crc, *sizes = _ENTRY.unpack(self._file.read(_ENTRY.size))
            info = member_info(self._file.read(length).decode())
            info.flag_bits, info.CRC = flags, crc
            info.compress_size, info.file_size, info.header_offset = sizes
            yield info

    def close(self) -> None:
        self._file.close()


def member_info(path: str) -> zipfile.ZipInfo:
    """A member with a constant time and mode, so that the same files give the same archive."""
    info = zipfile.ZipInfo(path)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info
