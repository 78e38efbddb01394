"""The inventory of all waiting and executing tasks on the local cluster, including tasks that
belong to another database.

There are two sources, because each can be incomplete: the folders of tasks without an end, and the
processes whose environment contains one of our folders. Only the second source shows a process that
still runs after its recorded end, or whose folder was removed. ``task_records`` reads a run's
records from its folders, for a database that lost its rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from heapq import merge
from itertools import groupby
from pathlib import Path

from crawler_lifecycle.clusters.local.processes.identity import (
    Identity,
    Stat,
    all_processes,
    boot_id,
    given_to,
)
from crawler_lifecycle.clusters.local.processes.liveness_marks import LIVE
from crawler_lifecycle.clusters.volume import folders_in
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.names import RUN_NUMBER_MAX, run_number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import TaskRecord, TaskRef
from crawler_lifecycle.process_contract import recorded_task
from crawler_lifecycle.runner.safe_directory import NotOurs

from . import folder as files
from .reader import reading, task_path

Key = tuple[int, int, int]
#: A key with the uid of the run, because two runs may have the same number after a restore of the
#: database.
Place = tuple[int, int, int, str]
#: A function that returns the observation of one task.
Observe = Callable[[RunRef, TaskRef], Observation]


def inventory(
    state: Path, observe: Observe, node: str, *, run_id: int | None, after: Key | None, limit: int
) -> list[ClusterTask]:
    """Return one page, ordered by run, index and attempt.

    Tasks with the same key are on the same page, so a page can be longer than ``limit``. Raises
    ``OSError`` if a file cannot be read.
    """
    begin = after or (0, -1, 0)
    processes = _processes(state / "tasks")
    alive = sorted(place for place in processes if place[:3] > begin and run_id in (None, place[0]))
    found: list[ClusterTask] = []
    # Stop early, because reading a folder is expensive.
    for _, places in groupby(
        merge(alive, _unended(state, run_id, begin)), key=lambda place: place[:3]
    ):
        seen = (
            _task_of(place, state, observe, processes.get(place, []), node)
            for place in dict.fromkeys(places)
        )
        found += [task for task in seen if task is not None]
        if len(found) >= limit:
            break
    return found


def _task_of(
    place: Place, state: Path, observe: Observe, seen_alive: list[Stat], node: str
) -> ClusterTask | None:
    """Return the task if it is waiting or executing, otherwise ``None``.

    The task is identified by its folder, or by a process that is still running although the task
    has ended or its folder is missing.
    """
    run_id, index, attempt, run_uid = place
    run = RunRef(run_id, run_uid)
    # The first process may be a short-lived child that has ended since then, while others are still
    # alive.
    process = next(filter(_alive, seen_alive), None)
    spec = _spec(task_path(state, run, index, attempt))
    environment = _environment(process.pid) if process is not None else {}
    task_id = _number(environment.get("CRAWL_TASK_ID")) or _number(spec.get("task_id"))
    seen = observe(run, TaskRef(task_id or 0, index, attempt))
    executing = seen.phase is Phase.EXECUTING
    began = seen.started_at
    if seen.phase not in (Phase.WAITING, Phase.EXECUTING):
        if (process := next(filter(_alive, seen_alive), None)) is None:
            return None  # it has ended in the meantime
        executing = True
        began = _modified(process.pid)
    uid = spec.get("uid")
    # If the folder is gone or its spec is garbage, the process identifies the task.
    stray = not isinstance(uid, str)
    named = str(uid) if not stray else None if process is None else f"{process.pid}@{process.start}"
    return ClusterTask(
        run_id, index, attempt, executing, task_id, named, began, node, run_uid, stray
    )


def _alive(stat: Stat) -> bool:
    return Identity(stat.pid, stat.start, boot_id()).alive()


def _processes(tasks: Path) -> dict[Place, list[Stat]]:
    """Return the living processes of each task, found by their environment.

    Raises ``OSError``.
    """
    found: dict[Place, list[Stat]] = {}
    for stat in all_processes():
        if not stat.ended and (
            place := _place_of(tasks, _environment(stat.pid).get("CRAWL_FILES_DIR", ""))
        ):
            found.setdefault(place, []).append(stat)
    return found


class LocalRuns:
    """The run numbers in a state folder, which is not created here.

    This class implements ``KnowsRuns``.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()

    def highest_run(self, above: int = 0) -> int:
        """Return the highest run number among folders, marks and living processes, but at least
        ``above``.

        A missing state folder contains no numbers. Raises ``ClusterUnavailable`` if a part cannot
        be read.
        """
        with reading(self._state, checked=False):
            names = [name for folder in ("tasks", "state") for name in _names(self._state / folder)]
            names += [name.removeprefix("crawl-") for name in _names(self._state / LIVE)]
            alive = (
                key[0] for key in _processes(self._state / "tasks") if key[0] <= RUN_NUMBER_MAX
            )
            return max([above, *map(run_number, names), *alive])


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _environment(pid: int) -> dict[str, str]:
    """Return the variables of the process contract in the process's environment; empty if it cannot
    be read.
    """
    entries = (
        entry.partition(b"=") for entry in given_to(pid, "environ") if entry.startswith(b"CRAWL_")
    )
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}


