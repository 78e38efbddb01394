"""Signs of life of a crawler without counters: the bytes that its processes write, as the kernel counts them."""

from __future__ import annotations

import os
import time

SECONDS = 5.0
#: The most processes and threads that are read at once; of a crawler with more, only these are read.
MOST = 1000
#: Writes of at most so many bytes do not count: event loops wake each other with them, even in a crawler that hangs.
WAKE_UP = 8


class Signs:
    """The record of when the crawler below us last wrote anything: to its log, to files, to connections."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._due = time.monotonic() + SECONDS
        self._wrote: float | None = None

    def look(self) -> bool:
        """Ask the kernel, if it is time again. Returns whether something was written since the last time."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + SECONDS
        found = {pid: told for pid in below(os.getpid(), MOST) if (told := _written(pid)) is not None}
        wrote = any(told > self._known.get(pid, 0) for pid, told in found.items())
        self._known = found
        if wrote:
            self._wrote = now
        return wrote

    def quiet_s(self) -> int | None:
        """Seconds since the last write was seen; ``None``: never, or this kernel does not report it."""
        return None if self._wrote is None else int(time.monotonic() - self._wrote)


def below(pid: int, most: int | None = None) -> list[int]:
    """The descendants of the process, ``most`` of them. Orphans are among them when it adopts them."""
    found: list[int] = []
    todo, asked = [pid], 0
    while todo and (most is None or asked < most):
        current = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                asked += 1
                with open(f"/proc/{current}/task/{thread}/children", "rb") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                todo += children
        except OSError:  # it ended meanwhile, or this kernel does not list children
            continue
    return found[:most]


def _written(pid: int) -> int | None:
    """The bytes that it wrote, without those that only wake another thread."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            told = dict(line.split(b":", 1) for line in file.read().splitlines())
        return int(told[b"wchar"]) - WAKE_UP * int(told[b"syscw"])
    except (OSError, ValueError, KeyError):
        return None
