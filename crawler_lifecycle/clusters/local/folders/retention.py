"""Removal of the folders of old local runs: their task folders, and the saved state for resuming.

Only whole runs are removed, if ``retention.folders_go`` allows it. A mark is kept to distinguish a
removed run from a run that never existed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler_lifecycle.clusters.local.processes.identity import Identity
from crawler_lifecycle.clusters.local.processes.slot_queue import open_lock
from crawler_lifecycle.clusters.volume import folders_in
from crawler_lifecycle.domain.retention import folders_go
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.runner.contract import now
from crawler_lifecycle.runner.safe_directory import NotOurs, SafeDirectory

from . import folder as files

logger = logging.getLogger(__name__)

#: The folder below the state folder for folders that are being removed. If a removal is killed, the
#: next removal finishes it.
TRASH = "trash"
#: The file in a run's folder with the time when its tasks were removed.
REMOVED = "removed.json"


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """Hold the lock that serializes the creation and removal of task folders on this cluster."""
    handle = open_lock(str(state / "deploy.lock"))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_old(state: Path, keep_s: float) -> list[int]:
    """Remove the folders of runs whose last task ended more than ``keep_s`` seconds ago, and return
    their ids.

    If a folder cannot be removed, this is logged, and the next call tries again. Raises
    ``OSError``.
    """
    _empty_trash(state)
    before = time.time() - keep_s
    removed = []
    with os.scandir(state / "tasks") as entries:
        runs = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for run in sorted(runs):
        ref = RunRef.named(run.name)
        if ref is None or not _is_over(run, before):
            continue
        with exclusive(state):
            if not _is_over(run, before):  # the run was resumed meanwhile
                continue
            _put_aside(state, run)
        removed.append(ref.run_id)
        _empty_trash(state)
    return removed


def _is_over(run: Path, before: float) -> bool:
    """Return whether all tasks of the run ended before this time, so that its folders can be
    removed.
    """
    return folders_go(
        (_end_of(task) for index in folders_in(run) for task in folders_in(index)), before
    )


def _end_of(task: Path) -> tuple[float | None, bool]:
    """Return the time of the task's end (epoch seconds; ``None`` if unknown), and whether its
    supervisor is alive.
    """
    try:
        folder = files.held(task)
        end = folder.stat(files.END)
        if end is None:
            return None, False
        supervisor = files.read(folder, files.SUPERVISOR)
        return end.st_mtime, supervisor is not None and Identity.from_json(supervisor).alive()
    except (OSError, NotOurs, ValueError):
        return None, False


def _put_aside(state: Path, run: Path) -> None:
    """Atomically move each folder of the run to the trash.

    After a crash, the next call continues. The tasks are moved last, because the next call finds
    the run by its tasks.
    """
    aside = state / TRASH / f"{run.name}.{os.urandom(4).hex()}"
    os.makedirs(aside, mode=0o700)
    files.replace(SafeDirectory(str(run.parent), run.name), REMOVED, {"at": now()})
    saved = state / "state" / run.name
    if saved.is_dir() and not saved.is_symlink():
        os.rename(saved, aside / "state")
    for index in folders_in(run):
        os.rename(index, aside / index.name)


def _empty_trash(state: Path) -> None:
    with exclusive(state):  # wait until no other call moves folders
        left = folders_in(state / TRASH)
    for folder in left:
        try:
            shutil.rmtree(folder, onerror=_unless_gone)
        except OSError as error:
            logger.warning(
                "the folder of an old run cannot be removed; the next pass tries again: %s", error
            )


def _unless_gone(
    function: object, path: str, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    """Ignore errors about missing files, because another call may remove the same files.

    Raise any other error.
    """
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
