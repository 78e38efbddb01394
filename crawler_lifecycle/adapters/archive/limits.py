"""The limits of an archive, and the allowed form of its key."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from crawler_lifecycle.domain.errors import InvalidRequest

FILES_MAX = 100_000
BYTES_MAX = 50 * 2**30

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
#: The maximum number of names that are visited in addition to those of the archived files.
OTHER_NAMES_MAX = 100_000
#: Longest key that S3 allows, in bytes.
_KEY_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The limits of an archive.

    Files that exceed the limits are left out, and listed in the archive's manifest. Sizes are in
    bytes.
    """

    files_max: int = FILES_MAX
    bytes_max: int = BYTES_MAX
    """Total size of the members, unpacked."""
    depth_max: int = 64
    """Maximum depth of nested folders."""
    path_max: int = 2048
    """The maximum length of a member's name. Unpackers fail at 4096 bytes, including the folder
    into which they unpack.
    """
    paths_max: int = 24 * 2**20
    """The total length of all members' names. Each name is written four times, and every reader
    keeps all names in memory.
    """
    holes_max: int = 2**30
    """Total size of the holes in one sparse file. A hole costs its writer no disk space, but it
    costs us and every reader time and space.
    """
    skipped_named_max: int = 1000
    """The maximum number of skipped items that the manifest lists. The rest are counted by
    reason.
    """

    def of_crawler(self, files_max: int | None) -> ArchiveLimits:
        """Return these limits with the crawler's own maximum number of files, if that is
        smaller.
        """
        return (
            self if files_max is None else replace(self, files_max=min(self.files_max, files_max))
        )

    @property
    def names_max(self) -> int:
        """Return how many names of any kind are visited before the walk stops."""
        return self.files_max + OTHER_NAMES_MAX


def checked_key(key: str) -> str:
    """Return the key if it is a relative path of plain names. Raises ``InvalidRequest``."""
    if not _KEY.fullmatch(key) or len(key) > _KEY_BYTES_MAX:
        raise InvalidRequest(
            f"key: {key[:200]!r} is not allowed; give a relative path of plain names"
        )
    return key
