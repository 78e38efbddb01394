"""Inventory: everything that waits or executes on the local cluster, whoever it belongs to.

Two sources, because each can be missing: the folders of tasks without an end, and the processes whose environment names
a folder of ours. A process that outlived its recorded end, or whose folder was taken away, is in the second alone.
``task_records`` reads what the folders say about a run, for a database that lost its rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import merge
from itertools import groupby
from pathlib import Path

from crawler_lifecycle.clusters.local.processes.identity import Stat, all_processes
from crawler_lifecycle.clusters.local.processes.liveness_marks import LIVE
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.names import RUN_NUMBER_MAX, run_number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import TaskRecord, TaskRef
from crawler_lifecycle.runner.held import NotOurs

from . import folder as files
from .reader import reading

Key = tuple[int, int, int]
#: How a look sees one task.
Observe = Callable[[RunRef, TaskRef], Observation]


def inventory(
    tasks: Path, observe: Observe, node: str, *, run_id: int | None, after: Key | None, limit: int
) -> list[ClusterTask]:
    """One page, in the order of run, index and attempt. Raises ``OSError`` when anything cannot be read."""
    begin = after or (0, -1, 0)
    processes = _processes(tasks)
    keys = sorted(key for key in processes if key > begin and run_id in (None, key[0]))
    found: list[ClusterTask] = []
    for key, _ in groupby(merge(keys, _unended(tasks, run_id, begin))):  # no more folders are read than are wanted
        found += _tasks_of(key, tasks, observe, processes.get(key, {}), node)
        if len(found) >= limit:
            break
    return found


def _tasks_of(
    key: Key, tasks: Path, observe: Observe, processes: Mapping[str, Stat], node: str
) -> Iterator[ClusterTask]:
    """Yield what lies and executes under one key: the task of the folder, and the rest of others whose folder is gone.

    Each is told with the uid of the run that it says it is of.
    """
    run_id, index, attempt = key
    folder = _folder(tasks, key)
    owner, spec = files.owner(str(tasks), run_id), _spec(folder)
    uid = spec.get("uid")
    mine = processes.get(owner)
    environment = _environment(mine.pid) if mine is not None else {}
    task_id = _number(environment.get("CRAWL_TASK_ID")) or _number(spec.get("task_id"))
    seen = observe(RunRef(run_id, owner), TaskRef(task_id or 0, index, attempt))
    if seen.phase in (Phase.WAITING, Phase.EXECUTING):
        executing, stray = seen.phase is Phase.EXECUTING, not isinstance(uid, str)
        named = _name(mine) if stray else str(uid)
        yield ClusterTask(
            run_id, index, attempt, executing, task_id, named, seen.started_at, node, owner or None, stray
        )
        processes = {run_uid: process for run_uid, process in processes.items() if run_uid != owner}
    for run_uid, process in sorted(processes.items()):
        if not _lives(process):
            continue
        # Where its folder is gone, hidden by garbage, or another run's: what names it now is the process.
        stray = run_uid != owner or not isinstance(uid, str)
        named = _name(process) if stray else str(uid)
        number, began = _number(_environment(process.pid).get("CRAWL_TASK_ID")), _modified(process.pid)
        yield ClusterTask(run_id, index, attempt, True, number, named, began, node, run_uid or None, stray)


def _name(process: Stat | None) -> str | None:
    return f"{process.pid}@{process.start}" if process is not None else None


def _processes(tasks: Path) -> dict[Key, dict[str, Stat]]:
    """One living process of each task that has any, by key and uid of the run, as its environment says.

    Raises ``OSError``.
    """
    found: dict[Key, dict[str, Stat]] = {}
    for stat in all_processes():
        if stat.ended:
            continue
        environment = _environment(stat.pid)
        place = environment.get("CRAWL_FILES_DIR")
        key = _key_of(tasks, place) if place else None
        if key is not None:
            found.setdefault(key, {}).setdefault(environment.get("CRAWL_RUN_UID", ""), stat)
    return found


class LocalRuns:
    """Implements ``KnowsRuns`` over a state folder, which is not made for it."""

    def __init__(self, state_dir: Path) -> None:
        self._state = Path(state_dir).absolute()

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run that a folder, a mark or a living process of this cluster bears.

        A state folder that was never made holds nothing. Raises ``ClusterUnavailable`` when anything cannot be read.
        """
        with reading(self._state, checked=False):
            names = [name for folder in ("tasks", "state") for name in _names(self._state / folder)]
            names += [name.removeprefix("crawl-") for name in _names(self._state / LIVE)]
            alive = (key[0] for key in _processes(self._state / "tasks") if key[0] <= RUN_NUMBER_MAX)
            return max([above, *map(run_number, names), *alive])


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _environment(pid: int) -> dict[str, str]:
    """The variables of the contract with which the process was executed; none when it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry.startswith(b"CRAWL_")]
    except OSError:
        return {}
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}


def _key_of(tasks: Path, files_dir: str) -> Key | None:
    try:
        parts = Path(files_dir).relative_to(tasks).parts
    except ValueError:
        return None
    numbers = [_number(part) for part in parts[:3]]
    if len(parts) != 4 or parts[3] != files.FILES:
        return None
    run_id, index, attempt = numbers
    return None if run_id is None or index is None or attempt is None else (run_id, index, attempt)


def _lives(process: Stat) -> bool:
    return any(stat.start == process.start and not stat.ended for stat in all_processes() if stat.pid == process.pid)


def _modified(pid: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(os.stat(f"/proc/{pid}").st_mtime, UTC)
    except OSError:
        return None


def _unended(tasks: Path, run_id: int | None, begin: Key) -> Iterator[Key]:
    """The tasks whose folder has a spec and no end. Raises ``OSError``."""
    runs = numbers(tasks) if run_id is None else [run_id]
    for run in runs:
        if run < begin[0]:
            continue
        for index in numbers(tasks / str(run)):
            for attempt in numbers(tasks / str(run) / str(index)):
                key = (run, index, attempt)
                if key > begin and _is_open(_folder(tasks, key)):
                    yield key


def _is_open(path: Path) -> bool:
    """Tell whether the folder has a spec and no end. Raises ``OSError``."""
    try:
        folder = files.held(str(path))
    except (FileNotFoundError, NotOurs):  # taken away meanwhile
        return False
    return not folder.has(files.END) and folder.has(files.SPEC)


def _folder(tasks: Path, key: Key) -> Path:
    return tasks / str(key[0]) / str(key[1]) / str(key[2])


def numbers(folder: Path) -> list[int]:
    """The folders in it whose names are numbers, in order; nothing else there is ours."""
    try:
        with os.scandir(folder) as entries:
            named = [_number(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(number for number in named if number is not None)


def _number(text: object) -> int | None:
    if isinstance(text, int):
        return text
    # One that no row of a database could have is none of ours.
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _spec(folder: Path) -> dict[str, object]:
    try:
        return files.read(files.held(str(folder)), files.SPEC) or {}
    except (FileNotFoundError, NotOurs, files.Garbage):
        return {}


# --- records


def task_records(tasks: Path, run: RunRef) -> list[TaskRecord]:
    """The latest attempt of each index of this very run. Raises ``OSError``."""
    if not run.owns(files.owner(str(tasks), run.run_id)):
        return []
    top = tasks / str(run.run_id)
    found = []
    for index in numbers(top):
        records = (_record(top / str(index) / str(attempt)) for attempt in reversed(numbers(top / str(index))))
        latest = next((one for one in records if one is not None), None)
        if latest is not None:
            found.append(latest)
    return found


def _record(folder: Path) -> TaskRecord | None:
    """Return what the folder's spec says; ``None`` without one that can be read."""
    try:
        spec = files.read(files.held(str(folder)), files.SPEC)
        contract = (spec or {}).get("contract")
        if spec is None or not isinstance(contract, dict):
            return None
        record = spec.get("record")
        return TaskRecord(
            index=int(contract["CRAWL_TASK_INDEX"]),
            attempt=int(contract["CRAWL_ATTEMPT"]),
            task_id=int(contract["CRAWL_TASK_ID"]),
            crawler=str(contract["CRAWL_CRAWLER"]),
            args=json.loads(contract["CRAWL_ARGS"]),
            settings=json.loads(contract["CRAWL_SETTINGS"]),
            name=str(spec["name"]),
            uid=str(spec["uid"]),
            record=record if isinstance(record, dict) else {},
        )
    except (files.Garbage, NotOurs, FileNotFoundError, KeyError, TypeError, ValueError, RecursionError):
        return None
