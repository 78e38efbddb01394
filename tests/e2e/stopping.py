"""Runs in any phase of their life on real processes, broken dependencies, and stops of every kind.

A phase is reached and kept in one of three ways: the run really waits there (a full cluster, a
first check in the far future, a crawler that continues), the worker is frozen at that moment
(SIGSTOP), or one call of that run hangs in the worker (``failpoints/sitecustomize.py``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from temporalio.client import WorkflowUpdateStage

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.domain import names
from examples.story_checks import run_folder
from tests.e2e.harness import TERMINAL, Harness, Row
from tests.support.mariadb import MariaDb

HERE = Path(__file__).resolve().parent
#: For ``PYTHONPATH``: the module that holds calls in the worker.
FAILPOINTS = str(HERE / "failpoints")
SLOTS = 16
#: Polls come about once a second.
QUICK: Row = {"poll_minutes": [0.017], "limits": {"start_check_s": 0.2}}
PATIENT = {
    "name": "patient",
    "kind": "command",
    "project": str(HERE),
    "command": ["python", "-S", "patient.py"],
    "args": {name: {"required": False} for name in ("seconds", "deaf")},
}


class Failpoints:
    """Holds single calls of single runs in the worker; see ``failpoints/sitecustomize.py``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "held").mkdir(parents=True)

    def hold(self, run: int | str, point: str) -> None:
        """Hold this call of the run (``any``: of every run) from now on."""
        (self.folder / f"{run}.{point}").touch()

    def release(self, run: int | str | None = None) -> None:
        """Release everything that is held for this run, or for any run."""
        for file in self.folder.glob("*" if run is None else f"{run}.*"):
            if file.is_file():
                file.unlink(missing_ok=True)

    def held(self, run: int | str = "*", point: str = "*") -> list[str]:
        """Return the calls that live processes hold now."""
        marks = [file.name for file in (self.folder / "held").glob(f"{run}.{point}@*")]
        return [
            name
            for name in marks
            if processes.start_time(int(name.rpartition("@")[2].partition("-")[0]))
        ]


