"""Directory listings of the observer: liveness marks, the tree of tasks, and what they name."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from crawler_lifecycle.domain.names import cluster_name

#: The time a folder shows is the kernel's clock at its last tick; a listing this young may lack a change of that tick.
TICK_NS = 20_000_000
#: Observers of one state folder that are told apart.
PLACES = 64


class Listing:
    """The names in a folder, read again only when the folder changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = -1
        self._read_at = 0
        self.names: frozenset[str] = frozenset()
        self.added: frozenset[str] = frozenset()
        self.removed: frozenset[str] = frozenset()

    def read(self) -> None:
        """Find out what was added and removed since the last call. Raises ``OSError``."""
        changed = os.stat(self._path).st_mtime_ns
        if changed == self._changed and self._read_at - changed > TICK_NS:
            self.added = self.removed = frozenset()
            return
        self._changed, self._read_at = changed, time.time_ns()
        names = frozenset(os.listdir(self._path))
        self.added, self.removed, self.names = names - self.names, self.names - names, names


class TaskFolderKey:
    """Which of the observers of this machine we are: the lowest number that no other one holds by a lock.

    The kernel gives the number back when its holder dies, however that happens.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self._folder = folder
        self._handle: int | None = None
        self.number = PLACES
        self.improve()

    def improve(self) -> None:
        """Move up to a place that became free. Raises ``OSError``."""
        for number in range(self.number):
            handle = os.open(self._folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            self.close()
            self._handle, self.number = handle, number
            return

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def task_of(name: str) -> tuple[int, int, int] | None:
    """Run, index and attempt of a task's name; ``None`` for any other name."""
    parts = name.split("-")
    if len(parts) != 4 or parts[0] != "crawl" or not all(map(_is_number, parts[1:])):
        return None
    run_id, index, attempt = (int(part) for part in parts[1:])
    return (run_id, index, attempt) if cluster_name(run_id, index, attempt) == name else None


def numbers_in(folder: Path) -> list[int]:
    """The folders in it whose name is a number, the newest runs first."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(name) for name in names if _is_number(name)), reverse=True)


def _is_number(name: str) -> bool:
    """Whether it is a number that a row of a database could have."""
    return name.isascii() and name.isdecimal() and len(name) < 19
