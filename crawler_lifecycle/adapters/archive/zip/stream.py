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

#: A member of this size or more gets zip64 headers, which must be chosen before its final size is
#: known.
_ZIP64_FROM = 2**31 - 2**24
#: The fields are the length of the name, flags, CRC, packed size, unpacked size, and offset of the
#: header.
_ENTRY = struct.Struct("<HHLQQQ")


class Target(Protocol):
    """Takes the bytes of a zip, in order."""

    def write(self, data: bytes, /) -> object: ...


class Digesting:
    """An unseekable file in front of a target.

    The file computes the digest and the size of the written bytes.
    """

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
        """Discard all further bytes.

        ``zipfile`` also writes after an exception, and its error could hide that exception.
        """
        self._target = None


class Directory:
    """The central directory, in a temporary file.

    Members are appended, and all are read once when the archive is closed.

    This class replaces ``ZipFile.filelist``, which needs about half a kilobyte of memory per
    member. For an archive of 100,000 files, that exceeds all our other memory usage.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="directory-")  # noqa: SIM115
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
            info.flag_bits = flags
            info.CRC = crc
            info.compress_size, info.file_size, info.header_offset = sizes
            yield info

    def close(self) -> None:
        self._file.close()


def member_info(path: str) -> zipfile.ZipInfo:
    """Return a member with a constant time and mode, so that the same files give the same
    archive.
    """
    info = zipfile.ZipInfo(path)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


class _NoNames(dict[str, zipfile.ZipInfo]):
    """Replaces the name index of ``ZipFile``.

    This index stays empty, because names are already unique here.
    """

    def __setitem__(self, name: str, info: zipfile.ZipInfo) -> None:
        pass


class StreamedZip(zipfile.ZipFile):
    """A zip writer whose memory usage does not grow with the number of members."""

    def __init__(self, stream: Digesting) -> None:
        super().__init__(cast(IO[bytes], stream), "w")
        self._stream = stream
        self._directory = Directory()
        self.filelist = cast(list[zipfile.ZipInfo], self._directory)
        self.NameToInfo = _NoNames()

    @contextmanager
    def member(self, path: str, size_hint: int, deflater: Any) -> Iterator[IO[bytes]]:
        """Yield a member to write to.

        ``deflater`` makes raw deflate data, as ``zlib.compressobj(wbits=-15)`` does.
        """
        with self.open(member_info(path), "w", force_zip64=size_hint >= _ZIP64_FROM) as member:
            # The standard library does not allow choosing the deflater. If it ever renames this
            # attribute, the slower standard deflater is used, and a test fails.
            cast(Any, member)._compressor = deflater
            try:
                yield member
            except BaseException:
                self._stream.stop()
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stream.stop()
        self.close()

    def close(self) -> None:
        """Write the directory and the end record."""
        try:
            super().close()
        finally:
            self._directory.close()
