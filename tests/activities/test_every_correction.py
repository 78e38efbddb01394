"""Every kind of correction, provoked by the real activities on the fake cluster and with real
processes.

A separate test fails for each kind that nothing here provokes.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.deployment import MainJob, StartReport
from crawler_lifecycle.activities.reconciliation import PollOrder, Sync
from crawler_lifecycle.domain import task as task_rules
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.polls import CorrectionRow, Poll
from crawler_lifecycle.ports.runs import Deployment, Fence, QueuedTask, TaskRef
from tests.activities.harness import CRAWLERS, Crash, Harness
from tests.clusters.local.local_fixture import Fixture, wait_until
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.fakes.services import FakeScheduler
from tests.support.run_refs import run_ref

#: Executes until it finds a file, and then ends normally.
UNTIL_TOLD = """
import os, time
files = os.environ["CRAWL_FILES_DIR"]
open(files + "/ready", "w").close()
while not os.path.exists(files + "/end"):
    time.sleep(0.01)
"""


class Hands(Protocol):
    """What can happen to the only task of run 1 from outside."""

    def ready(self) -> None: ...
    def kill(self) -> None: ...
    def remove(self) -> None: ...
    def usurp(self) -> None: ...
    def finish(self) -> None: ...
    def later(self, seconds: float) -> None: ...


class FakeHands:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        harness.cluster.behaviour = Behaviour(executes=None)

    def ready(self) -> None:
        self.harness.forward(0.5)

    def kill(self) -> None:
        self.harness.cluster.end_now(1)

    def remove(self) -> None:
        self.harness.cluster.vanish(1)

    def usurp(self) -> None:
        self.harness.cluster._tasks[1, 0, 1].uid = "uid-of-another"

    def finish(self) -> None:
        self.harness.cluster.end_now(1, end=FINISHED)

    def later(self, seconds: float) -> None:
        self.harness.forward(seconds)


class LocalHands:
    """Real processes under the real local cluster, in real time."""

    def __init__(self, harness: Harness, fixture: Fixture) -> None:
        self.harness, self.fixture = harness, fixture

    def ready(self) -> None:
        wait_until((self.fixture.folder() / "files/ready").exists)

    def kill(self) -> None:
        self.fixture.runner().send(signal.SIGKILL)
        wait_until((self.fixture.folder() / "end.json").exists)

    def remove(self) -> None:
        self.ready()
        for victim in (
            self.fixture.supervisor(),
            self.fixture.runner(),
            self.fixture.crawler_process(),
        ):
            victim.send(signal.SIGKILL)  # the last of them may have ended with the previous one
        wait_until(lambda: not self.fixture.running())
        shutil.rmtree(self.fixture.folder())
        # The disk of another cluster, without a trace of ours.
        shutil.rmtree(self.fixture.state / "started")

    def usurp(self) -> None:
        self.remove()
        call = self.harness.scheduler.calls[0]
        crawler = self.harness.scheduler.catalogue.get(call.crawler)
        assert crawler is not None
        self.harness.scheduler.deployer.deploy(
            replace(call, expires_at=self.harness.now + timedelta(minutes=1)), crawler
        )
        self.ready()

    def finish(self) -> None:
        (self.fixture.folder() / "files/end").touch()
        wait_until((self.fixture.folder() / "end.json").exists)

    def later(self, seconds: float) -> None:
        time.sleep(0.05)


class LocalHarness(Harness):
    """The same harness over processes, in real time."""

    def clock(self) -> datetime:
        self.now = datetime.now(UTC)
        return self.now


@pytest.fixture(params=["fake", "local"])
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Harness, Hands]]:
    """A harness, and the means to change its cluster from outside."""
    if request.param == "fake":
        harness = Harness.over(tmp_path / "fake")
        yield harness, FakeHands(harness)
        harness.close()
        return
    monkeypatch.setattr(task_rules, "LATE_TOLERANCE_SECONDS", 0.0)
    harness = LocalHarness.over(tmp_path / "local")
    fixture = Fixture(tmp_path)
    fixture.folder = lambda index=0: next((fixture.state / "tasks").glob(f"1-*/{index}/1"))  # type: ignore[method-assign]
    command = [sys.executable, "-I", "-S", "-c", UNTIL_TOLD]
    harness.cluster = fixture.cluster  # type: ignore[assignment]
    harness.scheduler = FakeScheduler(
        [CrawlerDefinition("books", CrawlerKind.COMMAND, command=command)], fixture.cluster
    )
    yield harness, LocalHands(harness, fixture)
    harness.close()
    fixture.close()


# --- the ways to a correction ---------------------------------------------------------------------


def executing(harness: Harness, hands: Hands, due_s: float = 60) -> Fence:
    """A run whose task was seen executing; its next poll is due in this number of seconds."""
    fence = harness.deployed()
    hands.ready()
    for _ in range(3000):
        try:
            harness.call("get_main_job_status", MainJob(fence, 0.05))
            break
        except ApplicationError:
            time.sleep(0.02)
    now = harness.clock()
    harness.call("update_run_started", StartReport(fence, now, now + timedelta(seconds=due_s)))
    assert harness.statuses() == ["RUNNING"]
    return fence


def poll(harness: Harness, fence: Fence, source: str = "look", resumed: bool = False) -> None:
    """Execute one round of polls without a pause."""
    order = PollOrder(fence, gap_s=0, next_gap_s=120, source=source, resumed=resumed)
    answer = harness.call("get_history_statuses_to_sync", order)
    harness.call("get_bulk_task_history_data", fence)
    harness.call("reconcile_tasks", fence)
    harness.call("sync_statuses", Sync(fence, source, answer.observed_at))


def misled(harness: Harness, fence: Fence) -> None:
    """Execute a round in which the cluster returns stale data: the task appears to be gone."""
    truthful = harness.cluster.poll

    def lie(run_id: int, tasks: list[TaskRef]) -> Poll:
        seen = [
            Observation(t.index, t.attempt, Phase.GONE, harness.clock(), uid=t.uid) for t in tasks
        ]
        return Poll(harness.clock(), 0.0, seen)

    harness.cluster.poll = lie  # type: ignore[assignment, method-assign]
    poll(harness, fence)
    harness.cluster.poll = truthful  # type: ignore[method-assign]
    assert harness.statuses() == ["LOST"]


def killed(harness: Harness, hands: Hands) -> None:
    fence = executing(harness, hands)
    hands.kill()
    poll(harness, fence)


def vanished(harness: Harness, hands: Hands) -> None:
    fence = executing(harness, hands)
    hands.remove()
    poll(harness, fence)


def not_ours(harness: Harness, hands: Hands) -> None:
    fence = executing(harness, hands)
    hands.usurp()
    poll(harness, fence)


def never_existed(harness: Harness, hands: Hands) -> None:
    fence = harness.deployed()
    hands.remove()
    poll(harness, fence)


def late(harness: Harness, hands: Hands) -> None:
    fence = executing(harness, hands, due_s=-30)
    hands.finish()
    hands.later(10)
    poll(harness, fence)


def repair(harness: Harness, hands: Hands) -> None:
    executing(harness, hands, due_s=-30)
    hands.finish()
    hands.later(10)
    poll(harness, harness.resumed(), "resume", resumed=True)


def still_alive(harness: Harness, hands: Hands) -> None:
    misled(harness, executing(harness, hands))
    hands.later(10)
    harness.audited("audit_cluster")


def late_evidence(harness: Harness, hands: Hands) -> None:
    fence = executing(harness, hands)
    misled(harness, fence)
    harness.call("update_run_status", fence)
    hands.finish()
    hands.later(10)
    harness.audited("audit_ended")


#: Kind -> how it happens, what was believed, what may be true, and what finds it.
WAYS: dict[CorrectionKind, tuple[Callable[[Harness, Hands], None], str, set[str], str]] = {
    CorrectionKind.KILLED: (killed, "RUNNING", {"FAILED"}, "look"),
    CorrectionKind.VANISHED: (vanished, "RUNNING", {"LOST"}, "look"),
    CorrectionKind.NOT_OURS: (not_ours, "RUNNING", {"LOST"}, "look"),
    CorrectionKind.NEVER_EXISTED: (never_existed, "PENDING", {"LOST"}, "look"),
    CorrectionKind.LATE: (late, "RUNNING", {"SUCCEEDED", "FAILED"}, "look"),
    CorrectionKind.REPAIR: (repair, "RUNNING", {"SUCCEEDED", "FAILED"}, "resume"),
    CorrectionKind.STILL_ALIVE: (still_alive, "LOST", {"RUNNING"}, "sweep"),
    CorrectionKind.LATE_EVIDENCE: (late_evidence, "LOST", {"SUCCEEDED", "FAILED"}, "sweep"),
}
#: Those that change a status; the others are recorded next to an end, which never changes.
FIXES = set(CorrectionKind) - {CorrectionKind.STILL_ALIVE, CorrectionKind.LATE_EVIDENCE}


def test_every_kind_is_provoked() -> None:
    assert set(WAYS) == set(CorrectionKind)


def of_kind(harness: Harness, kind: CorrectionKind) -> CorrectionRow:
    [row] = harness.store.corrections.list_corrections(kind=kind)
    return row


@pytest.mark.parametrize("kind", CorrectionKind)
def test_it_is_provoked_and_written_with_the_fix(
    stage: tuple[Harness, Hands], kind: CorrectionKind
) -> None:
    harness, hands = stage
    way, believed, truths, found_by = WAYS[kind]
    began = harness.clock()
    way(harness, hands)
    row = of_kind(harness, kind)
    assert (row.believed, row.found_by, row.attempt) == (believed, found_by, 1)
    assert row.truth in truths
    [task] = harness.tasks()
    assert row.task_id == task.task_id
    assert row.evidence
    # The times: it was believed before it was found, and was untrue no longer than that.
    assert row.believed_since is not None
    assert began <= row.believed_since <= row.created_at
    assert row.truth_since is None or row.truth_since <= row.created_at
    assert row.lag_ms is not None
    assert 0 <= row.lag_ms <= (row.created_at - row.believed_since) / timedelta(milliseconds=1) + 1
    if kind in FIXES:
        [fix] = [
            t for t in harness.store.runs.transitions(1) if t.task_id and t.to_status == row.truth
        ]
        assert (fix.from_status, fix.committed_at, fix.source) == (
            believed,
            row.created_at,
            found_by,
        )
        assert str(task.status) == row.truth
    else:
        assert str(task.status) == believed, "an end never changes"
        assert [
            t for t in harness.store.runs.transitions(1) if t.committed_at == row.created_at
        ] == []
    others = {other.kind for other in harness.store.corrections.list_corrections()} - {kind}
    assert others <= ({"vanished"} if believed == "LOST" else set())


@pytest.mark.parametrize("kind", CorrectionKind)
def test_polling_and_auditing_again_writes_nothing_more(
    new_harness: Callable[[], Harness], kind: CorrectionKind
) -> None:
    harness = new_harness()
    hands = FakeHands(harness)
    WAYS[kind][0](harness, hands)
    before = harness.store.corrections.list_corrections()
    row = harness.row()
    fence = Fence(1, row.attempt, row.owner_run_id or "", row.run_uid)
    for _ in range(2):
        hands.later(100)
        poll(harness, fence)
        for what in ("audit_cluster", "audit_ended"):
            harness.audited(what)
    assert [c for c in harness.store.corrections.list_corrections() if c.kind == kind] == [
        c for c in before if c.kind == kind
    ]


def test_another_object_under_the_name_is_told_and_left_alone(stage: tuple[Harness, Hands]) -> None:
    harness, hands = stage
    not_ours(harness, hands)
    assert harness.statuses() == ["LOST"]
    for _ in range(2):
        hands.later(100)
        part = harness.audited("audit_cluster")
        assert (part.found, part.repaired) == ({"orphan": 1}, {})
        [finding] = part.findings
        assert (finding.task_id, finding.due_at) == (harness.tasks()[0].task_id, None)
        assert "(LOST) belongs to object" in finding.detail
        assert (finding.repair or "").startswith("not changed")
    assert [seen.executing for seen in harness.cluster.inventory()] == [True]
    assert [row.kind for row in harness.store.corrections.list_corrections()] == ["not_ours"]


def test_a_crawl_under_the_name_of_a_refused_task_is_left_alone(
    new_harness: Callable[[], Harness],
) -> None:
    """Another installation counts its runs in the same namespace."""
    harness = new_harness()
    fence = harness.created()
    harness.cluster.behaviour = Behaviour(executes=None)
    soon = harness.now + timedelta(minutes=1)
    theirs = Deployment(
        run_ref(1), 1, "books", {}, {}, [QueuedTask(1, 0, {})], Resources(), Limits(), soon
    )
    harness.cluster.deploy(theirs, CRAWLERS[0])
    harness.store.deployment.refuse_queued(
        fence, "a Job of this name already exists and is not ours"
    )
    part = harness.audited("audit_cluster")
    assert (part.found, part.repaired, part.findings[0].due_at) == ({"orphan": 1}, {}, None)
    assert "(FAILED) belongs to no object" in part.findings[0].detail
    assert harness.cluster.alive() == [(1, 0, 1)]
    assert harness.store.corrections.list_corrections() == []


@pytest.mark.parametrize("kind", sorted(FIXES))
def test_fix_and_correction_are_there_together_or_not_at_all(
    new_harness: Callable[[], Harness], kind: CorrectionKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the last statement of the transaction fails, neither is recorded; the second try records
    both.
    """
    from crawler_lifecycle.store.runs.unit import Unit

    harness = new_harness()
    hands = FakeHands(harness)
    announce = Unit.announce

    def cut(unit: Unit) -> None:
        if unit.conn.exec_driver_sql("SELECT COUNT(*) FROM correction").scalar_one():
            raise Crash("just before the commit")
        announce(unit)

    with monkeypatch.context() as broken:
        broken.setattr(Unit, "announce", cut)
        with pytest.raises(Crash):
            WAYS[kind][0](harness, hands)
    assert harness.store.corrections.list_corrections() == []
    believed = WAYS[kind][1]
    assert harness.statuses() == [believed]
    row = harness.row()
    harness.call(
        "sync_statuses",
        Sync(Fence(1, row.attempt, row.owner_run_id or "", row.run_uid), WAYS[kind][3]),
    )
    assert of_kind(harness, kind).believed == believed
    assert harness.statuses() == [of_kind(harness, kind).truth]


def test_a_run_that_lost_its_workflow_is_a_repair(new_harness: Callable[[], Harness]) -> None:
    harness = new_harness()
    hands = FakeHands(harness)
    fence = executing(harness, hands)
    lost = harness.clock()
    harness.directory.open.clear()
    harness.directory.closed[harness.row().owner_workflow_id or ""] = lost
    hands.later(90)
    harness.audited("audit_runs")
    row = of_kind(harness, CorrectionKind.REPAIR)
    assert (row.task_id, row.believed, row.truth, row.found_by) == (
        None,
        "PROCESSING",
        "no workflow",
        "sweep",
    )
    assert (row.truth_since, row.lag_ms) == (lost, 90_000)
    assert harness.row().status == "PROCESSING"
    [(request, repairing)] = harness.directory.begun.values()
    assert (request.run_id, repairing) == (fence.run_id, True)


def test_what_ends_as_it_should_is_no_correction(stage: tuple[Harness, Hands]) -> None:
    harness, hands = stage
    fence = executing(harness, hands)
    hands.finish()
    poll(harness, fence)
    harness.call("update_run_status", fence)
    for what in ("audit_cluster", "audit_ended", "audit_runs"):
        harness.audited(what)
    assert harness.store.corrections.list_corrections() == []
