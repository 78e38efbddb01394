"""Limits of one archive, and the form of its key."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from crawler_lifecycle.domain.errors import InvalidRequest

FILES_MAX = 100_000
BYTES_MAX = 50 * 2**30

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
#: The most other names that may be visited beside those of the archived files.
OTHER_NAMES_MAX = 100_000
#: S3's limit for a key.
_KEY_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Bounds of one archive; what does not fit is left out and named in its manifest. Sizes in bytes."""

    files_max: int = FILES_MAX
    bytes_max: int = BYTES_MAX
    """Sum of the members' sizes, unpacked."""
    depth_max: int = 64
    """Folders inside of each other."""
    path_max: int = 2048
    """Of one member's name; unpackers give up at 4096 together with the folder they unpack into."""
    paths_max: int = 24 * 2**20
    """Of all members' names together: each is written four times, and every reader keeps them in memory."""
    holes_max: int = 2**30
    """Holes in one sparse file. A file of nothing costs its writer no disk, but us and every reader time and space."""
    skipped_named_max: int = 1000
    """Skipped things that the manifest names one by one; the rest is counted by reason."""

    def of_crawler(self, files_max: int | None) -> ArchiveLimits:
        """These limits with a crawler's own number of files, where that is the smaller one."""
        return self if files_max is None else replace(self, files_max=min(self.files_max, files_max))

    @property
    def names_max(self) -> int:
        """The most names of any kind that are visited before the walk gives up."""
        return self.files_max + OTHER_NAMES_MAX


def checked_key(key: str) -> str:
    """The key, when it is a relative path of plain names. Raises ``InvalidRequest``."""
    if not _KEY.fullmatch(key) or len(key) > _KEY_BYTES_MAX:
        raise InvalidRequest(f"key: {key[:200]!r} is not allowed; give a relative path of plain names")
    return key
