"""Liveness marks: one file for each living task, so that observers do not need to read the folders
of old tasks.

A mark is an empty file with the name of the task. The mark is in ``live/`` from before the
supervisor's start until the end is recorded, and then for some time in ``ended/``. An observer
therefore sees a task that started and ended between two reads. Marks only improve speed: no fact
depends on them, and a task without a mark is also valid. This module uses only the standard library
and imports little, because the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import os
import time

LIVE = "live"
ENDED = "ended"
#: Seconds for which the mark of an ended task is kept, whether or not an observer is running, so
#: that a new observer can report tasks that ended before it started.
KEEP_ENDED_S = 120.0
KEEP_UNSEEN_S = 3600.0


def begin(mark: str) -> None:
    """Mark a task as living. Never raises, because without a mark, changes are only reported with a
    delay.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600))


def drop(mark: str) -> None:
    """Remove the mark of a task that never started, so that a later deployment is noticed.

    Never raises.
    """
    with contextlib.suppress(OSError):
        os.unlink(mark)


def end(mark: str) -> None:
    """Move the mark of a task whose end is recorded.

    Never raises, and a second call changes nothing.
    """
    state = os.path.dirname(os.path.dirname(mark))
    name = os.path.basename(mark)
    with contextlib.suppress(OSError):
        os.rename(mark, os.path.join(state, ENDED, name))


def forget(state: str, keep_s: float = KEEP_ENDED_S, folder: str = ENDED) -> None:
    """Remove marks that are older than ``keep_s`` seconds.

    Concurrent calls are harmless. Raises ``OSError``.
    """
    before = time.time() - keep_s
    with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(state, folder)) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_ctime < before:
                    os.unlink(entry.path)
