"""The common parts of the benchmarks of the web UI: servers, a browser, and runs that change."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from playwright.async_api import Browser

from benchmarks.gateway import Gateway
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.base.outbox import insert_event
from crawler_lifecycle.store.runs.tables import run_history, task_history
from crawler_lifecycle.store.store import Store
from tests.support.filling import fill_tasks
from tests.support.mariadb import MariaDb

OWNER = Owner("benchmark", "benchmark")


@dataclass
class UiHarness:
    """Servers and a browser."""

    folder: Path
    store: Store
    server: MariaDb
    gateway: Gateway
    browser: Browser

    def statements(self) -> int:
        """Return the number of SELECTs that the database has executed."""
        ((_, count),) = self.server.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")
        return int(str(count))

    def new_run(self) -> Fence:
        """Create a run as if a workflow owned it."""
        run = self.store.initiation.create_run(
            RunRequest(crawler="books"), f"page-{time.time_ns()}", OWNER
        )
        return Fence(run.run_id, run.attempt, OWNER.first_run_id, run.run_uid)

    def new_large_run(self, tasks: int) -> Fence:
        """Do the same with this number of tasks, all of which execute."""
        run = self.new_run()
        with self.store.database.writing() as connection:
            connection.execute(sa.delete(task_history).where(task_history.c.run_id == run.run_id))
            fill_tasks(connection, run.run_id, 1, tasks, "RUNNING")
        return run


@dataclass
class Writer:
    """Changes runs as a worker does: the row and its event in one commit."""

    store: Store
    runs: list[Fence]
    committed: dict[tuple[int, int], float] = field(default_factory=dict)
    """By run and its pages: when that was committed."""
    written: int = 0

    async def write(self, seconds: float, rate: float) -> None:
        """Make this number of changes a second for this time, each to the next run."""
        began = time.perf_counter()
        for n in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, began + n / rate - time.perf_counter()))
            await asyncio.to_thread(self.change)

    def change(self) -> None:
        """Add one page to the next run."""
        self.written += 1
        fence, pages, now = (
            self.runs[self.written % len(self.runs)],
            1_000_000 + self.written,
            datetime.now(UTC),
        )
        key = f"told-{time.time_ns()}"
        moved = sa.update(run_history).where(run_history.c.run_id == fence.run_id)
        with self.store.database.writing() as connection:
            connection.execute(moved.values(pages=pages, updated_at=now, last_progress_at=now))
            about = ("benchmark.told", run_subject(fence.run_id), fence.run_uid)
            insert_event(connection, now, *about, {"n": pages}, run_id=fence.run_id, event_key=key)
        self.committed[fence.run_id, pages] = time.time()
