"""Liveness marks: one file for each task that lives, so that observers need not read all old folders.

A mark is an empty file named like the task on the cluster. It lies in ``live/`` from before the supervisor starts until
the end is on file, then for a while in ``ended/``: a task that came and went between two readings is seen there. Marks
are only for speed. No fact rests on one, and a task without a mark is valid too. Standard library only and light on
imports: the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import os
import time

LIVE = "live"
ENDED = "ended"
#: Seconds for which the mark of an ended task stays, and where nobody observes: who begins to, tells what ended then.
KEEP_ENDED_S, KEEP_UNSEEN_S = 120.0, 3600.0


def begin(mark: str) -> None:
    """Mark a task as living. Never raises: a missing mark costs time, never the truth."""
    with contextlib.suppress(OSError):
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600))


def drop(mark: str) -> None:
    """The task never began: remove its mark, so that a later deployment is noticed. Never raises."""
    with contextlib.suppress(OSError):
        os.unlink(mark)


def end(mark: str) -> None:
    """The end of the task is on file: move its mark. Never raises, and a second call does nothing more."""
    state, name = os.path.dirname(os.path.dirname(mark)), os.path.basename(mark)
    with contextlib.suppress(OSError):
        os.rename(mark, os.path.join(state, ENDED, name))


def forget(state: str, keep_s: float = KEEP_ENDED_S, place: str = ENDED) -> None:
    """Remove marks of tasks that ended longer ago, also with concurrent calls. Raises ``OSError``."""
    before = time.time() - keep_s
    with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(state, place)) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_ctime < before:
                    os.unlink(entry.path)