@dataclass
class StopHarness(Harness):
    """The stack with failpoints and a patient crawler, every part of which tests can break."""

    server: MariaDb | None = None
    examples: bool = False
    """Whether the example crawlers are its catalogue, and the patient one stands in another."""
    _slots: list[int] = field(default_factory=list)
    _parts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if not self.examples:
            self.crawlers = self.folder.parent / "crawlers.yaml"
            self.crawlers.write_text(json.dumps([PATIENT]))
        self.points = Failpoints(self.folder.parent / "failpoints")
        super().__post_init__()

    @classmethod
    @contextmanager
    def up(
        cls, folder: Path, database: str | None = None, *, examples: bool = False, **settings: str
    ) -> Iterator[StopHarness]:
        """A running stack, all of which is ended afterwards."""
        import pytest

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIFECYCLE_CLUSTER__SLOTS", str(SLOTS))
            patch.setenv(
                "PYTHONPATH",
                os.pathsep.join(filter(None, (FAILPOINTS, os.environ.get("PYTHONPATH")))),
            )
            patch.setenv("LIFECYCLE_TEST_FAILPOINTS", str(folder.parent / "failpoints"))
            patch.setenv("LIFECYCLE_GATEWAY__MAX_WRITES_PER_S", "1000")
            patch.setenv("LIFECYCLE_GATEWAY__MAX_CONCURRENT_REQUESTS", "200")
            patch.setenv("LIFECYCLE_GATEWAY__OUTBOX_RETRY_S", "2")
            for name, value in settings.items():
                patch.setenv(name, value)
            harness = cls(folder, database=database, examples=examples)
            try:
                harness.start()
                yield harness
            finally:
                harness.points.release()
                harness.free_slots()
                harness.end()

    # --- parts ------------------------------------------------------------------------------------

    def deploy(
        self, folder: Path, name: str = "worker", roles: Sequence[str] = (), **settings: str
    ) -> None:
        """Deploy like any stack; failpoints also work in the new part."""
        super().deploy(folder, name, roles, **{"PYTHONPATH": FAILPOINTS, **settings})

    def kill(self, *parts: str) -> None:
        """``kill -9``, and keep them down until ``bring_back``."""
        supervisor = self.stack.supervisor
        for part in parts:
            supervisor._kept[part].wanted = False
            with contextlib.suppress(ProcessLookupError):
                supervisor.kill(part)
        supervisor.stop(parts)

    def bring_back(self, *parts: str, wait: bool = True) -> None:
        for part in parts:
            self.stack.supervisor._kept[part].wanted = True
        if wait:
            for part in parts:
                self.stack.supervisor.wait_healthy([part])

    @property
    def worker_is_up(self) -> bool:
        return "worker" in self.stack.supervisor.pids()

    def fill_slots(self) -> None:
        """Take every slot of the cluster: the free ones now, each other one as soon as it is
        returned.

        The kernel gives a lock to whoever sleeps for it, before anybody who tries only now and
        then.
        """
        for number in range(SLOTS):
            slot = self.folder / "cluster" / "slots" / str(number)
            file = os.open(slot, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._slots.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                threading.Thread(
                    target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True
                ).start()

    def free_slots(self) -> None:
        while self._slots:
            os.close(self._slots.pop())

    # --- Temporal ---------------------------------------------------------------------------------

    def start_by_temporal(self, workflow_id: str, request: Row) -> None:
        """Start a run as an outsider would."""
        more = {"id": workflow_id, "task_queue": names.QUEUE_MAIN}
        self.talk(lambda client: client.start_workflow(names.LIFECYCLE_WORKFLOW, request, **more))

    def add_by_temporal(self, workflow_id: str, key: str) -> None:
        """Send a page of child tasks. Returns when the workflow has accepted it, before it acts on
        it.
        """
        page = {"tasks": [{"args": {}}] * 2, "request_id": key}
        stage = WorkflowUpdateStage.ACCEPTED
        self.talk(
            lambda client: client.get_workflow_handle(workflow_id).start_update(
                names.UPDATE_ADD_TASKS, page, wait_for_stage=stage
            )
        )

    # --- asking -----------------------------------------------------------------------------------

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Like ``query``, but returns nothing if the database cannot respond now."""
        with contextlib.suppress(
            sqlite_files.driver.OperationalError, pymysql.err.OperationalError
        ):
            return self.query(sql, *values)
        return []

    def task_folders(self, run_id: int) -> list[Path]:
        found = run_folder(self.folder, run_id).glob("*/*/spec.json")
        return sorted(file.parent for file in found)

    def begun(self, folder: Path) -> bool:
        """Return whether the crawler of this task listens to signals, by its log: RUNNING is
        recorded earlier.
        """
        log = folder / "log"
        return log.exists() and "begins" in log.read_text().splitlines()

    def signals(self, folder: Path) -> list[float]:
        """Return when the crawler of this task got stop signals, by its log."""
        log = folder / "log"
        text = log.read_text() if log.exists() else ""
        return [float(at) for at in re.findall(r"^signal \d+ at ([\d.]+)$", text, re.MULTILINE)]

    def closed(self, run_ids: Sequence[int]) -> bool:
        """Return whether these runs have their verdict and everything that follows, and closed
        workflows.
        """
        marks = ", ".join("?" * len(run_ids))
        done = self.rows(
            "SELECT DISTINCT r.run_id, r.owner_workflow_id FROM run_history r JOIN export_record x ON "
            "x.run_id = r.run_id AND x.attempt = r.attempt "
            f"WHERE r.run_id IN ({marks}) AND r.status IN {TERMINAL}",
            *run_ids,
        )
        if len(done) < len(set(run_ids)) or self.open_workflows(
            [workflow_id for _, workflow_id in done]
        ):
            return False
        return not self.listed_as_open(run_ids)

    def transactions(self) -> bool:
        return self.server.transactions() if self.server is not None else super().transactions()


# --- what a stop depends on, and how it breaks ----------------------------------------------------


@contextmanager
def nothing_broken(harness: StopHarness) -> Iterator[None]:
    yield


@contextmanager
def database_down(harness: StopHarness) -> Iterator[None]:
    """MariaDB dies and comes back; with SQLite, the lock of the file is held, so that nobody can
    write.
    """
    if harness.server is not None:
        harness.server.kill()
        try:
            yield
        finally:
            harness.server.restart()
        return
    with contextlib.closing(
        sqlite_files.connect(harness.places.path("database"), timeout=60, isolation_level=None)
    ) as db:
        db.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            db.execute("ROLLBACK")


@contextmanager
def cluster_errs(harness: StopHarness) -> Iterator[None]:
    """The folder of tasks is missing, as if its disk were not mounted."""
    tasks = harness.folder / "cluster" / "tasks"
    away = tasks.with_name("tasks.away")
    tasks.rename(away)
    try:
        yield
        assert not tasks.exists(), "somebody took a missing disk for an empty one"
    finally:
        away.rename(tasks)


@contextmanager
def scheduler_down(harness: StopHarness) -> Iterator[None]:
    """The service hangs; in the stack on MariaDB, it is dead."""
    if harness.server is not None:
        harness.kill("scheduler")
        try:
            yield
        finally:
            harness.bring_back("scheduler")
        return
    harness.freeze("scheduler")
    try:
        yield
    finally:
        harness.thaw("scheduler")


BREAK = {
    "all well": nothing_broken,
    "database down": database_down,
    "cluster answering errors": cluster_errs,
    "scheduler service down": scheduler_down,
}
