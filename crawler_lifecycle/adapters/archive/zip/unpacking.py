"""Reads the regular files of a bundle (``tar.gz``) that a task uploaded, one after the other.

A bundle comes from a crawler's pod, so it is treated as hostile. Nothing is unpacked to disk: each
file is passed on while the stream is read. Links, absolute names and devices therefore have no
effect, and headers cannot exhaust memory. Python's ``tarfile`` parses only single headers here,
because it would keep names of any size in memory. Plain tar with GNU's long names is supported. All
other members are left out and reported.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import IO, cast

from crawler_lifecycle.adapters.archive.limits import ArchiveLimits
from crawler_lifecycle.ports.files import FilesMissing, FileSource

from .walk import Names, OpenFile, safe_component

_BLOCK = 512
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_OTHERS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
}
#: Compressed bytes that are unpacked at once.
_INPUT = 64 * 1024
_OUTPUT = 1024 * 1024
#: A tar ends with padding. At most this many bytes are read after the last member.
_REST_MAX = 16 * 2**20
#: The length of the longest name that is read, in bytes. It exceeds the limit for paths.
_NAME_MAX = 16 * 1024


@dataclass(frozen=True)
class BundleReader:
    """Reads bundles.

    ``skip`` is called with each omitted name and the reason. ``beat`` reports progress.
    """

    limits: ArchiveLimits
    names: Names
    skip: Callable[[str, str], None]
    beat: Callable[[], None]

    def files(self, source: FileSource) -> Generator[OpenFile, None, str | None]:
        """Yield every regular file of the source's bundle.

        Each file must be read before the next one is requested.

        Returns the reason why files are missing, or ``None``. Raises ``NotDelivered`` if the
        storage cannot be read now.
        """
        assert source.bundle is not None
        top = self.names.folder(source.prefix)
        try:
            stream = _Stream(source.bundle(), self.beat)
            yield from self._members(stream, top)
            stream.end()
        except FilesMissing as missing:
            self.skip(top, str(missing))
            return str(missing)
        return None

    def _members(self, stream: _Stream, top: str) -> Generator[OpenFile, None, None]:
        folders = _Folders(self.names, top)
        looked_at = 0
        for name, header, body in _headers(stream, self.limits.bytes_max):
            looked_at += 1
            if looked_at > self.limits.names_max:
                self.skip(top, f"incomplete: over the limit of {self.limits.names_max} names")
                return
            parts = [part for part in name.split(b"/") if part not in (b"", b".", b"..")]
            if header.isdir() or not parts:
                continue
            here = "/".join(safe_component(part) for part in parts)
            if reason := self._refused(header, parts, f"{top}/{here}"):
                self.skip(f"{top}/{here}"[:200], reason)
                continue
            path = f"{folders.of(parts[:-1])}/{safe_component(parts[-1])}"
            yield OpenFile(path, cast(IO[bytes], body), header.size, float(header.mtime))

    def _refused(self, header: tarfile.TarInfo, parts: list[bytes], path: str) -> str | None:
        if header.type not in _REGULAR:
            return _OTHERS.get(header.type, "not a regular file")
        if len(parts) > self.limits.depth_max + 1:
            return f"deeper than {self.limits.depth_max} folders"
        if len(path.encode()) > self.limits.path_max:
            return f"its name is longer than {self.limits.path_max} bytes"
        return None


class _Folders:
    """Finds the safe name of a member's folder. Members are ordered by folder."""

    def __init__(self, names: Names, top: str) -> None:
        self._names = names
        self._stack: list[tuple[bytes, str]] = [(b"", top)]

    def of(self, parts: list[bytes]) -> str:
        same = 0
        while (
            same < len(parts)
            and same + 1 < len(self._stack)
            and self._stack[same + 1][0] == parts[same]
        ):
            same += 1
        del self._stack[same + 1 :]
        for part in parts[same:]:
            self._stack.append(
                (part, self._names.folder(f"{self._stack[-1][1]}/{safe_component(part)}"))
            )
        return self._stack[-1][1]


