"""The folder of one task: its files, and how they are written and read.

Every file is replaced as a whole or created exactly once, so that a reader never sees half a file of ours. Any other
file (cut, foreign, huge) is ``Garbage``: reported, never trusted, never a crash. The folder is opened by a descriptor
(``runner/held.py``), so that no link leads out of it. Light on imports: the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timezone

from crawler_lifecycle.runner.held import Held, NotOurs

#: The command, and the uid; created exactly once, by the deployment.
SPEC = "spec.json"
#: Identity of the supervisor; its presence says that one lived.
SUPERVISOR = "supervisor.json"
#: Why the task waits for its start.
WAITING = "waiting.json"
#: Identity of the crawler, written before it executes.
PROCESS = "process.json"
#: Somebody asked for a stop; created exactly once.
STOP = "stop.json"
#: The stop signal was sent; created exactly once, by the one who sends it.
SIGNALLED = "signalled.json"
#: The control group of the crawler; written before the group is made, removed after it.
CGROUP = "cgroup.json"
#: Something of the crawler was killed for its memory limit. Written by the supervisor before it kills, and by a look
#: that finds a kill of the kernel when no supervisor is there to say so.
OOM = "oom.json"
#: How it ended; created exactly once.
END = "end.json"
STATS = "stats.json"
SUMMARY = "summary.json"
LOG = "log"
LOCK = "lock"
FILES = "files"
#: Beside the folder of all tasks, a file for each executing task: its crawler cannot remove this file with its folder.
STARTED = "started"

FILE_MAX = 256 * 1024
#: Bytes of the disk that are reserved for the end of a task, so that a full disk hides no end.
RESERVE = 64 * 1024


class Garbage(ValueError):
    """A file with contents that we did not write; the text names the file and the problem."""


def utc(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()  # noqa: UP017 - the supervisor may be older


def held(folder: str) -> Held:
    """The folder of a task. Raises ``NotOurs`` when the path is no folder, and ``OSError``."""
    tasks, *names = folder.rsplit(os.sep, 3)
    return Held(tasks, *names)


def replace(folder: Held, name: str, data: object) -> None:
    """Write the whole file, replacing any file of its name. Raises ``OSError``."""
    folder.replace(name, json.dumps(data).encode())


def create(folder: Held, name: str, data: object) -> bool:
    """Write the file as a whole if nothing has its name; whether it was us. Raises ``OSError``."""
    return folder.create(name, json.dumps(data).encode())


def read(folder: Held, name: str) -> dict[str, object] | None:
    """The object in the file, or ``None`` when there is no file.

    Raises ``Garbage`` for contents that we did not write and ``OSError`` when the file cannot be read.
    """
    try:
        raw = folder.read(name, FILE_MAX + 1)
    except NotOurs as error:
        # A symbolic link or a pipe under our name is garbage; a disk or permission error is not an observation.
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
        raise Garbage(f"{name} holds no JSON object")
    return data


def reported_beside(state: str, name: str) -> dict[str, object]:
    """Return what its supervisor reported outside of the task's folder; empty where it reported nothing. Raises
    ``OSError``.
    """
    try:
        return read(Held(os.path.join(state, STARTED)), name) or {}
    except (Garbage, NotOurs, FileNotFoundError, NotADirectoryError):
        return {}


def marks(run_id: object, run_uid: object, task_id: object, files: str) -> list[bytes]:
    """The environment entries that distinguish every process of one task from all others."""
    run = (f"CRAWL_RUN_ID={run_id}", f"CRAWL_RUN_UID={run_uid}")
    entries = (*run, f"CRAWL_TASK_ID={task_id}", f"CRAWL_FILES_DIR={files}")
    return [os.fsencode(entry) for entry in entries]


class EndReserve:
    """A file of full size that becomes the record of the end: overwriting it needs no more disk space."""

    def __init__(self, folder: str) -> None:
        """Never raises: without it the end is written as any other file is."""
        self._path = os.path.join(folder, "end.room")
        self._handle = -1
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self._path, flags, 0o600)
            # Not zeros: a file system that compresses, or leaves out zeros, would reserve nothing for us.
            os.pwrite(self._handle, os.urandom(RESERVE), 0)
            os.fsync(self._handle)

    def become(self, path: str, data: object) -> bool:
        """Give the file this name, unless the name is taken.

        Returns whether a file has the name now. The file is found by our descriptor, even if the crawler has replaced
        its old name.
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
                # With a folder descriptor, Python lets the kernel follow the link; the path is absolute and needs none.
                os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
        except OSError:  # the crawler removed it, or there is no /proc
            return False
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return True
