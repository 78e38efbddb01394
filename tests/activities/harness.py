"""A harness for one activity: the real store (SQLite), fakes of everything else, and a stopped
clock.
"""

from __future__ import annotations

import copy
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle import compose
from crawler_lifecycle.activities.audits.audit import AuditActivities
from crawler_lifecycle.activities.audits.settling import AuditPage, AuditPart
from crawler_lifecycle.activities.cancellation import HeardStop, RecordStop
from crawler_lifecycle.activities.deployment import Deploy, MainJob, StartReport
from crawler_lifecycle.activities.initiation import AddWorkflowId, CreateHistory
from crawler_lifecycle.activities.reconciliation import PollOrder, Sync
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.coverage import OnViolation
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.run import ChildTask, RunRequest, StopIntent
from crawler_lifecycle.features.managers.activities.cycles import CycleOrder
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.managers import GeneratorCrawlManager
from crawler_lifecycle.ports.runs import Fence, Owner, RunRow, TaskRef, TaskRow
from crawler_lifecycle.sqlite_files import connect
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from tests.support.databases import make_tables
from tests.support.fakes.cluster import Behaviour, FakeCluster
from tests.support.fakes.packages import FakeCodeStore, FakeInspector
from tests.support.fakes.services import (
    FakeArchive,
    FakeCatalogue,
    FakeDirectory,
    FakeNotifier,
    FakeScheduler,
    FakeSink,
    FakeWebhooks,
)
from tests.support.fakes.user_code import FakeFunctions, FakeHosts
from tests.support.run_refs import run_ref
from tests.support.store_ports import behind

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
AT_ONCE = AuditRules(grace_s=0, orphan_grace_s=0, start_grace_s=0, record_grace_s=0, resend_s=0)
OWNER = Owner("crawl/books/r1", "chain-1")
OTHER = Owner("crawl/books/other", "chain-2")
CRAWLERS = [
    CrawlerDefinition(
        "books",
        args={"shelf": Argument(default="a")},
        resumable=True,
        limits={"run_timeout_s": 7200.0},
    ),
    CrawlerDefinition("shops", args={"shelf": Argument(default="a")}, partial_ok=True),
    CrawlerDefinition(
        "prices",
        args={"shelf": Argument(default="a")},
        expect={"price": 0.95},
        on_violation=OnViolation.FAIL,
    ),
]

MANAGER = Owner("manager/shelves/f", "chain-m")


class Shelves(GeneratorCrawlManager):
    """A manager with three jobs, of which two may run at once."""

    name = "shelves"
    spider = "books"
    default_max_jobs = 2
    loop_mode = 60

    def set_parameters_gen(self) -> Iterator[dict[str, str]]:
        for shelf in "abc":
            yield {"shelf": shelf}


#: Everything in a harness except its database comes from here.
FAKES = "tests.support.fakes."
LOCKS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}
#: Table -> its rows, in order of their keys.
Tables = dict[str, list[dict[str, Any]]]
#: Called between an activity and its ports, with the name of each call, which it executes.
Through = Callable[[str, Callable[[], Any]], Any]
#: The statements that read them. Building these each time took longer than reading.
ALL_ROWS = {
    table.name: select(table).order_by(*table.primary_key) for table in metadata.sorted_tables
}


class Crash(BaseException):
    """The worker died here. Code of ours cannot catch it with ``except Exception``, as with a real
    crash.
    """


class Proxy:
    """A port that passes every call through ``through``."""

    def __init__(self, name: str, port: Any, through: Through) -> None:
        self._name, self._port, self._through = name, port, through

    def __getattr__(self, method: str) -> Any:
        value = getattr(self._port, method)
        if not callable(value):
            return value
        return lambda *args, **more: self._through(
            f"{self._name}.{method}", lambda: value(*args, **more)
        )


