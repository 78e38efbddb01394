"""Archives of supporting files in a folder: one zip for each attempt of a run, complete or not there at all.

The folders that go in are written by crawlers and are therefore hostile input: nothing outside of them may get in, and
nothing inside of them may stop us. Every step goes through a directory's file descriptor without following links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import unicodedata
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports import FileSource

CHUNK = 1024 * 1024
DEPTH_MAX = 64
#: Skipped things that the manifest names one by one; the rest is counted.
SKIPPED_NAMED_MAX = 1000
MANIFEST = "manifest.json"

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Above this a member needs zip64 headers, which have to be announced before its size is known.
_ZIP64_FROM = 2**31 - 2**24

Progress = Callable[[int, int], None]


class FolderArchive:
    """The port ``FileArchive`` below one folder.

    ``files_max`` and ``bytes_max`` bound one archive; what does not fit is left out and named in its manifest.
    """

    def __init__(self, url: str, *, files_max: int = 100_000, bytes_max: int = 50 * 2**30) -> None:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidRequest(f"LIFECYCLE_ARCHIVE__URL: {url!r} is not allowed; give file:///path/of/a/folder")
        self.root = Path(os.path.normpath(unquote(parts.path)))
        self.files_max = files_max
        self.bytes_max = bytes_max

    def store(
        self, key: str, sources: Sequence[FileSource], manifest: Mapping[str, object], progress: Progress
    ) -> ExportResult:
        """Write the zip under ``key``, replacing an earlier one only when complete. Raises ``NotDelivered``."""
        if not _KEY.fullmatch(key):
            raise InvalidRequest(f"key: {key!r} is not allowed; give a relative path of plain names")
        target = self.root / key
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target)
            try:
                with part.open("xb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    packer = _Packer(file, self.files_max, self.bytes_max, progress)
                    packer.pack(sources, manifest)
                    file.flush()
                    os.fsync(file.fileno())
                    digest, size = _digest(part, lambda: progress(packer.files, packer.size))
                    os.replace(part, target)
                _sync_folder(target.parent)
            finally:
                part.unlink(missing_ok=True)
        except (OSError, zipfile.LargeZipFile) as error:
            raise NotDelivered(f"{target}: the archive cannot be written: {error}") from error
        return ExportResult(target.as_uri(), size, packer.files, digest)

    def open(self, url: str) -> Iterator[bytes]:
        """The bytes of a stored archive. Raises ``NotDelivered`` when there is none or it cannot be read."""
        path = Path(os.path.normpath(unquote(urlsplit(url).path)))
        try:
            if not path.is_relative_to(self.root):
                raise PermissionError(errno.EPERM, "not in this archive")
            file = path.open("rb")
        except (OSError, ValueError) as error:
            raise NotDelivered(f"{url}: the archive cannot be read: {error}") from error
        return _chunks(file)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


def _digest(path: Path, beat: Callable[[], None]) -> tuple[str, int]:
    """Digest and size of what is really in the file: zip headers are rewritten after the data they describe."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
            beat()
    return digest.hexdigest(), size


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_abandoned(target: Path) -> None:
    """Remove what exporters of this key left behind when they were killed; a living one holds the lock of its part."""
    prefix = f".{target.name}."
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.name.endswith(".part"):
            with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)