def _place_of(tasks: Path, files_dir: str) -> Place | None:
    try:
        run, *rest = Path(files_dir).relative_to(tasks).parts
        index, attempt, name = rest
    except ValueError:
        return None
    named = RunRef.named(run) if name == files.FILES else None
    numbers = _number(index), _number(attempt)
    return (
        None
        if named is None or None in numbers
        else (named.run_id, numbers[0] or 0, numbers[1] or 0, named.uid)
    )


def _modified(pid: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(os.stat(f"/proc/{pid}").st_mtime, UTC)
    except OSError:
        return None


def _unended(state: Path, run_id: int | None, begin: Key) -> Iterator[Place]:
    """Yield the tasks whose folder has a spec but no end. Raises ``OSError``."""
    named = (RunRef.named(folder.name) for folder in folders_in(state / "tasks"))
    runs = [
        run
        for run in named
        if run is not None and run_id in (None, run.run_id) and run.run_id >= begin[0]
    ]
    for _, same in groupby(
        sorted(runs, key=lambda run: (run.run_id, run.uid)), key=lambda run: run.run_id
    ):
        yield from merge(*(_unended_of(state, run, begin) for run in same))


def _unended_of(state: Path, run: RunRef, begin: Key) -> Iterator[Place]:
    top = state / "tasks" / str(run)
    for index in _numbers(top):
        for attempt in _numbers(top / str(index)):
            if (run.run_id, index, attempt) > begin and _is_open(
                task_path(state, run, index, attempt)
            ):
                yield run.run_id, index, attempt, run.uid


def _is_open(path: Path) -> bool:
    """Return whether the folder has a spec but no end. Raises ``OSError``."""
    try:
        folder = files.held(path)
    except (FileNotFoundError, NotOurs):  # the folder was removed meanwhile
        return False
    return not folder.has(files.END) and folder.has(files.SPEC)


def _numbers(folder: Path) -> list[int]:
    """Return the names of inner folders that are numbers, in ascending order. We create no other
    folders.
    """
    return sorted(
        number for inner in folders_in(folder) if (number := _number(inner.name)) is not None
    )


def _number(text: object) -> int | None:
    # A number that is too large for the database did not come from us.
    return text if isinstance(text, int) else whole(text)


def _spec(folder: Path) -> files.Record:
    try:
        return files.read(files.held(folder), files.SPEC) or {}
    except (FileNotFoundError, NotOurs, files.Garbage):
        return {}


# --- records


def task_records(state: Path, run: RunRef) -> list[TaskRecord]:
    """Return the record of the latest attempt for each task index of this run.

    Raises ``OSError``.
    """
    top = state / "tasks" / str(run)
    found = []
    for index in _numbers(top):
        attempts = reversed(_numbers(top / str(index)))
        records = (_record(task_path(state, run, index, attempt)) for attempt in attempts)
        latest = next((record for record in records if record is not None), None)
        if latest is not None:
            found.append(latest)
    return found


def _record(folder: Path) -> TaskRecord | None:
    """Return the record in the folder's spec; ``None`` without a valid spec."""
    spec = _spec(folder)
    contract = spec.get("contract")
    if not isinstance(contract, dict):
        return None
    try:
        return recorded_task(
            contract, spec.get("record"), name=str(spec["name"]), uid=str(spec["uid"])
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
