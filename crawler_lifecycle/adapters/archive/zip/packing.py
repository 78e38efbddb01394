"""Packs a zip in one pass, into a file or an upload.

The same files give the same bytes: members are sorted by name, and times and modes are constant.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isal import isal_zlib

from crawler_lifecycle.adapters.archive.limits import ArchiveLimits
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.ports.files import FileSource

from .stream import Digesting, StreamedZip, Target
from .unpacking import BundleReader
from .walk import Names, OpenFile, Walk

MANIFEST = "manifest.json"
CHUNK = 1024 * 1024
#: Minimum seconds between two calls of a progress callback. Each call is a heartbeat, and files may
#: be tiny.
BEAT_S = 0.2
#: isal has levels 0 to 3. Measured on pages with a quarter of noise and compared with level 1,
#: level 0 is slower and 9 % larger, level 2 is slower and 1 % smaller, and level 3 takes several
#: times as long and is not smaller.
LEVEL = 1

#: A probe compresses slices from the beginning of a file. These are the number of slices, their
#: size in bytes, and the ratio from which compression is not worthwhile.
_PROBE_SLICES = 4
_PROBE_BYTES = 8 * 1024
_PROBE_RATIO = 0.97
#: The maximum number of tasks without files in the note of an archive. The manifest lists more such
#: tasks.
_NAMED_MAX = 5
Progress = Callable[[int, int], None]


class Pace:
    """Reports progress at most once per ``BEAT_S`` seconds, so it can be called for each file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._due = 0.0
        self.files = 0
        self.size = 0

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self.now()

    def now(self) -> None:
        """Report progress immediately."""
        self._due = time.monotonic() + BEAT_S
        self._progress(self.files, self.size)


@dataclass(frozen=True, slots=True)
class PackedZip:
    """A written zip. ``note`` lists the tasks whose files are missing."""

    size: int
    sha256: str
    note: str | None


class ManifestFile:
    """``manifest.json``, the last member of every archive, which lists its contents, the files that
    were left out, and the reasons.

    Entries are kept in a temporary file, because 100,000 entries would need most of our memory.
    """

    def __init__(self, skipped_named_max: int) -> None:
        self._skipped_named_max = skipped_named_max
        self._file = tempfile.TemporaryFile(prefix="manifest-")  # noqa: SIM115
        self._entries = 0
        self._skipped: list[dict[str, str]] = []
        self._reasons: Counter[str] = Counter()

    def close(self) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """Return the bytes of all entries."""
        return self._file.tell()

    def add(self, entry: Mapping[str, object]) -> None:
        """Add an archived file."""
        self._file.write(b",\n  " if self._entries else b"\n  ")
        self._file.write(json.dumps(entry).encode())
        self._entries += 1

    def skip(self, path: str, reason: str) -> None:
        """Note a file that was left out.

        The first files are listed, and all are counted by reason.
        """
        self._reasons[reason] += 1
        if len(self._skipped) < self._skipped_named_max:
            self._skipped.append({"name": path, "reason": reason})

    def document(self, head: Mapping[str, object]) -> Iterator[bytes]:
        """Yield the JSON document in pieces: ``head``, the skipped items (``skipped…``), then all
        ``files``.
        """
        skipped = {
            "skipped_count": self._reasons.total(),
            "skipped_reasons": dict(sorted(self._reasons.items())),
            "skipped": self._skipped,
        }
        text = json.dumps({**head, **skipped}, indent=1, default=str)
        yield text.removesuffix("\n}").encode() + b',\n "files": ['
        self._file.seek(0)
        while piece := self._file.read(CHUNK):
            yield piece
        yield b"\n ]\n}\n" if self._entries else b"]\n}\n"


def _note(lacking: Sequence[str]) -> str | None:
    """Return a sentence about the sources whose files are missing, with the first few names."""
    if not lacking:
        return None
    more = f"; and {len(lacking) - _NAMED_MAX} more" if len(lacking) > _NAMED_MAX else ""
    return (
        f"files of {count(len(lacking), 'task')} are missing or incomplete: "
        f"{'; '.join(lacking[:_NAMED_MAX])}{more}"
    )


