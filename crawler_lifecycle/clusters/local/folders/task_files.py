"""Supporting files of local tasks, for the archive and for readers while the tasks execute.

The crawler owns the folder and can change it at any moment, so ``runner/safe_directory.py`` opens
and reads it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable, NotInThisState
from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import FilePart, FileSource, TaskFileList
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

from . import folder as files
from .reader import TaskFolder, reading
from .retention import REMOVED, exclusive

#: The maximum number of names of any kind in a listing, and the maximum depth of folders.
NAMES_MAX = 20_000
DEPTH_MAX = 16
#: The maximum number of characters of a path. The gateway has the same limit, because the path must
#: fit into a URL.
PATH_MAX = 512

Sources = list[FileSource]


class LocalFiles:
    """The files of processes on this machine.

    This class implements ``LiveFiles`` and ``TaskFiles``, and creates no files.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()
        self._tasks = self._state / "tasks"

    def list(self, run: RunRef, task: TaskRef, most: int) -> TaskFileList | None:
        """Return at most ``most`` files of a task; ``None`` without a folder.

        Raises ``ClusterUnavailable``.
        """
        home = self._home(run, task)
        return None if home is None else _listed(home, most)

    def read(
        self, run: RunRef, task: TaskRef, path: str, place: int, limit: int
    ) -> FilePart | None:
        """Return a part of a regular file; ``None`` if there is no such file.

        Raises ``ClusterUnavailable``.
        """
        *folders, name = path.split("/")
        odd = any(
            part in ("", ".", "..") or "\0" in part or not _is_text(part)
            for part in (*folders, name)
        )
        if odd or len(folders) > DEPTH_MAX:
            return None
        home = self._home(run, task)
        try:
            handle = None if home is None else home.below(*folders).open(name)
            if handle is None:
                return None
            with open(handle, "rb") as file:
                return FilePart(os.pread(handle, limit, place), os.fstat(file.fileno()).st_size)
        except (OSError, NotOurs):  # the crawler created something that is not a readable file
            return None

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> Sources:
        """Return the existing folders with supporting files of these tasks, each with its prefix in
        the archive.

        Raises ``NotInThisState`` if all were removed because the run is old, and
        ``ClusterUnavailable``.
        """
        with reading(self._state):
            with exclusive(self._state):  # with the lock, no folder is removed during the check
                found = [source for task in tasks for source in self._files_of(run, task)]
            removed = not found and tasks and self._removed(run)
        if removed:
            raise NotInThisState(
                f"the files of run {run.run_id} were removed from the cluster, because its last "
                "task ended more than "
                "LIFECYCLE_CLUSTER__KEEP_DAYS days ago"
            )
        return found

    def _files_of(self, run: RunRef, task: TaskRef) -> Iterator[FileSource]:
        """Yield the folder with the files of one task, or the reason why there is none.

        Raises ``OSError``.
        """
        folder = TaskFolder(self._state, run, task)
        prefix = files_prefix(task.index, task.attempt)
        if not folder.exists():
            if folder.incidents:
                yield FileSource(prefix, missing="; ".join(folder.incidents))
        elif folder.has(files.FILES):
            yield FileSource(prefix, folder.path / files.FILES, root=self._tasks)

    def _removed(self, run: RunRef) -> bool:
        """Return whether the tasks of this run were removed because they are old.

        Raises ``OSError``.
        """
        try:
            return SafeDirectory(str(self._tasks), str(run)).has(REMOVED)
        except (FileNotFoundError, NotOurs):
            return False

    def _home(self, run: RunRef, task: TaskRef) -> SafeDirectory | None:
        """Open the folder of the task's supporting files; ``None`` if there is none.

        Raises ``ClusterUnavailable``.
        """
        try:
            tasks = SafeDirectory(str(self._tasks))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClusterUnavailable(
                f"the files of task {task.task_id} cannot be read: {error.strerror}"
            ) from error
        try:
            return tasks.below(str(run), str(task.index), str(task.attempt), files.FILES)
        except (OSError, NotOurs):
            return None


def _listed(home: SafeDirectory, most: int) -> TaskFileList:
    found: list[tuple[str, int]] = []
    todo: list[list[str]] = [[]]
    count = left_out = 0
    while todo:
        parts = todo.pop()
        try:
            folder = home.below(*parts)
            with os.scandir(folder.fileno()) as entries:
                for entry in entries:
                    count += 1
                    if count > NAMES_MAX:
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
        except (OSError, NotOurs):  # the crawler removed the file meanwhile, or made it unreadable
            left_out += 1
    return TaskFileList(sorted(found), left_out)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
