"""Deployed code: a zip with the files of a project, and the digest of its contents.

The digest does not depend on how the files were packed: the same folder has the same digest as a
folder, a zip or an egg. A zip comes from outside, so it is checked completely before anything is
written. This module uses only the standard library, because the runner unpacks code in pods.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from .tree import Leaf, tree_digest

#: The maximum number of files, and their maximum size in bytes after unpacking.
FILES_MAX = 20_000
BYTES_MAX = 200 * 2**20
#: The maximum size of the zip itself in bytes.
ZIP_MAX = 64 * 2**20
#: The maximum size of a path in bytes.
PATH_MAX = 512
#: The maximum size of the zip's directory in bytes, which ``zipfile`` reads as a whole.
_DIRECTORY_MAX = 8 * 2**20
_BLOCK = 2**18
_ENCRYPTED = 1
#: The time of all files, in seconds since the epoch: the oldest that a zip can state.
_UNPACKED_AT = 315_532_800
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class BadPackage(Exception):
    """A zip that cannot be used. The text is the reason, with the name of the file."""


class Package:
    """A zip that was opened for reading. The constructor checks its directory."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises ``BadPackage`` and ``OSError``."""
        try:
            self._zip = zipfile.ZipFile(_BoundedFile(file))
            self._members = _checked(self._zip.infolist())
        except _BROKEN as error:
            raise BadPackage(f"the zip cannot be read: {error}") from None

    @property
    def paths(self) -> list[str]:
        """The paths of all files."""
        return [member.filename for member in self._members]

    def digest(self) -> str:
        """Return the digest of the contents. Raises ``BadPackage`` for a damaged file."""
        return tree_digest(self._leaves(None))

    def unpack(self, folder: str) -> str:
        """Write all files below an existing, empty folder, and return the digest of the contents.

        Raises ``BadPackage`` for a damaged file, and ``OSError``.
        """
        return tree_digest(self._leaves(folder))

    def read(self, path: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of a file; ``None`` if there is no such file.

        Raises ``BadPackage``.
        """
        if path not in self.paths:
            return None
        content = b""
        for block in self.blocks(path):
            content += block
            if len(content) >= most:
                break
        return content[:most]

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in parts. Raises ``BadPackage``."""
        return self._blocks(self._zip.getinfo(path))

    def _leaves(self, folder: str | None) -> Iterator[Leaf]:
        for member in self._members:
            executable = bool(_mode(member) & stat.S_IXUSR)
            content = hashlib.sha256()
            if folder is None:
                for block in self._blocks(member):
                    content.update(block)
            else:
                with _created(folder, member.filename, executable) as file:
                    for block in self._blocks(member):
                        content.update(block)
                        file.write(block)
                    file.flush()
                    # So that no file seems to have changed since an earlier attempt.
                    os.utime(file.fileno(), (_UNPACKED_AT, _UNPACKED_AT))
            kind = b"x" if executable else b"-"
            yield Leaf(os.fsencode(member.filename), kind, content.digest())

    def _blocks(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the content, which has at most the size that the directory states."""
        try:
            with self._zip.open(member) as file:
                while block := file.read(_BLOCK):
                    yield block
        except _BROKEN as error:
            raise BadPackage(f"{member.filename}: the file cannot be unpacked: {error}") from None


class _BoundedFile:
    """A file for ``zipfile``, which reads only the directory as a whole. It stays open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > max(_DIRECTORY_MAX, _BLOCK):
            raise ValueError(f"its directory has more than {_DIRECTORY_MAX:,} bytes")
        return self._file.read(size)


def _checked(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return the members that are files. Raises ``BadPackage``."""
    files = [member for member in members if not member.is_dir()]
    if len(members) > 2 * FILES_MAX or len(files) > FILES_MAX:
        raise BadPackage(f"it has more than {FILES_MAX:,} files; leave out what is not code")
    total = sum(member.file_size for member in files)
    if total > BYTES_MAX:
        raise BadPackage(
            f"its files have {total:,} bytes, at most {BYTES_MAX:,} are allowed; leave out data"
        )
    seen = set[str]()
    for member in files:
        path = member.filename
        check_path(path)
        if path in seen:
            raise BadPackage(f"{path}: this file is in the zip twice")
        seen.add(path)
        kind = stat.S_IFMT(_mode(member))
        if kind not in (0, stat.S_IFREG):
            raise BadPackage(f"{path}: it is not a file; links and devices are not allowed")
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
            raise BadPackage(f"{path}: it is encrypted, or compressed with another method")
    for path in seen:
        above = os.path.dirname(path)
        while above:
            if above in seen:
                raise BadPackage(f"{above}: it is a file and a folder")
            above = os.path.dirname(above)
    return files


def check_path(path: str) -> None:
    """Raise ``BadPackage`` for a path that could lead out of the folder, or is too long."""
    parts = path.split("/")
    shown = repr(path[:80])
    if path.startswith("/") or "\\" in path or "\0" in path or not path:
        raise BadPackage(f"{shown}: not a relative path with '/'")
    if any(part in ("", ".", "..") for part in parts):
        raise BadPackage(f"{shown}: the path leads out of the folder, or has empty parts")
    if len(path.encode("utf-8", "surrogatepass")) > PATH_MAX:
        raise BadPackage(f"{shown}…: the path has more than {PATH_MAX} bytes")


def _mode(member: zipfile.ZipInfo) -> int:
    """Return the Unix mode of a member; 0 if the zip was not made on Unix."""
    return member.external_attr >> 16


def _created(folder: str, path: str, executable: bool) -> IO[bytes]:
    where = os.path.join(folder, path)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(where, flags, 0o755 if executable else 0o644), "wb")
