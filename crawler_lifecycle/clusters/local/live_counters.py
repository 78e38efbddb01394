"""Live counters of local crawlers: the statistics files of tasks that live, one small read each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.looks import Counted
from crawler_lifecycle.ports.runs import TaskRef

from .folders import folder as files
from .listing import task_of
from .processes import liveness_marks


def counted(state: Path) -> Iterator[Counted]:
    """Of every task that has a mark and says something. A folder that cannot be read costs its own task and no other.

    Raises ``OSError`` when the marks cannot be listed.
    """
    for name in os.listdir(state / liveness_marks.LIVE):
        parts = task_of(name)
        if parts is None:
            continue
        with contextlib.suppress(OSError):  # the look that is due says what is wrong with it
            found = _counted(state, *parts)
            if found is not None:
                yield found


def _counted(state: Path, run_id: int, index: int, attempt: int) -> Counted | None:
    path = state / "tasks" / str(run_id) / str(index) / str(attempt)
    run = RunRef(run_id, files.owner(str(state / "tasks"), run_id))
    if not run.uid:
        return None
    counters, at = TaskFolder(path, run, TaskRef(0, index, attempt)).counters()
    return None if counters == Counters() else Counted(run, attempt, index, counters, at)