@dataclass
class Breaker:
    """Crashes directly before or after call number ``at`` (from 0) to any port; with ``None``, it
    never crashes.
    """

    at: int | None = None
    after: bool = False
    calls: list[str] = field(default_factory=list)

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        mine = len(self.calls) == self.at
        self.calls.append(name)
        if mine and not self.after:
            raise Crash(f"before {name}")
        try:
            return call()
        finally:
            if mine:
                raise Crash(f"after {name}")


class Harness:
    """Runs that the activities themselves bring to a state, and everything that tests compare."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.now = START
        self.file, self.url = file, f"sqlite:///{file}"
        self.folder = folder
        self.store: Store = open_store(self.url, pool_size=2, clock=self.clock)
        self.runs_made = 0
        self.store.initiation.new_uid = self._new_uid  # the same in every harness
        self.cluster = FakeCluster(clock=self.clock, behaviour=Behaviour(executes=20))
        self.scheduler = FakeScheduler(CRAWLERS, self.cluster)
        self.notifier, self.sink, self.archive = FakeNotifier(), FakeSink(), FakeArchive()
        self.more_notifiers: list[FakeNotifier] = []
        self.directory = FakeDirectory()
        self.webhooks = FakeWebhooks()
        self.shift_s = 0.0  # of a webhook: one page
        self.catalogue = FakeCatalogue(CRAWLERS)
        self.hosts = FakeHosts({"shelves:Shelves": Shelves})
        self.functions = FakeFunctions()
        self.code = FakeCodeStore()
        self.inspector = FakeInspector()

    @classmethod
    def over(cls, folder: Path) -> Harness:
        """A new harness on an empty database."""
        folder.mkdir(parents=True)
        make_tables(f"sqlite:///{folder}/state.db")
        return cls(folder / "state.db", folder)

    def twin(self, folder: Path) -> Harness:
        """Return a copy of the harness with the committed contents of its database and the state of
        its fakes.
        """
        folder.mkdir(parents=True)
        file = folder / "state.db"
        with (
            closing(connect(self.file)) as source,
            closing(connect(file)) as copied,
        ):
            copied.execute("PRAGMA synchronous = OFF")
            source.backup(copied)
        twin = Harness(file, folder)
        twin.now, twin.runs_made = self.now, self.runs_made
        own = {
            name: part
            for name, part in vars(self).items()
            if type(part).__module__.startswith(FAKES)
        }
        known: dict[int, Any] = {id(self): twin}
        for lock in (
            value for part in own.values() for value in vars(part).values() if type(value) in LOCKS
        ):
            known[id(lock)] = LOCKS[type(lock)]()
        vars(twin).update(copy.deepcopy(own, known))
        for mine, its in (
            (self.store.managers, twin.store.managers),
            (self.store.graphs, twin.store.graphs),
        ):
            vars(its).update(
                {name: value for name, value in vars(mine).items() if name == "new_uid"}
            )
        return twin

    def close(self) -> None:
        self.store.close()

    def _new_uid(self) -> str:
        self.runs_made += 1
        return run_ref(self.runs_made).uid

    def clock(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # --- calling ----------------------------------------------------------------------------------

    def activities(self, through: Through | None = None) -> dict[str, Callable[..., Any]]:
        """Return every activity as a worker has it; every call to a port passes through
        ``through``.
        """
        names = (
            "cluster",
            "cluster",
            "catalogue",
            "scheduler",
            "notifier",
            "sink",
            "archive",
            "directory",
        )
        wrapped: list[Any] = [
            Proxy(n, getattr(self, n), through) if through else getattr(self, n) for n in names
        ]
        wrapped[4] = [wrapped[4], *self.more_notifiers]
        store = (
            behind(self.store, lambda port: Proxy("store", port, through))
            if through
            else self.store
        )
        hosts: Any = Proxy("hosts", self.hosts, through) if through else self.hosts
        functions: Any = Proxy("functions", self.functions, through) if through else self.functions
        hooks: Any = Proxy("webhooks", self.webhooks, through) if through else self.webhooks
        parts = compose.Parts(store, *wrapped, hosts=hosts, functions=functions, webhooks=hooks)
        parts.code = Proxy("code", self.code, through) if through else self.code
        parts.inspector = Proxy("inspector", self.inspector, through) if through else self.inspector
        found = compose.all_activities(parts)
        for method in found.values():
            owner = method.__self__  # type: ignore[attr-defined]
            if hasattr(owner, "clock"):
                owner.clock = self.clock
            if hasattr(owner, "shift_s"):
                owner.shift_s = self.shift_s
        return found

    def call(self, name: str, argument: Any, through: Through | None = None) -> Any:
        """Execute one activity as Temporal would."""
        return ActivityEnvironment().run(self.activities(through)[name], argument)

    def audited(self, what: str) -> AuditPart:
        """Execute one page of an audit that repairs at once."""
        audit = AuditActivities(self.store, self.cluster, self.directory, AT_ONCE, self.clock)
        part: AuditPart = ActivityEnvironment().run(getattr(audit, what), AuditPage(repair=True))
        return part

    # --- a run in a given state -------------------------------------------------------------------

    def order(
        self, tasks: int | None = None, request_id: str = "r1", owner: Owner = OWNER, **more: Any
    ) -> CreateHistory:
        """Input of ``create_history_id`` for a new run."""
        children = None if tasks is None else [ChildTask({"shelf": str(n)}) for n in range(tasks)]
        request = RunRequest(**{"crawler": "books", "tasks": children, **more})
        return CreateHistory(request, request_id, owner)

    def created(self, tasks: int | None = None, **more: Any) -> Fence:
        """A run for which nothing has been deployed."""
        order = self.order(tasks, **more)
        handle = self.call("create_history_id", order)
        self.call(
            "add_workflow_id", AddWorkflowId(handle.run_id, handle.attempt, order.owner.workflow_id)
        )
        return Fence(handle.run_id, handle.attempt, order.owner.first_run_id, handle.run_uid)

    def deployed(
        self, tasks: int | None = None, max_parallel: int | None = None, **more: Any
    ) -> Fence:
        """A run whose first wave is PENDING."""
        fence = self.created(tasks, **more)
        self.call("run_onetime_crawler", Deploy(fence, max_parallel))
        return fence

    def started(
        self, tasks: int | None = None, max_parallel: int | None = None, **more: Any
    ) -> Fence:
        """A run that is PROCESSING and whose deployed tasks are RUNNING."""
        fence = self.deployed(tasks, max_parallel, **more)
        self.forward(0.5)
        self.call("get_main_job_status", MainJob(fence, 6))
        self.call(
            "update_run_started", StartReport(fence, self.now, self.now + timedelta(minutes=1))
        )
        return fence

    def stopping(
        self, tasks: int | None = None, max_parallel: int | None = None, **more: Any
    ) -> Fence:
        """A run whose stop was requested by a person and recorded, with no further effect."""
        fence = self.started(tasks, max_parallel, **more)
        self.forward(1)
        for heard in self.stop(fence).heard:
            self.store.stops.record_stop(fence.run_id, heard.intent, heard.request_id, fence)
        return fence

    def stop(self, fence: Fence, request_id: str | None = "s1", **more: Any) -> RecordStop:
        """Input of the activities that record a stop."""
        intent = StopIntent(self.now, **{"requested_by": "ada", "reason": "enough", **more})
        return RecordStop(fence, [HeardStop(intent, request_id)])

    def poll(self, fence: Fence, source: str = "look") -> PollOrder:
        return PollOrder(fence, gap_s=60, next_gap_s=120, source=source)

    def round(self, fence: Fence) -> None:
        """One whole round of reconciliation."""
        self.call("get_history_statuses_to_sync", self.poll(fence))
        self.call("get_bulk_task_history_data", fence)
        self.call("reconcile_tasks", fence)
        self.call("sync_statuses", Sync(fence))

    def ended(self, tasks: int | None = None, **more: Any) -> Fence:
        """A run without live tasks and without a verdict."""
        fence = self.started(tasks, **more)
        self.forward(30)
        self.round(fence)
        return fence

    def judged(self, tasks: int | None = None, **more: Any) -> Fence:
        """A run with its verdict."""
        fence = self.ended(tasks, **more)
        self.call("update_run_status", fence)
        return fence

    def resumed(self, run_id: int = 1, owner: Owner = OTHER, **more: Any) -> Fence:
        """A run that another workflow has taken over; its tasks have not been queued again."""
        handle = self.call(
            "create_history_id", self.order(None, "", owner, crawler=None, run_id=run_id, **more)
        )
        return Fence(run_id, handle.attempt, owner.first_run_id, handle.run_uid)

    def managed(self) -> CycleOrder:
        """A manager that its workflow has claimed, and that no process has loaded."""
        self.store.managers.new_uid = lambda: run_ref(1).uid
        row, _ = self.store.managers.reserve_manager(NewManager("shelves", "f", "shelves:Shelves"))
        self.store.managers.claim_manager(row.manager_id, MANAGER)
        return CycleOrder(row.manager_id, row.attempt, MANAGER.first_run_id)

    def files(self, *indexes: int) -> None:
        """Give tasks of run 1 supporting files."""
        for index in indexes:
            path = self.folder / f"files-{index}"
            path.mkdir()
            (path / "items.jsonl").write_text(f'{{"of": {index}}}\n')
            self.cluster.folders[1, index] = path

    # --- reading ----------------------------------------------------------------------------------

    def row(self, run_id: int = 1) -> RunRow:
        row = self.store.runs.get_run(run_id)
        assert row is not None
        return row

    def tasks(self, run_id: int = 1) -> list[TaskRow]:
        return self.store.tasks.list_tasks(run_id)

    def statuses(self, run_id: int = 1) -> list[str]:
        return [str(t.status) for t in self.tasks(run_id)]

    def ref(self, index: int = 0) -> TaskRef:
        task = self.tasks()[index]
        return TaskRef(task.task_id, task.task_index, task.attempt, task.cluster_uid)

    def tables(self) -> Tables:
        """Return all tables, with uids of the cluster replaced so that harnesses can be compared."""
        with self.store.database.reading() as conn:
            found = {
                name: [dict(row) for row in conn.execute(rows).mappings()]
                for name, rows in ALL_ROWS.items()
            }
        text = json.dumps(found, default=str)
        for key, task in self.cluster._tasks.items():
            text = text.replace(task.uid, f"uid-of-{key}")
        tables: Tables = json.loads(text)
        for row in tables["export_record"]:
            row["sha256"] = bool(row["sha256"])  # a zip carries the wall clock's time
        return tables

    def outside(self) -> dict[str, object]:
        """Return the external state as its receivers see it, with messages by their id."""
        self.cluster.alive()  # whatever is due by now happens
        return {
            "cluster": {
                key: (task.signals, task.stopped_at, task.ended, task.created_at)
                for key, task in self.cluster._tasks.items()
            },
            "pushed": {e.seq: (e.type, dict(e.body)) for e in self.notifier.pushed},
            "hooked": {e.seq: (e.type, dict(e.body)) for e in self.webhooks.sent},
            "sent": {e.seq: (e.type, dict(e.body)) for e in self.sink.sent},
            "begun": dict(self.directory.begun),
            "ordered": dict(self.directory.delivered),
            "terminated": dict(self.directory.ended),
            "archives": {url: _members(content) for url, content in self.archive.stored.items()},
        }


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def differences(before: Tables, after: Tables) -> set[str]:
    """Return ``table`` where rows were added or removed, and ``table.column`` where values changed."""
    found = set()
    for name, rows in after.items():
        if len(rows) != len(before[name]):
            found.add(name)
            continue
        for old, new in zip(before[name], rows, strict=True):
            found |= {f"{name}.{column}" for column in new if new[column] != old[column]}
    return found
