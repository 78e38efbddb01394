"""Walks a folder that a crawler wrote, and opens only its regular files.

No file from outside the folder is included, and nothing inside can stop the walk. Every step uses a
directory's file descriptor and follows no links. Nothing is opened before it is known to be a file
or a folder. The names in a zip are safe for every unpacker, and unique on every file system.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import IO

from crawler_lifecycle.adapters.archive.limits import ArchiveLimits
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

#: The longest component that file systems accept.
_COMPONENT_BYTES_MAX = 255
_FORBIDDEN = frozenset('\\/:*?"<>|')
_RESERVED = frozenset(
    (
        "con",
        "prn",
        "aux",
        "nul",
        *(f"com{n}" for n in range(1, 10)),
        *(f"lpt{n}" for n in range(1, 10)),
    )
)
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The maximum number of extents of a sparse file that are checked. A file with more extents is
#: accepted.
_EXTENTS_MAX = 10_000
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def safe_component(name: bytes) -> str:
    """Return a path component that every unpacker accepts as one component.

    ``%XX`` replaces bytes that are not text, control and direction characters, and special
    characters. ``%XX`` also replaces characters that Windows drops (trailing dots and spaces) or
    interprets as a device. A name that is too long is cut and marked.
    """
    text = "".join(
        _escaped(char) if char in _FORBIDDEN or not char.isprintable() else char
        for char in os.fsdecode(name)
    )
    if text[-1:] in (".", " "):
        text = text[:-1] + _escaped(text[-1])
    if text.partition(".")[0].casefold() in _RESERVED:
        text = _escaped(text[0]) + text[1:]
    if len(text.encode()) > _COMPONENT_BYTES_MAX:
        mark = "~" + hashlib.sha256(name).hexdigest()[:12]
        text = _cut(text, _COMPONENT_BYTES_MAX - len(mark)) + mark
    return text


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in os.fsencode(char))


class Names:
    """The names that are already used in a zip.

    Only eight bytes of each name's digest are kept.

    If two digests are equal by chance, the name only gets an unnecessary number.
    """

    def __init__(self, *reserved: str) -> None:
        self._files = {_folded(name) for name in reserved}
        self._folders: set[int] = set()
        self._next: dict[int, int] = {}

    def file(self, path: str) -> str:
        """Return a name for a file that no other file or folder has."""
        unique, folded = self._unique(path, self._files, self._folders)
        self._files.add(folded)
        return unique

    def folder(self, path: str) -> str:
        """Return a name for a folder that no file has.

        If folders share a name, their files get numbers.
        """
        unique, folded = self._unique(path, self._files)
        self._folders.add(folded)
        return unique

    def _unique(self, path: str, *taken: set[int]) -> tuple[str, int]:
        first = folded = _folded(path)
        unique = path
        while any(folded in names for names in taken):
            # Counting continues at the last number, because otherwise a folder of equal names would
            # take quadratic time.
            number = self._next[first] = self._next.get(first, 1) + 1
            unique = _numbered(path, number)
            folded = _folded(unique)
        return unique, folded


def _numbered(path: str, number: int) -> str:
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem:
        stem = name
        dot = ""
        suffix = ""
    end = f"~{number}{dot}{suffix}"
    if (left := _COMPONENT_BYTES_MAX - len(end.encode())) < 1:
        stem = name
        end = f"~{number}"
        left = _COMPONENT_BYTES_MAX - len(end)
    return f"{folder}{slash}{_cut(stem, left)}{end}"


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def _folded(path: str) -> int:
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that is open for reading. ``path`` is safe, but not yet unique."""

    path: str
    file: IO[bytes]
    size: int
    modified: float


