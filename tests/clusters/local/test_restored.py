"""The database is restored from a copy while a crawl executes: the next run gets its number, but
not its crawl.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.audits.audit import AuditActivities
from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.activities.cancellation import CancellationActivities
from crawler_lifecycle.activities.deployment import Deploy, DeploymentActivities
from crawler_lifecycle.activities.reconciliation import PollOrder, ReconciliationActivities
from crawler_lifecycle.domain.audits.audit import AuditRules, FindingKind
from crawler_lifecycle.domain.errors import Fenced
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import Fence, Owner, RunRef, TaskRef
from crawler_lifecycle.store.store import Store, open_store
from tests.clusters.local.local_fixture import Fixture, wait_until
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeDirectory, FakeNotifier, FakeScheduler, untried

#: It reports the end of its start, for which it needs its folder.
UP = """
import os, time
open(os.path.join(os.environ["CRAWL_FILES_DIR"], "up"), "w").close()
time.sleep(300)
"""


class Stand:
    """A database file and a local cluster."""

    def __init__(self, folder: Path) -> None:
        self.file, self.copy = folder / "lifecycle.db", folder / "copy.db"
        self.fixture = Fixture(folder)
        self.cluster = self.fixture.cluster
        self.scheduler = FakeScheduler([self.fixture.crawler(UP)], self.cluster)
        make_tables(f"sqlite:///{self.file}")
        self.store = self._open()

    def _open(self) -> Store:
        return open_store(f"sqlite:///{self.file}", pool_size=1)

    def back_up(self) -> None:
        self.store.close()
        shutil.copy(self.file, self.copy)
        self.store = self._open()

    def restore(self) -> None:
        self.store.close()
        for path in self.file.parent.glob("lifecycle.db*"):
            path.unlink()
        shutil.copy(self.copy, self.file)
        self.store = self._open()

    def run(self, request_id: str) -> Fence:
        owner = Owner(f"crawl/demo/{request_id}", request_id)
        handle = self.store.initiation.create_run(RunRequest(crawler="demo"), request_id, owner)
        return Fence(handle.run_id, handle.attempt, owner.first_run_id, handle.run_uid)

    def begun(self) -> tuple[Fence, TaskRef]:
        """An executing crawl of a run that is newer than the copy."""
        self.back_up()
        fence = self.run("before")
        self.deploy(fence)
        ref = self.ref(fence)
        wait_until(lambda: self.phase(fence, ref) is Phase.EXECUTING)
        wait_until(lambda: [*(self.fixture.state / "tasks" / str(fence.run)).rglob("up")])
        return fence, ref

    def deploy(self, fence: Fence) -> None:
        store = self.store
        rows = (store.deployment, store.polls, store.runs, store.tasks, store.events)
        activities = DeploymentActivities(
            *rows, self.cluster, self.scheduler, [FakeNotifier()], untried(store), store.entries
        )
        ActivityEnvironment().run(activities.run_onetime_crawler, Deploy(fence))

    def poll(self, fence: Fence) -> None:
        activities = ReconciliationActivities(
            self.store.polls,
            self.store.tasks,
            self.store.events,
            self.cluster,
            [FakeNotifier()],
            self.store.retries,
        )
        ActivityEnvironment().run(activities.get_history_statuses_to_sync, PollOrder(fence, 60, 60))

    def ref(self, fence: Fence) -> TaskRef:
        [task] = self.store.tasks.list_tasks(fence.run_id)
        return TaskRef(task.task_id, task.task_index, task.attempt, task.cluster_uid)

    def phase(self, fence: Fence, ref: TaskRef) -> Phase:
        return self.cluster.poll(fence.run, [ref]).observations[0].phase


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    yield made
    for task in made.cluster.inventory():
        made.cluster.kill(task.run, TaskRef(task.task_id or 0, task.index, task.attempt, task.uid))
    made.store.close()


def test_the_next_run_of_the_number_does_not_take_the_crawl_of_the_last_one(stand: Stand) -> None:
    former, theirs = stand.begun()

    stand.restore()
    later = stand.run("after")
    assert later.run_id == former.run_id, "the number came again"
    assert later.run_uid != former.run_uid
    stand.poll(later)
    [task] = stand.store.tasks.list_tasks(later.run_id)
    assert (task.status, task.cluster_uid, task.started_at) == ("QUEUED", None, None)
    stand.deploy(later)
    ours = stand.ref(later)
    assert ours.uid not in (None, theirs.uid), "it has a crawl of its own, beside the other"
    wait_until(lambda: stand.phase(later, ours) is Phase.EXECUTING)

    control = CancellationActivities(
        stand.store.stops,
        stand.store.polls,
        stand.store.tasks,
        stand.store.events,
        stand.cluster,
        [FakeNotifier()],
    )
    for gesture in (control.k8_stop_task, control.k8_stop_pod):
        ActivityEnvironment().run(gesture, later)
    stand.cluster.kill(later.run, ours)
    assert stand.phase(former, theirs) is Phase.EXECUTING, (
        "a stop of this run ends no other one's crawl"
    )

    rules = AuditRules(orphan_grace_s=0)
    audit = AuditActivities(stand.store, stand.cluster, FakeDirectory(), rules)
    part = ActivityEnvironment().run(audit.audit_cluster, AuditPage(repair=True))
    [finding] = part.findings
    assert (finding.kind, finding.repaired) == (FindingKind.ORPHAN, False)
    assert former.run_uid in finding.detail
    assert stand.phase(former, theirs) is Phase.EXECUTING
    with pytest.raises(Fenced, match=former.run_uid):
        stand.poll(former)


def test_saved_state_of_the_last_run_of_the_number_is_handed_to_nobody(stand: Stand) -> None:
    former, theirs = stand.begun()
    saved = stand.fixture.state / "state" / str(former.run) / "0"
    (saved / "requests.seen").write_text("of the run before")
    stand.cluster.kill(former.run, theirs)
    # As somebody does who needs disk space.
    shutil.rmtree(stand.fixture.state / "tasks" / str(former.run))

    stand.restore()
    later = stand.run("after")
    stand.deploy(later)
    ours = stand.fixture.state / "state" / str(later.run) / "0"
    assert list(ours.iterdir()) == []
    assert (saved / "requests.seen").exists()


def test_a_process_whose_folder_is_gone_still_says_whose_it_is(stand: Stand) -> None:
    former, theirs = stand.begun()
    folder = stand.fixture.state / "tasks" / str(former.run)
    while folder.exists():  # its supervisor may write a file into the folder during the removal
        shutil.rmtree(folder, ignore_errors=True)
    stand.restore()
    later = stand.run("after")
    stand.deploy(later)
    wait_until(lambda: stand.phase(later, stand.ref(later)) is Phase.EXECUTING)
    # One reading of /proc may see a process that is about to execute another program; audits read
    # again.
    wanted = {(former.run, True), (later.run, False)}
    seen: set[tuple[RunRef, bool]] = set()

    def listed() -> bool:
        seen.clear()
        seen.update((task.run, task.stray) for task in stand.cluster.inventory())
        return seen == wanted

    try:
        wait_until(listed)
    except AssertionError as error:
        raise AssertionError(f"listed are {seen}, not {wanted}") from error
    stand.cluster.kill(later.run, stand.ref(later))
    assert stand.phase(former, theirs) is Phase.EXECUTING
    stand.cluster.kill(former.run, theirs)
    assert stand.phase(former, theirs) in (Phase.ENDED, Phase.GONE)
