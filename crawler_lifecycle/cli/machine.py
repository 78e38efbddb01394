"""Facts about this machine: its loopback address, the start times of processes, and whether
``crawlctl dev`` is starting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
#: The file in a state directory that ``crawlctl dev`` locks. It contains the id and start time of
#: its process, and a third word once the stack is ready.
LOCK = "dev.lock"


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; ``None`` if the process does
    not exist or has ended.

    Process ids are reused, but id and start time together identify a process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def living(known: Mapping[str, Any]) -> dict[str, int]:
    """Return those processes in this ``dev.json`` that still exist, by the name of the part."""
    started = known.get("started") or {}
    pids = known.get("processes") or {}
    return {name: pid for name, pid in pids.items() if start_time(pid) == started.get(name, "")}


def starting(lock: Path) -> float | None:
    """Return for how many seconds ``crawlctl dev`` has been starting in the folder of this
    ``LOCK``; ``None`` if it is ready, has ended, never began, or was started by another user.
    """
    try:
        found = lock.stat()
        pid, begun = map(int, lock.read_text().split() if found.st_uid == os.geteuid() else ())
    except (OSError, ValueError):
        return None
    return time.time() - found.st_mtime if start_time(pid) == begun else None