class _Stream:
    """The unpacked bytes of a gzip stream, read in order.

    Raises ``FilesMissing`` if the stream ends too early.
    """

    def __init__(self, chunks: Iterator[bytes], beat: Callable[[], None]) -> None:
        self._pieces = self._cut(chunks)
        self._beat = beat
        self._inflate = zlib.decompressobj(wbits=31)
        self._out = b""
        self._given = 0

    def _cut(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._beat()
            for at in range(0, len(chunk), _INPUT):
                yield chunk[at : at + _INPUT]

    def some(self, most: int) -> bytes:
        """Return at least one byte, and at most ``most``."""
        if self._given == len(self._out):
            self._out, self._given = self._more(), 0
        data = self._out[self._given : self._given + most]
        self._given += len(data)
        return data

    def _more(self) -> bytes:
        while True:
            piece = (
                None
                if self._inflate.eof
                else self._inflate.unconsumed_tail or next(self._pieces, None)
            )
            if piece is None:
                raise FilesMissing("its bundle ends too early: it contains only the beginning")
            try:
                data = self._inflate.decompress(piece, _OUTPUT)
            except zlib.error:
                raise FilesMissing(
                    "its bundle is damaged: it contains only the beginning"
                ) from None
            if data:
                return data

    def exactly(self, size: int) -> bytes:
        """Return ``size`` bytes. The caller must limit the size."""
        data = self.some(size)
        while len(data) < size:
            data += self.some(size - len(data))
        return data

    def end(self) -> None:
        """Read the compressed bytes after the last member.

        Only the end of a bundle shows whether it is complete.
        """
        left = _REST_MAX
        while left > 0 and (piece := next(self._pieces, None)) is not None:
            left -= len(piece)

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self.some(size))
            self._beat()


@dataclass
class _Body:
    """The contents of a member, read like a file.

    If the stream breaks, the contents end there, and the error is kept.
    """

    stream: _Stream
    left: int
    broken: FilesMissing | None = None

    def read(self, size: int) -> bytes:
        if not self.left or not size or self.broken:
            return b""
        try:
            data = self.stream.some(min(size, self.left))
        except FilesMissing as error:
            self.broken = error
            return b""
        self.left -= len(data)
        return data

    def finish(self, most: int) -> int:
        """Skip the rest of a member, and return its size.

        Raises ``FilesMissing`` if that is more than ``most``.
        """
        if self.broken:
            raise self.broken
        unread, self.left = self.left, 0
        if unread > most:
            # A few bytes can claim a very large size, and skipped bytes cost time too.
            raise FilesMissing(
                "its bundle was not read to its end: too many bytes are over the limits"
            )
        self.stream.skip(unread)
        return unread


def _headers(stream: _Stream, bytes_max: int) -> Iterator[tuple[bytes, tarfile.TarInfo, _Body]]:
    """Yield the members up to the end mark. Raises ``FilesMissing`` if the data is not a tar."""
    long_name: bytes | None = None
    may_skip = bytes_max
    while True:
        block = stream.exactly(_BLOCK)
        if not any(block):
            return  # the end: a block of zeros
        header = _parsed(block)
        size = header.size
        padding = -header.size % _BLOCK
        if header.type == tarfile.GNUTYPE_LONGNAME:
            if size > _NAME_MAX:
                raise FilesMissing("its bundle is damaged: a name is too long")
            long_name = stream.exactly(size).rstrip(b"\0")
            stream.skip(padding)
            continue
        body = _Body(stream, size)
        yield long_name or header.name.encode("utf-8", "surrogateescape"), header, body
        long_name = None
        may_skip -= body.finish(may_skip)
        stream.skip(padding)


def _parsed(block: bytes) -> tarfile.TarInfo:
    """Return the header of a member, parsed by the standard library. Raises ``FilesMissing``.

    Only this block is read, because the following data is hostile and can have any size.
    """
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if header.size < 0:
            raise tarfile.HeaderError("size")
    except tarfile.HeaderError:
        raise FilesMissing("its bundle is damaged: it contains only the beginning") from None
    return header
