"""The memory limit of our control group (version 2 or 1), used when ``CRAWL_MEMORY_LIMIT`` is not
set.
"""

from __future__ import annotations

import os

#: In version 1, a limit of at least this many bytes means "no limit".
_NO_LIMIT = 2**60


def cgroup_limit(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int | None:
    """Return the smallest limit of our group and the groups above it, in bytes.

    Return ``None`` if no limit is below the machine's memory. In a container, the path of our group
    may exist only on the host. Then the root of the mount is our group.
    """
    limits = []
    for base, path, name in _groups(proc, root):
        top = os.path.normpath(base)
        folder = os.path.normpath(top + "/" + path)
        if not os.path.isdir(folder):
            folder = top
        while folder == top or folder.startswith(top + os.sep):
            limit = _read(os.path.join(folder, name))
            if limit is not None:
                limits.append(limit)
            if folder == top:
                break
            folder = os.path.dirname(folder)
    limit = min(limits, default=_NO_LIMIT)
    return limit if limit < min(_NO_LIMIT, _physical()) else None


def _groups(proc: str, root: str) -> list[tuple[str, str, str]]:
    """For each group that can limit our memory, return the mount, the path below the mount, and the
    name of the limit file.
    """
    found = []
    try:
        with open(
            os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="surrogateescape"
        ) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found.append((os.path.join(root, "memory"), path, "memory.limit_in_bytes"))
        elif number == "0" and not controllers:
            found.append((root, path, "memory.max"))
            found.append((os.path.join(root, "unified"), path, "memory.max"))
    return found


def _read(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _NO_LIMIT