@dataclass
class Walk:
    """Walks folders in the order of their names.

    ``skip`` is called with each omitted name and the reason. ``beat`` reports progress.
    """

    limits: ArchiveLimits
    names: Names
    skip: Callable[[str, str], None]
    beat: Callable[[], None]
    looked_at: int = 0

    def files(self, source: FileSource) -> Generator[OpenFile, None, str | None]:
        """Yield every regular file of the source's folder.

        Each file is closed when the next one is requested.

        Returns the reason if there are no files, or ``None``.
        """
        parts = [part for part in source.prefix.split("/") if part not in ("", ".", "..")]
        path = ""
        for part in parts:
            path = self.names.folder(_joined(path, os.fsencode(part)))
        assert source.folder is not None
        root = source.root or source.folder.parent
        try:
            folder = SafeDirectory(str(root), *source.folder.relative_to(root).parts)
        except (OSError, NotOurs) as error:
            why = (
                "the folder cannot be opened: "
                f"{error.strerror if isinstance(error, OSError) else error}"
            )
            self.skip(path or ".", why)
            return why
        yield from self._folder(folder.fileno(), path, 0)
        return None

    def _folder(self, fd: int, path: str, depth: int) -> Generator[OpenFile, None, None]:
        for name in self._listed(fd, path):
            here = _joined(path, name)
            if len(here.encode()) > self.limits.path_max:
                self.skip(here[:200] + "…", f"its name is longer than {self.limits.path_max} bytes")
                continue
            try:
                yield from self._entry(fd, name, here, depth)
            except Unreadable as error:
                # The file disappeared, became a link, or is unreadable. This was caused by the
                # crawler and is not our error.
                self.skip(here, str(error))

    def _listed(self, fd: int, path: str) -> list[bytes]:
        names: list[bytes] = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if self.looked_at >= self.limits.names_max:
                        self.skip(
                            path or ".",
                            f"incomplete: over the limit of {self.limits.names_max} names",
                        )
                        break
                    self.looked_at += 1
                    names.append(os.fsencode(entry.name))
                    self.beat()
        except OSError as error:
            self.skip(path or ".", f"cannot be listed: {error.strerror}")
        names.sort()
        return names

    def _entry(
        self, parent: int, name: bytes, path: str, depth: int
    ) -> Generator[OpenFile, None, None]:
        with reading():
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if depth >= self.limits.depth_max:
                raise Unreadable(f"deeper than {self.limits.depth_max} folders")
            with reading():
                fd = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent)
            try:
                yield from self._folder(fd, self.names.folder(path), depth + 1)
            finally:
                os.close(fd)
        elif not stat.S_ISREG(mode):
            # The type is checked before opening, because opening a device can have effects,
            # whatever the flags.
            raise Unreadable(_KINDS.get(stat.S_IFMT(mode), "not a regular file"))
        else:
            with reading():
                fd = os.open(name, _OPEN, dir_fd=parent)
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                os.close(fd)
                raise Unreadable("replaced while it was being read")
            # Unbuffered, because the packer reads large blocks, and buffering would copy the data
            # twice.
            with os.fdopen(fd, "rb", buffering=0) as file:
                if (holes := _holes(fd, found, self.limits.holes_max)) > self.limits.holes_max:
                    raise Unreadable(
                        f"sparse: at least {holes} of its {found.st_size} bytes are holes"
                    )
                yield OpenFile(path, file, found.st_size, found.st_mtime)


class Unreadable(Exception):
    """A part of a source cannot be read; the text explains why.

    An error of the target stays an ``OSError``.
    """


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Convert errors of a source to ``Unreadable``.

    Errors of our own process are raised unchanged.
    """
    try:
        yield
    except FileNotFoundError:
        raise Unreadable("vanished while the archive was being written") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise Unreadable(f"cannot be opened: {error.strerror}") from None


def _joined(path: str, name: bytes) -> str:
    return f"{path}/{safe_component(name)}" if path else safe_component(name)


def _holes(fd: int, found: os.stat_result, enough: int) -> int:
    """Return the number of bytes in holes. Counting stops when there are more than ``enough``.

    Fewer blocks than bytes are only a hint, because compressing file systems also use fewer blocks,
    without holes.
    """
    if found.st_size - found.st_blocks * 512 <= enough:
        return 0
    holes = position = 0
    with contextlib.suppress(OSError):  # no data follows (ENXIO), or the file system has no support
        for _ in range(_EXTENTS_MAX):
            try:
                data = os.lseek(fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = found.st_size
            holes += max(0, data - position)
            if holes > enough or data >= found.st_size:
                break
            position = os.lseek(fd, data, os.SEEK_HOLE)
    os.lseek(fd, 0, os.SEEK_SET)
    return holes
