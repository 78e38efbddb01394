"""Helpers for tests of the store: a clock that they set, and shortcuts to a run in a given state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from crawler_lifecycle.domain.coverage import Coverage, ExpectedCoverage
from crawler_lifecycle.domain.run import ChildTask, RunRequest, RunStatus, StopIntent, verdict
from crawler_lifecycle.domain.task import (
    Counters,
    End,
    Observation,
    Phase,
    TaskState,
    TaskStatus,
    reconcile,
)
from crawler_lifecycle.ports.polls import Poll, PollReport, TaskFinding
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner, RunRow
from crawler_lifecycle.store.diagnosis import sqlite_file
from crawler_lifecycle.store.store import Store, open_store
from tests.support.databases import make_tables

START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
OWNER = Owner("crawl/services/r1", "chain-1")
OTHER = Owner("crawl/services/other", "chain-2")


@contextmanager
def opened(url: str, **options: Any) -> Iterator[Store]:
    """Return a store on this database, with its tables."""
    if file := sqlite_file(url):
        file.parent.mkdir(exist_ok=True)
    make_tables(url)
    with closing(open_store(url, **options)) as store:
        yield store


NOTHING_EXPECTED = ExpectedCoverage()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


def request(tasks: int | None = None, crawler: str = "services", **fields: object) -> RunRequest:
    """Return a request; with ``tasks``, one for a multi-process run."""
    children = None if tasks is None else [ChildTask({"part": str(n)}) for n in range(tasks)]
    return RunRequest(crawler=crawler, tasks=children, **fields)  # type: ignore[arg-type]


def seen(task: TaskState, phase: Phase, at: datetime, **fields: object) -> Observation:
    return Observation(task.index, task.attempt, phase, at, **fields)  # type: ignore[arg-type]


def closed(_: Owner) -> bool:
    return False


def still_open(_: Owner) -> bool:
    return True


def never_asked(owner: Owner) -> bool:
    raise AssertionError(f"asked whether {owner} is open")


@dataclass
class Harness:
    """A store, its clock, and runs."""

    store: Store
    clock: Clock

    def run(
        self,
        request_id: str = "r1",
        tasks: int | None = None,
        owner: Owner = OWNER,
        **fields: object,
    ) -> Fence:
        """A new run for which nothing has been deployed."""
        handle = self.store.initiation.create_run(request(tasks, **fields), request_id, owner)
        return Fence(handle.run_id, handle.attempt, owner.first_run_id, handle.run_uid)

    def deployed(self, request_id: str = "r1", tasks: int | None = None, **fields: object) -> Fence:
        """A run all of whose tasks are PENDING."""
        fence = self.run(request_id, tasks, **fields)
        self.deploy(fence)
        return fence

    def executing(
        self, request_id: str = "r1", tasks: int | None = None, **fields: object
    ) -> Fence:
        """A run that has started, all of whose tasks are RUNNING."""
        fence = self.deployed(request_id, tasks, **fields)
        self.execute(fence)
        return fence

    def begin(self, fence: Fence) -> None:
        """Deploy what is queued, and record that it executes."""
        self.deploy(fence)
        self.execute(fence)

    def deploy(self, fence: Fence, limit: int = 100_000, state: str = "created") -> list[int]:
        """Offer tasks and record the responses. Return the indexes that were offered."""
        offered, _ = self.store.deployment.offer_tasks(
            fence, limit, None, self.clock.now + timedelta(seconds=25)
        )
        name, uid = f"crawl-{fence.run_id}-{{}}-{fence.attempt}", f"uid-{fence.attempt}-{{}}"
        answers = [
            DeployedTask(t.index, state, name.format(t.index), uid.format(t.index)) for t in offered
        ]
        self.store.deployment.record_deployed(fence, "local", offered, answers, self.clock.now)
        return [task.index for task in offered]

    def poll(
        self, fence: Fence, observations: Sequence[Observation], source: str = "look"
    ) -> PollReport:
        """Compare, stage and apply a poll, as the activities do."""
        report = self.stage(fence, observations)
        self.store.polls.apply_details(fence)
        self.store.polls.apply_findings(fence, source)
        return report

    def stage(self, fence: Fence, observations: Sequence[Observation]) -> PollReport:
        state = self.store.polls.found_state(fence)
        tasks = {(task.index, task.attempt): task for task in state.tasks}
        findings = []
        for observation in observations:
            task = tasks.get((observation.index, observation.attempt))
            change = task and reconcile(task, observation, state.stop, due_at=self.clock.now)
            if change:
                findings.append(TaskFinding(change, observation))
        poll = Poll(self.clock.now, 0.1, list(observations))
        return self.store.polls.record_poll(
            fence, poll, findings, self.clock.now + timedelta(minutes=1)
        )

    def execute(self, fence: Fence) -> None:
        """Record every unsettled task as executing, and start the run."""
        tasks = self.store.polls.found_state(fence).tasks
        self.poll(
            fence,
            [
                seen(t, Phase.EXECUTING, self.clock.now, changed_at=self.clock.now, uid=t.uid)
                for t in tasks
            ],
        )
        self.store.deployment.mark_started(fence, self.clock.now)

    def finish(self, fence: Fence, failed: Sequence[int] = ()) -> RunRow:
        """Record the end of every unsettled task, and judge the run."""
        self.see_ends(fence, failed)
        return self.end(fence)

    def see_ends(self, fence: Fence, failed: Sequence[int] = ()) -> None:
        """Record the end of every unsettled task."""
        now, counters = self.clock.now, Counters(10, 5, 0, 1000)
        ends = {True: bad_end(now), False: good_end(now)}
        self.poll(
            fence,
            [
                seen(
                    task,
                    Phase.ENDED,
                    now,
                    uid=task.uid,
                    counters=counters,
                    end=ends[task.index in failed],
                )
                for task in self.store.polls.found_state(fence).tasks
            ],
        )

    def end(self, fence: Fence, expected: ExpectedCoverage = NOTHING_EXPECTED) -> RunRow:
        return self.store.completion.end_run(
            fence, lambda groups, stop: verdict(groups, stop), expected
        )

    def brings(
        self,
        request_id: str,
        *told: Coverage | None,
        expected: ExpectedCoverage = NOTHING_EXPECTED,
        **fields: Any,
    ) -> Fence:
        """A run that has ended, with one task for each result in the arguments."""
        fence = self.executing(request_id, tasks=len(told), **fields)
        self.tell(fence, told)
        self.end(fence, expected)
        return fence

    def tell(
        self,
        fence: Fence,
        told: Sequence[Coverage | None],
        failed: Sequence[int] = (),
        resumed: bool | None = None,
    ) -> None:
        """Record the end of every unsettled task, with the fields that its items fill."""
        now = self.clock.now
        self.poll(
            fence,
            [
                seen(
                    task, Phase.ENDED, now, uid=task.uid, counters=Counters(items=5), fields=told[task.index],
                    resumed=resumed, end=bad_end(now) if task.index in failed else good_end(now),
                )
                for task in self.store.polls.found_state(fence).tasks
            ],
        )  # fmt: skip

    def resume(self, fence: Fence, owner: Owner = OTHER, **fields: object) -> Fence:
        """Begin the next attempt of the run, with its ended tasks queued again."""
        wanted = RunRequest(run_id=fence.run_id, **fields)  # type: ignore[arg-type]
        handle = self.store.initiation.claim_run(wanted, owner, closed)
        after = replace(fence, attempt=handle.attempt, owner_run_id=owner.first_run_id)
        self.store.deployment.requeue_ended(after, handle.rerun)
        return after

    def write(self, statement: str, **values: object) -> int:
        """Write directly into the database. Return the number of rows."""
        with self.store.database.writer.begin() as conn:
            return conn.execute(text(statement), values).rowcount

    def stop(self, by: str | None = "ann", **fields: object) -> StopIntent:
        return StopIntent(self.clock.now, requested_by=by, **fields)  # type: ignore[arg-type]

    def status(self, fence: Fence) -> RunStatus:
        return self.row(fence).status

    def row(self, fence: Fence) -> RunRow:
        row = self.store.runs.get_run(fence.run_id)
        assert row is not None
        return row

    def statuses(self, fence: Fence) -> dict[int, TaskStatus]:
        return {
            task.task_index: task.status
            for task in self.store.tasks.list_tasks(fence.run_id, limit=100_000)
        }


def good_end(at: datetime) -> End:
    return End(exit_code=0, finish_reason="finished", finished_at=at)


def bad_end(at: datetime) -> End:
    return End(exit_code=1, reason="Error", message="boom", finished_at=at, finish_reason="failed")
