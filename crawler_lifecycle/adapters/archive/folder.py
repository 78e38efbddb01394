"""Archives in a folder. A zip gets its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from crawler_lifecycle.adapters.archive.zip.packing import CHUNK, Pace, Progress, pack
from crawler_lifecycle.domain.bounds import file_path
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilePart, FileSource

from .limits import ArchiveLimits, checked_key


class FolderArchive:
    """The port ``FileArchive`` below a folder.

    ``limits`` apply to each archive. Files that exceed the limits are left out, and listed in the
    archive's manifest.
    """

    def __init__(self, url: str) -> None:
        path = file_path("LIFECYCLE_ARCHIVE__URL", url, "file:///path/of/a/folder")
        self.root = Path(os.path.normpath(path))
        self.limits = ArchiveLimits()

    def store(
        self,
        key: str,
        sources: Sequence[FileSource],
        manifest: Mapping[str, object],
        progress: Progress,
        *,
        files_max: int | None = None,
    ) -> ExportResult:
        """Write the zip under ``key``.

        An earlier zip is replaced only when the new zip is complete. Raises ``NotDelivered``.

        ``files_max`` is the crawler's own limit. The smaller limit applies.
        """
        target = self.root / checked_key(key)
        pace = Pace(progress)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target)
            with _part(target) as (part, file):
                written = pack(file, sources, manifest, self.limits.of_crawler(files_max), pace)
                file.flush()
                os.fsync(file.fileno())
                os.replace(part, target)
            _sync_folder(target.parent)
        except (OSError, zipfile.LargeZipFile) as error:
            raise NotDelivered(f"{target}: the archive cannot be written: {error}") from error
        return ExportResult(target.as_uri(), written.size, pace.files, written.sha256, written.note)

    def open(self, url: str) -> Iterator[bytes]:
        """Return the bytes of a stored archive.

        Raises ``NotDelivered`` if it is missing or cannot be read.
        """
        return _chunks(self._opened(url), url)

    def part(self, url: str, place: int, limit: int) -> FilePart:
        """Return a part of a stored archive. Raises ``NotDelivered``."""
        with self._opened(url) as file:
            try:
                return FilePart(
                    os.pread(file.fileno(), limit, place), os.fstat(file.fileno()).st_size
                )
            except OSError as error:
                raise NotDelivered(f"{url}: the archive cannot be read: {error}") from error

    def _opened(self, url: str) -> IO[bytes]:
        path = Path(os.path.normpath(unquote(urlsplit(url).path)))
        try:
            if not path.is_relative_to(self.root):
                raise PermissionError(errno.EPERM, "not in this archive")
            return path.open("rb")
        except (OSError, ValueError) as error:
            raise NotDelivered(f"{url}: the archive cannot be read: {error}") from error

    def remove(self, run: RunRef) -> None:
        """Remove all archives of the run, including unfinished ones.

        Raises ``NotDelivered``, including when the folder of all archives is missing, because it
        may not be mounted.
        """
        folder = self.root / str(run)
        try:
            self.root.lstat()
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            fix = "mount or create the folder named by LIFECYCLE_ARCHIVE__URL, with its permissions"
            raise NotDelivered(
                f"{folder}: the archives cannot be removed: {error}; {fix}"
            ) from error

    def check(self) -> str:
        """Write and remove a probe file. Raises ``NotDelivered`` with the reason and the fix."""
        probe = self.root / f".probe.{uuid.uuid4().hex}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                with probe.open("xb") as file:
                    file.write(b"probe")
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise NotDelivered(
                f"{self.root}: archives cannot be written here: {error.strerror}; make it a folder "
                "that the worker's "
                "user may write to, or set LIFECYCLE_ARCHIVE__URL to another folder"
            ) from error
        return f"archives go to the folder {self.root}"


def _chunks(file: IO[bytes], url: str) -> Iterator[bytes]:
    with file:
        try:
            while chunk := file.read(CHUNK):
                yield chunk
        except OSError as error:
            raise NotDelivered(f"{url}: the archive cannot be read: {error}") from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _part(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new locked file next to the target.

    The new file is removed at the end, unless it was renamed to the target.
    """
    while True:
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            with part.open("xb", buffering=CHUNK) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Before the file was locked, another exporter may have considered it abandoned and
                # removed it.
                if part.exists():
                    yield part, file
                    return
        finally:
            part.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove the unfinished files of killed exporters of this key.

    A running exporter holds the lock of its file.
    """
    prefix = f".{target.name}."
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.name.endswith(".part"):
            with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)
