"""Packing of the crawler's supporting files into one ``tar.gz``, which is sent in parts while it is
being packed.

Nothing is written to disk, because the root may be read-only. Only one part is in memory at a time.
A link, pipe or device is included by name only, so that the archive can list it. Folders are opened
through descriptors (``safe_directory.py``), so that no link is followed, even if the crawler's
processes are still changing the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from .safe_directory import NotOurs, SafeDirectory

#: The maximum size of a part in bytes, and the maximum number of parts, as the gateway permits.
PART_BYTES = 8 * 1024 * 1024
PARTS_MAX = 6400
FILES_MAX = 100_000
#: The maximum size of all files in bytes, before packing.
BYTES_MAX = 50 * 2**30
#: The maximum number of bytes of a file that are not stored on disk. A sparse file costs its writer
#: nothing, but reading it costs us time.
HOLES_MAX = 2**30
DEPTH_MAX = 64
#: The maximum number of names in a folder.
NAMES_MAX = 200_000

#: Called with the number and the content of each part, in order. An exception ends the whole
#: upload.
Send = Callable[[int, bytes], None]

_KINDS = {
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


class Parts:
    """A file object that the tar is written to. It compresses the data, and sends each part as soon
    as the part is full.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._deflate = zlib.compressobj(1, wbits=31)
        self._buffer = bytearray()
        self.sent: list[dict[str, Any]] = []

    def write(self, data: bytes) -> int:
        self._buffer += self._deflate.compress(data)
        self._send_full()
        return len(data)

    def finish(self) -> None:
        """Send the remaining data."""
        self._buffer += self._deflate.flush()
        self._send_full()
        self._send_part(len(self._buffer))

    def _send_full(self) -> None:
        while len(self._buffer) >= PART_BYTES:
            self._send_part(PART_BYTES)

    def _send_part(self, size: int) -> None:
        if not size:
            return
        if len(self.sent) >= PARTS_MAX:
            raise ValueError(
                f"the packed files exceed {PARTS_MAX * PART_BYTES >> 30} GiB: let the crawler "
                "write less"
            )
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._send(len(self.sent), part)
        self.sent.append({"bytes": size, "sha256": hashlib.sha256(part).hexdigest()})


class Bundle:
    """A sender of the files below a folder.

    ``files``, ``bytes`` and ``left_out`` are counted while the files are being sent.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.files = 0
        self.bytes = 0
        self.left_out = 0

    def send(self, send: Send) -> dict[str, Any]:
        """Send all parts, and return the list of parts, which the caller must send last.

        An empty folder has no parts.
        """
        parts = Parts(send)
        empty = True
        with tarfile.open(
            fileobj=cast(IO[bytes], parts),
            mode="w|",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            for path, folder, found in self._walk():
                empty = False
                self._add(tar, path, folder, found)
                # Otherwise the tar would keep up to a hundred thousand entries in memory.
                cast(Any, tar).members = []
        if not empty:
            parts.finish()
        stated = {"files": self.files, "bytes": self.bytes, "left_out": self.left_out}
        return {"version": 1, **stated, "parts": parts.sent}

    def _walk(self) -> Iterator[tuple[str, SafeDirectory, os.stat_result]]:
        """Yield path, folder and status of each entry, sorted by name, except for folders."""
        try:
            root = SafeDirectory(self._folder)
        except OSError:
            self.left_out += 1
            return
        yield from self._below(root, "", 0)

    def _below(
        self, folder: SafeDirectory, prefix: str, depth: int
    ) -> Iterator[tuple[str, SafeDirectory, os.stat_result]]:
        try:
            names, more = folder.names(NAMES_MAX)
        except OSError:
            self.left_out += 1
            return
        self.left_out += more
        for name in sorted(names, key=os.fsencode):
            try:
                found = folder.stat(name)
                if found is not None and not stat.S_ISDIR(found.st_mode):
                    yield prefix + name, folder, found
                elif found is not None and depth < DEPTH_MAX:
                    yield from self._below(folder.below(name), prefix + name + "/", depth + 1)
                else:
                    self.left_out += 1
            except (OSError, NotOurs):
                self.left_out += 1

    def _add(
        self, tar: tarfile.TarFile, path: str, folder: SafeDirectory, found: os.stat_result
    ) -> None:
        info = tarfile.TarInfo(path)
        info.mtime = max(0, int(found.st_mtime))
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode))
            if kind is None or self.files >= FILES_MAX:
                self.left_out += 1
            else:
                self.files += 1
                info.type = kind
                tar.addfile(info)
            return
        over = self.files >= FILES_MAX or self.bytes + found.st_size > BYTES_MAX
        if over or found.st_size - found.st_blocks * 512 > HOLES_MAX:
            self.left_out += 1
            return
        try:
            handle = folder.open(path.rpartition("/")[2])
        except (OSError, NotOurs):  # the file was replaced after ``_below`` checked it
            handle = None
        if handle is None:
            self.left_out += 1
            return
        with open(handle, "rb") as file:
            info.size = found.st_size
            self.files += 1
            self.bytes += found.st_size
            whole = _Whole(file, found.st_size)
            tar.addfile(info, cast(IO[bytes], whole))
            self.left_out += whole.lacking


class _Whole:
    """A file whose content has exactly the announced size. If the file became shorter or cannot be
    read to its end, the content is filled up with zeros.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self.lacking = False

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        try:
            data = b"" if self.lacking else self._file.read(size)
        except OSError:
            data = b""
        if len(data) < size:
            self.lacking = True
            data += bytes(size - len(data))
        self._left -= size
        return data