@dataclass(slots=True)
class _Packer:
    """One zip being written, with constant memory for contents and a little for each name."""

    file: IO[bytes]
    files_max: int
    bytes_max: int
    progress: Progress
    files: int = 0
    size: int = 0
    entries: list[dict[str, object]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    skipped_count: int = 0
    taken: set[str] = field(default_factory=lambda: {MANIFEST})

    def pack(self, sources: Sequence[FileSource], manifest: Mapping[str, object]) -> None:
        with zipfile.ZipFile(self.file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for source in sources:
                self._source(archive, source)
            document = {
                **manifest,
                "files": self.entries,
                "skipped": self.skipped,
                "skipped_count": self.skipped_count,
            }
            with archive.open(MANIFEST, "w", force_zip64=True) as member:
                encoder = json.JSONEncoder(indent=1, default=str)
                for text in encoder.iterencode(document):
                    member.write(text.encode())
        self.progress(self.files, self.size)

    def _source(self, archive: zipfile.ZipFile, source: FileSource) -> None:
        prefix = "/".join(_safe(os.fsencode(part)) for part in source.prefix.split("/") if part not in ("", ".", ".."))
        try:
            fd = os.open(source.folder, _OPEN | os.O_DIRECTORY)
        except OSError as error:
            self._skip(prefix or ".", f"the folder cannot be opened: {error.strerror}")
            return
        try:
            self._folder(archive, fd, prefix, 0)
        finally:
            os.close(fd)

    def _folder(self, archive: zipfile.ZipFile, fd: int, path: str, depth: int) -> None:
        try:
            names = sorted(os.fsencode(name) for name in os.listdir(fd))
        except OSError as error:
            self._skip(path or ".", f"cannot be listed: {error.strerror}")
            return
        for name in names:
            here = f"{path}/{_safe(name)}" if path else _safe(name)
            try:
                self._entry(archive, fd, name, here, depth)
            except _Unreadable as error:
                # Vanished, replaced by a link, or unreadable: all of that is the crawler's business and never ours.
                self._skip(here, error.why)

    def _entry(self, archive: zipfile.ZipFile, parent: int, name: bytes, path: str, depth: int) -> None:
        with _reading():
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if depth >= DEPTH_MAX:
                self._skip(path, f"deeper than {DEPTH_MAX} folders")
                return
            with _reading():
                fd = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent)
            try:
                self._folder(archive, fd, path, depth + 1)
            finally:
                os.close(fd)
        elif not stat.S_ISREG(mode):
            # Looked at before opening: opening a device can have effects, whatever the flags.
            self._skip(path, _KINDS.get(stat.S_IFMT(mode), "not a regular file"))
        elif self.files >= self.files_max:
            self._skip(path, f"over the limit of {self.files_max} files")
        else:
            with _reading():
                fd = os.open(name, _OPEN, dir_fd=parent)
            with os.fdopen(fd, "rb") as file:
                self._file(archive, file, path)

    def _file(self, archive: zipfile.ZipFile, file: IO[bytes], path: str) -> None:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            self._skip(path, "replaced while it was read")
            return
        if self.size + found.st_size > self.bytes_max:
            self._skip(path, f"over the limit of {self.bytes_max} bytes in all")
            return
        path = self._unique(path)
        digest, left = hashlib.sha256(), found.st_size
        trouble = None
        # Modes and times of members are constants, so that the same files give the same archive.
        with archive.open(path, "w", force_zip64=found.st_size >= _ZIP64_FROM) as member:
            while left:
                try:
                    chunk = file.read(min(CHUNK, left))
                except OSError as error:
                    trouble = f"only its beginning: {error.strerror}"
                    break
                if not chunk:
                    trouble = "only its beginning: it shrank while it was read"
                    break
                left -= len(chunk)
                digest.update(chunk)
                member.write(chunk)
                self.size += len(chunk)
                self.progress(self.files, self.size)
        self.files += 1
        entry: dict[str, object] = {
            "name": path,
            "size": found.st_size - left,
            "sha256": digest.hexdigest(),
            "modified": _stamp(found.st_mtime),
        }
        if trouble:
            entry["trouble"] = trouble
        self.entries.append(entry)
        self.progress(self.files, self.size)

    def _unique(self, path: str) -> str:
        """A name that no other member has on a file system that folds case or composes characters."""
        stem, dot, suffix = path.rpartition(".")
        if not dot or "/" in suffix or stem.endswith("/") or not stem:
            stem, suffix = path, ""
        unique, n = path, 1
        while (folded := unicodedata.normalize("NFC", unique).casefold()) in self.taken:
            n += 1
            unique = f"{stem}~{n}.{suffix}" if suffix else f"{stem}~{n}"
        self.taken.add(folded)
        return unique

    def _skip(self, path: str, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_NAMED_MAX:
            self.skipped.append({"name": path, "reason": reason})
        self.progress(self.files, self.size)


class _Unreadable(Exception):
    """Something in a source cannot be read; an error of the target stays an ``OSError``."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _Unreadable("vanished while the archive was written") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise _Unreadable(f"cannot be opened: {error.strerror}") from None


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _safe(name: bytes) -> str:
    """One path component that every unpacker takes as one: bytes that are no text, and signs, as ``%XX``."""
    text = ""
    for char in os.fsdecode(name):
        if "\udc80" <= char <= "\udcff":
            text += f"%{ord(char) - 0xDC00:02X}"
        elif char in '\\:*?"<>|' or not char.isprintable():
            text += "".join(f"%{byte:02X}" for byte in char.encode())
        else:
            text += char
    return text


def _stamp(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None
