"""The folder of a task, and its files.

Each file is replaced as a whole or created exactly once, so that a reader never sees half a file.
Any other content (incomplete, not ours, too large) is ``Garbage``, which is reported but never
trusted, and never an error. The folder is opened by a descriptor (``runner/safe_directory.py``), so
that no link leads out of it. This module imports little, because the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import json
import os

from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

#: The command, the uid and all other data of the task. The deployment creates this file exactly
#: once.
SPEC = "spec.json"
#: The identity of the supervisor. This file shows that a supervisor took charge of the task.
SUPERVISOR = "supervisor.json"
#: The reason why the task is waiting to start.
WAITING = "waiting.json"
#: The identity of the runner, the crawler's main process. This file is written before the runner
#: executes.
PROCESS = "process.json"
#: A stop was requested. This file is created exactly once.
STOP = "stop.json"
#: The stop signal was sent. The sender of the signal creates this file exactly once.
SIGNALLED = "signalled.json"
#: The control group of the crawler. This file is written before the group is created, and removed
#: after it.
CGROUP = "cgroup.json"
#: A process of the crawler was killed because of its memory limit. The supervisor writes this file
#: before it kills the process. If the kernel kills the process and no supervisor is alive, a poll
#: writes this file.
OOM = "oom.json"
#: The end of the task. This file is created exactly once.
END = "end.json"
STATS = "stats.json"
SUMMARY = "summary.json"
LOG = "log"
LOCK = "lock"
FILES = "files"
#: The folder into which the runner unpacks a deployed package.
CODE = "code"
#: A folder next to the folder of all tasks, with a file for each executing task. Crawlers cannot
#: remove these files.
STARTED = "started"

FILE_MAX = 256 * 1024
#: Bytes that are reserved for the end of a task, so that it can be written to a full disk.
RESERVE = 64 * 1024


#: The content of one of our files.
Record = dict[str, object]


class Garbage(ValueError):
    """A file whose content we did not write. The text names the file and the problem."""


def held(folder: str | os.PathLike[str]) -> SafeDirectory:
    """Open the folder of a task.

    Raises ``NotOurs`` if the path is not a folder, and ``OSError``.
    """
    tasks, *names = os.fspath(folder).rsplit(os.sep, 3)
    return SafeDirectory(tasks, *names)


def replace(folder: SafeDirectory, name: str, data: object) -> None:
    """Write the data as JSON, and replace any file with this name. Raises ``OSError``."""
    folder.replace(name, json.dumps(data).encode())


def create(folder: SafeDirectory, name: str, data: object) -> bool:
    """Write the data as JSON unless the name exists.

    Return whether it was written. Raises ``OSError``.
    """
    return folder.create(name, json.dumps(data).encode())


def read(folder: SafeDirectory, name: str) -> Record | None:
    """Return the object in the file; ``None`` if there is no file.

    Raises ``Garbage`` for content that we did not write, and ``OSError`` if the file cannot be
    read.
    """
    try:
        raw = folder.read(name, FILE_MAX + 1)
    except NotOurs as error:
        # A link or a pipe with our name is garbage, but a disk or permission error stays an
        # ``OSError``.
        raise Garbage(str(error)) from None
    if raw is None:
        return None
    if len(raw) > FILE_MAX:
        raise Garbage(f"{name} is larger than {FILE_MAX} bytes")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"{name} is not JSON ({str(error)[:80]})") from None
    if not isinstance(data, dict):
        raise Garbage(f"{name} contains no JSON object")
    return data


def reported_beside(state: str, name: str) -> Record:
    """Return the supervisor's report from outside the task's folder; empty if there is none.

    Raises ``OSError``.
    """
    try:
        return read(SafeDirectory(os.path.join(state, STARTED)), name) or {}
    except (Garbage, NotOurs, FileNotFoundError, NotADirectoryError):
        return {}


def marks(run_id: object, run_uid: object, task_id: object, files: str) -> list[bytes]:
    """Return the environment entries by which every process of a task is found."""
    run = (f"CRAWL_RUN_ID={run_id}", f"CRAWL_RUN_UID={run_uid}")
    entries = (*run, f"CRAWL_TASK_ID={task_id}", f"CRAWL_FILES_DIR={files}")
    return [os.fsencode(entry) for entry in entries]


class EndReserve:
    """A file that later becomes the record of the end.

    The file is created with its full size, so writing the end needs no disk space.
    """

    def __init__(self, folder: str) -> None:
        """Create the file. Never raises, because without it the end is written like any other
        file.
        """
        self._path = os.path.join(folder, "end.room")
        self._handle = -1
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self._path, flags, 0o600)
            # Random bytes are used, because a file system may compress or omit zeros, and then
            # reserve nothing.
            os.pwrite(self._handle, os.urandom(RESERVE), 0)
            os.fsync(self._handle)

    def become(self, path: str, data: object) -> bool:
        """Write the data, and give the file this name if it is free.

        Return whether a file now has the name.

        The file is accessed by our descriptor, even if the crawler gave its previous name to
        another file.
        """
        handle, self._handle = self._handle, -1
        if handle < 0:
            return False
        try:
            raw = json.dumps(data).encode()
            os.pwrite(handle, raw, 0)
            os.ftruncate(handle, len(raw))
            os.fsync(handle)
            with contextlib.suppress(FileExistsError):
                # Python follows the link in /proc only if it gets a folder descriptor. An absolute
                # path ignores it.
                os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
        except OSError:  # the crawler removed the file, or there is no /proc
            return False
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return True
