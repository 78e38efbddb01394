"""A zip writer for outputs that cannot seek."""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Protocol, cast

#: Above this a member needs zip64 headers, which have to be announced before its size is known.
_ZIP64_FROM = 2**31 - 2**24
#: Length of the name, flags, crc, sizes packed and unpacked, offset of the header.
_ENTRY = struct.Struct("<HHLQQQ")


class Target(Protocol):
    """Target of the bytes of a zip, from first to last."""

    def write(self, data: bytes, /) -> object: ...


class Digesting:
    """An unseekable file in front of a target, that knows the digest and size of what went through."""

    def __init__(self, target: Target) -> None:
        self._target: Target | None = target
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        if self._target is not None:
            self._digest.update(data)
            self.size += len(data)
            self._target.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here, but ``zipfile`` calls this method."""

    def stop(self) -> None:
        """Discard all further bytes: what ``zipfile`` writes while an exception is raised could hide that exception."""
        self._target = None


class Directory:
    """The central directory, in a temporary file: appended to as members end, read once when the archive is closed.

    It stands in for ``ZipFile.filelist``, which keeps about half a kilobyte for each member in memory. For an archive
    of a hundred thousand files that is more than all our other memory.
    """

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


class _NoNames(dict[str, zipfile.ZipInfo]):
    """``ZipFile``'s index by name, which nothing uses: names are already unique here."""

    def __setitem__(self, name: str, info: zipfile.ZipInfo) -> None:
        pass


class StreamedZip(zipfile.ZipFile):
    """A zip whose memory does not grow with its members."""

    def __init__(self, stream: Digesting) -> None:
        super().__init__(cast(IO[bytes], stream), "w")
        self._stream = stream
        self._directory = Directory()
        self.filelist = cast(list[zipfile.ZipInfo], self._directory)
        self.NameToInfo = _NoNames()

    @contextmanager
    def member(self, path: str, size_hint: int, deflater: Any) -> Iterator[IO[bytes]]:
        """A member to write to. ``deflater`` makes raw deflate, as ``zlib.compressobj(wbits=-15)`` does."""
        with self.open(member_info(path), "w", force_zip64=size_hint >= _ZIP64_FROM) as member:
            # The standard library has no way to choose the deflater. If the attribute is renamed one day, the standard
            # deflater is used, which is slower; a test notices.
            cast(Any, member)._compressor = deflater
            try:
                yield member
            except BaseException:
                self._stream.stop()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stream.stop()
        self.close()

    def close(self) -> None:
        """Write the directory and the end."""
        try:
            super().close()
        finally:
            self._directory.close()
