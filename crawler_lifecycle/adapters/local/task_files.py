"""Supporting files of tasks of the local cluster, also while they execute.

The crawler owns the folder and may change it at any moment. Each name is opened relative to the folder before it, none
is followed that leads elsewhere, and only regular files are read, without waiting for them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports import FilePart, TaskFileList, TaskRef

from . import folder as files

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Names that are looked at in one listing, of whatever kind, and folders inside of each other.
NAMES_MAX, DEPTH_MAX = 20_000, 16
#: Characters of a path, as many as the gateway takes: it has to fit into an address.
PATH_MAX = 512


class LocalFiles:
    """Implements ``LiveFiles`` for processes of this machine."""

    def __init__(self, state_dir: Path) -> None:
        self._tasks = Path(state_dir).absolute() / "tasks"

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """At most ``most`` files of a task. Raises ``ClusterUnavailable``."""
        with self._home(run, task) as home:
            return None if home is None else _listed(home, most)

    def read(self, run: RunRef, task: TaskRef, path: str, place: int, limit: int) -> FilePart | None:
        """A part of a regular file. Raises ``ClusterUnavailable``."""
        *folders, name = path.split("/")
        odd = any(part in ("", ".", "..") or "\0" in part or not _is_text(part) for part in (*folders, name))
        if odd or len(folders) > DEPTH_MAX:
            return None
        with self._home(run, task) as home:
            if home is None:
                return None
            try:
                with _opened(home, folders) as inner, _held(name, _FILE, inner) as file:
                    found = os.fstat(file)
                    if not stat.S_ISREG(found.st_mode):
                        return None
                    return FilePart(os.pread(file, limit, place), found.st_size)
            except OSError:  # whatever the crawler put there: it is no file that can be read
                return None

    @contextmanager
    def _home(self, run: RunRef, task: TaskRef) -> Iterator[int | None]:
        """The folder of the task's supporting files, held open; ``None`` when it is not there, or another run's."""
        try:
            root = os.open(self._tasks, _FOLDER & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise ClusterUnavailable(f"the files of task {task.task_id} cannot be read: {error.strerror}") from error
        home: int | None = None
        try:
            with _opened(root, [str(run.run_id)]) as folder:
                if _uid_in(folder) == run.uid:
                    with _opened(folder, [str(task.index), str(task.attempt), files.FILES]) as found:
                        home = os.dup(found)
        except OSError:
            home = None
        finally:
            os.close(root)
        try:
            yield home
        finally:
            if home is not None:
                os.close(home)


@contextmanager
def _held(name: str, flags: int, folder: int) -> Iterator[int]:
    handle = os.open(name, flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened(folder: int, names: list[str]) -> Iterator[int]:
    """The folder that the names lead to, one after the other. Raises ``OSError``."""
    handle = os.dup(folder)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _uid_in(folder: int) -> object:
    """The uid of the run whose folder this is. Raises ``OSError``."""
    with _held(files.RUN, _FILE, folder) as file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        try:
            said = json.loads(os.read(file, files.FILE_MAX))
        except (ValueError, RecursionError):
            return None
    return said.get("run_uid") if isinstance(said, dict) else None


def _listed(home: int, most: int) -> TaskFileList:
    found: list[tuple[str, int]] = []
    todo: list[list[str]] = [[]]
    looked = left_out = 0
    while todo:
        parts = todo.pop()
        try:
            with _opened(home, parts) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    looked += 1
                    if looked > NAMES_MAX:
                        return TaskFileList(sorted(found), left_out + 1)
                    kind = entry.stat(follow_symlinks=False)
                    path = "/".join([*parts, entry.name])
                    if not _is_text(entry.name) or len(path) > PATH_MAX:
                        left_out += 1
                    elif stat.S_ISREG(kind.st_mode) and len(found) < most:
                        found.append((path, kind.st_size))
                    elif stat.S_ISDIR(kind.st_mode) and len(parts) < DEPTH_MAX:
                        todo.append([*parts, entry.name])
                    else:
                        left_out += 1
        except OSError:  # it went away while we looked, or the crawler does not let anybody read it
            left_out += 1
    return TaskFileList(sorted(found), left_out)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
