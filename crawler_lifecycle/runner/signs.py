"""Signs of life from a crawler without counters: the bytes that its processes write, as counted by
the kernel.
"""

from __future__ import annotations

import os
import time

SECONDS = 5.0
#: The maximum number of processes and threads read in one check. Any further processes and threads
#: of the crawler are ignored.
MOST = 1000
#: Bytes subtracted for each write call, because event loops wake each other with writes of this
#: size even when a crawler hangs.
WAKE_UP = 8


class Signs:
    """The time of the crawler's last write to its log, to a file or to a connection."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._due = time.monotonic() + SECONDS
        self._wrote: float | None = None

    def check(self) -> bool:
        """Read the kernel's counts if the next check is due.

        Return whether bytes were written since the last check.
        """
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + SECONDS
        found = {
            pid: count for pid in below(os.getpid(), MOST) if (count := _written(pid)) is not None
        }
        wrote = any(count > self._known.get(pid, 0) for pid, count in found.items())
        self._known = found
        if wrote:
            self._wrote = now
        return wrote

    def quiet_s(self) -> int | None:
        """Return the seconds since the last observed write; ``None`` if no write was observed or
        the kernel cannot count writes.
        """
        return None if self._wrote is None else int(time.monotonic() - self._wrote)


def below(pid: int, most: int | None = None) -> list[int]:
    """Return at most ``most`` descendants of the process, including orphans that the process has
    adopted.
    """
    found: list[int] = []
    todo = [pid]
    asked = 0
    while todo and (most is None or asked < most):
        current = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                asked += 1
                with open(f"/proc/{current}/task/{thread}/children", "rb") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                todo += children
        except OSError:  # the process has ended, or this kernel does not list children
            continue
    return found[:most]


def _written(pid: int) -> int | None:
    """Return the bytes that the process wrote, minus ``WAKE_UP`` for each write call; ``None`` if
    the number is unknown.
    """
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            counts = dict(line.split(b":", 1) for line in file.read().splitlines())
        return int(counts[b"wchar"]) - WAKE_UP * int(counts[b"syscw"])
    except (OSError, ValueError, KeyError):
        return None
