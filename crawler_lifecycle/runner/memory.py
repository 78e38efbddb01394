"""The memory limit, read from the control group (version 2 or 1) when nobody named one."""

from __future__ import annotations

import os

#: Version 1 says "no limit" with a number of this size.
_NO_LIMIT = 2**60


def cgroup_limit(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int | None:
    """Bytes: the smallest limit of our group and those above it, or ``None`` when there is none that counts.

    In a container our own path may be one of the host's that does not exist here; then the mount's top is our group.
    """
    limits = []
    for base, path, name in _places(proc, root):
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


def _places(proc: str, root: str) -> list[tuple[str, str, str]]:
    """Mount, path below it and file of the groups that can limit our memory."""
    found = []
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="surrogateescape") as file:
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
