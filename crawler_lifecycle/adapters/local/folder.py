"""The folder of one task: which files lie in it, and how they are written and read.

Every file is replaced as a whole or created exactly once, so that a reader never sees half of one that we wrote.
Whatever else is found there (cut, foreign, huge) is ``Garbage``: named, never believed, never a crash. Standard
library only and light on imports: the supervisor loads it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from datetime import datetime, timezone

#: What to run, and the uid; created exactly once, by the deployment.
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
#: The control group of the crawler; written before it is made, gone when it is removed.
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
#: In the folder of a run: the uid of the run whose folder it is, written before anything else is put there.
RUN = "run.json"

FILE_MAX = 256 * 1024


class Garbage(ValueError):
    """A file that holds something else than we wrote; the text names file and trouble."""


def utc(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()  # noqa: UP017 - the supervisor may be older


def exists(path: str) -> bool:
    """Whether something has this name. Unlike ``os.path.exists`` it raises ``OSError`` when that cannot be told."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _write_beside(path: str, data: object) -> str:
    beside = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(beside)
        raise
    return beside


def replace(path: str, data: object) -> None:
    """Write the file as a whole, over an older one."""
    os.replace(_write_beside(path, data), path)


def create(path: str, data: object) -> bool:
    """Write the file as a whole if there is none; whether it was us."""
    beside = _write_beside(path, data)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(beside)
    return True


def read(path: str) -> dict[str, object] | None:
    """The object in the file, or ``None`` when there is no file.

    Raises ``Garbage`` for contents that we did not write and ``OSError`` when the file cannot be read.
    """
    name = os.path.basename(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A symbolic link or a socket under our name is garbage; a disk or permission error is not an observation. Nor
        # is one that comes before anybody looks for the file: without descriptors, a missing one is not known as such.
        if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):
            raise Garbage(f"{name} is no file ({error.strerror})") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Garbage(f"{name} is no file")
    with open(handle, "rb") as file:
        raw = file.read(FILE_MAX + 1)
    if len(raw) > FILE_MAX:
        raise Garbage(f"{name} is larger than {FILE_MAX} bytes")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"{name} is not JSON ({str(error)[:80]})") from None
    if not isinstance(data, dict):
        raise Garbage(f"{name} holds no JSON object")
    return data


def open_foreign(path: str, *, folder: int | None = None) -> int | None:
    """A file that the crawler may have put there, for reading; ``None`` when it is a link, a pipe or no file at all.

    Without waiting: a pipe would keep us until somebody opens its other end. Raises ``OSError``, also when there is
    nothing.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def owner(folder: str) -> str:
    """The uid of the run whose folder this is; ``""`` where nothing says so. Raises ``OSError``."""
    try:
        found = read(os.path.join(folder, RUN))
    except Garbage:
        return ""
    uid = found.get("run_uid") if found else None
    return uid if isinstance(uid, str) else ""


def marks(run_id: object, run_uid: object, task_id: object, files: str) -> list[bytes]:
    """The environment entries by which every process of one task can be told from all others."""
    run = (f"CRAWL_RUN_ID={run_id}", f"CRAWL_RUN_UID={run_uid}")
    entries = (*run, f"CRAWL_TASK_ID={task_id}", f"CRAWL_FILES_DIR={files}")
    return [os.fsencode(entry) for entry in entries]