def pack(
    target: Target,
    sources: Sequence[FileSource],
    manifest: Mapping[str, object],
    limits: ArchiveLimits,
    pace: Pace,
) -> PackedZip:
    """Write a zip of the sources, with its manifest as the last member.

    Return the size, the digest and a note about missing files.

    An unreadable file is left out and listed in the manifest. Errors of the target are raised
    unchanged.
    """
    stream = Digesting(target)
    with closing(ManifestFile(limits.skipped_named_max)) as notes:
        names = Names(MANIFEST)

        def skip(path: str, reason: str) -> None:
            notes.skip(path, reason)
            pace()

        walk = Walk(limits, names, skip, pace)
        bundles = BundleReader(limits, names, skip, pace)
        with StreamedZip(stream) as archive:
            packer = _Packer(archive, limits, names, notes, pace)
            lacking: list[str] = []
            for source in sources:
                why = source.missing
                if why is not None:
                    skip(source.prefix or ".", why)
                else:
                    why = packer.add_all((bundles if source.bundle else walk).files(source))
                if why:
                    lacking.append(f"{source.prefix or '.'}: {why}")
            with archive.member(MANIFEST, notes.size + 2**20, _deflater(packed=True)) as member:
                for text in notes.document(
                    {**manifest, "file_count": pace.files, "bytes": pace.size}
                ):
                    member.write(text)
                    pace()
        pace.now()
    return PackedZip(stream.size, stream.sha256, _note(lacking))


@dataclass
class _Packer:
    """Writes members. The memory usage does not depend on the contents, and grows slightly with
    each name.
    """

    archive: StreamedZip
    limits: ArchiveLimits
    names: Names
    notes: ManifestFile
    pace: Pace
    path_bytes: int = 0

    def add_all(self, found: Generator[OpenFile, None, str | None]) -> str | None:
        """Write all files of a source. Return the reason why some are missing, or ``None``."""
        try:
            while True:
                self.add(next(found))
        except StopIteration as over:
            why: str | None = over.value
            return why
        finally:
            found.close()

    def add(self, found: OpenFile) -> None:
        """Write a file, or note why it is left out."""
        if reason := self._over(found):
            self.notes.skip(found.path, reason)
            self.pace()
            return
        try:
            first = found.file.read(min(CHUNK, found.size))
        except OSError as error:
            self.notes.skip(found.path, f"cannot be read: {error.strerror}")
            return
        path = self.names.file(found.path)
        self.path_bytes += len(path.encode())
        digest = hashlib.sha256()
        size = 0
        defect = None
        with self.archive.member(
            path, found.size, _deflater(packed=_worth_packing(first))
        ) as member:
            chunk = first
            while chunk:
                size += len(chunk)
                digest.update(chunk)
                member.write(chunk)
                self.pace.size += len(chunk)
                self.pace()
                try:
                    chunk = found.file.read(min(CHUNK, found.size - size))
                except OSError as error:
                    defect = f"only its beginning: {error.strerror}"
                    break
        if size < found.size and defect is None:
            defect = "contains only its beginning: the file shrank while it was being read"
        self.pace.files += 1
        entry = {
            "name": path,
            "size": size,
            "sha256": digest.hexdigest(),
            "modified": _stamp(found.modified),
        }
        if defect:
            entry["trouble"] = defect
        self.notes.add(entry)
        self.pace()

    def _over(self, found: OpenFile) -> str | None:
        limits = self.limits
        if self.pace.files >= limits.files_max:
            return f"over the limit of {limits.files_max} files"
        if self.pace.size + found.size > limits.bytes_max:
            return f"over the limit of {limits.bytes_max} bytes in total"
        if self.path_bytes + len(found.path.encode()) > limits.paths_max:
            return f"over the limit of {limits.paths_max} bytes of names in total"
        return None


def _deflater(*, packed: bool) -> Any:
    """Return a deflater. For an incompressible file, it only makes stored blocks.

    A *stored* member whose size follows its data cannot be read by streaming unpackers, such as
    Java's.
    """
    return (
        isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, -15)
        if packed
        else zlib.compressobj(0, wbits=-15)
    )


def _worth_packing(data: bytes) -> bool:
    """Return whether deflate makes the file's beginning smaller.

    Images, videos and zips take time and do not shrink.

    Small files are not probed, because a probe costs as much as it saves.
    """
    if len(data) < CHUNK:
        return True
    step = len(data) // _PROBE_SLICES
    probe = b"".join(data[n * step : n * step + _PROBE_BYTES] for n in range(_PROBE_SLICES))
    return len(isal_zlib.compress(probe, LEVEL)) < _PROBE_RATIO * len(probe)


def _stamp(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None
