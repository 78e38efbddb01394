"""A cluster in memory, with a clock that tests move."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, given_to_task
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentExpired,
    InvalidRequest,
    OtherPlace,
)
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, End, Observation, Phase
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.polls import Details, LiveCounters, Poll
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, TaskRecord, TaskRef

FINISHED = End(exit_code=0, reason="Completed", finish_reason="finished")
SHUTDOWN = End(exit_code=11, verdict=11, told=True, reason="Error", finish_reason="shutdown")
KILLED = End(exit_code=137, signal=9, reason="Error")
NEVER_RAN = End(reason="Cancelled", message="It was stopped while it waited and never executed")
#: The code of every task.
CODE = Code("sha256:" + "c0de" * 16)
#: The time in seconds in which a task without an end counts what its behaviour says.
_ENDLESS_S = 600.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of one task, in seconds of the cluster's clock."""

    waits: float = 0.0
    executes: float | None = 1.0
    """``None``: until it is stopped."""
    end: End = FINISHED
    counters: Counters = field(default_factory=lambda: Counters(pages=10, items=100, errors=0))
    """What it will have counted at its end, and before that a share by the time that passed; an
    endless one counts as much in every ten minutes."""
    counts_for: float | None = None
    """Seconds after which it goes on without counting any more; ``None``: it never stalls."""
    writes_for: float | None = None
    """Seconds after which it writes nothing any more, not even to its log; ``None``: nobody sees
    what it writes.
    """
    heeds_stop_after: float | None = 0.0
    """Seconds from a stop to its end; ``None``: it ignores stops."""
    stopped: End = SHUTDOWN
    wait_reason: str = "waiting: 1 of 1 slots in use"
    deployed: str = "created"
    """``deferred`` or ``refused`` to let the deployment answer that."""
    deploy_reason: str | None = None
    peak_memory: int | None = None
    log: str | None = "a line of log\n"
    fields: Coverage | None = None
    statistics: Mapping[str, int | float] | None = None
    """What it tells at its end."""
    resumed: bool | None = None
    """What its runner says, of a later attempt, about going on with saved state; ``resume_note`` in
    words.
    """
    resume_note: str | None = None
    code: Code | None = CODE
    """What it executes, from its start on; the version is that of the catalogue."""
    code_after: float = 0.0
    """Seconds from its start until its code has arrived, and what it reports meanwhile."""
    code_wait: str = "the gateway answers 503"


@dataclass(slots=True)
class _Task:
    name: str
    uid: str
    run: RunRef
    behaviour: Behaviour
    created_at: datetime
    record: TaskRecord
    place: str | None = None
    version: str | None = None
    stopped_at: datetime | None = None
    ended: tuple[datetime, End] | None = None
    gone: bool = False
    signals: int = 0

    @property
    def code(self) -> Code | None:
        code = self.behaviour.code
        return None if code is None else replace(code, version=self.version)

    def started_at(self) -> datetime:
        return self.created_at + timedelta(seconds=self.behaviour.waits)

    def settle(self, now: datetime) -> None:
        """Record the end when its time has come: the earlier of its own and that of a stop."""
        if self.ended is not None or self.gone:
            return
        does, started = self.behaviour, self.started_at()
        ends = []
        if does.executes is not None:
            ends.append((started + timedelta(seconds=does.executes), does.end))
        if self.stopped_at is not None and self.stopped_at < started:
            ends.append((self.stopped_at, NEVER_RAN))
        elif self.stopped_at is not None and does.heeds_stop_after is not None:
            ends.append((self.stopped_at + timedelta(seconds=does.heeds_stop_after), does.stopped))
        when, end = min(ends, key=lambda pair: pair[0], default=(None, None))
        if when is not None and end is not None and when <= now:
            self.ended = (when, replace(end, finished_at=when))


@dataclass
class FakeCluster:
    """Implements ``Cluster``, ``TaskFiles``, ``KnowsRuns`` and ``Deployer``; thread-safe.

    ``behaviour`` is one for all tasks, or a function of (run_id, index, attempt). ``calls`` counts
    the calls by method name, failed ones too. ``fail_with`` makes methods raise errors; ``vanish``
    and ``end_now`` act from outside. ``files`` returns ``folders`` for existing tasks.
    """

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    behaviour: Behaviour | Callable[[int, int, int], Behaviour] = field(default_factory=Behaviour)
    kind: str = "local"
    log_fades: bool = False
    folders: dict[tuple[int, int], Path] = field(default_factory=dict)
    """Folders of supporting files by (run_id, index)."""
    calls: Counter[str] = field(default_factory=Counter)
    here: str | None = None
    """The place where tasks are put and looked for. What is in another one is not seen; a test
    changes it.
    """
    gone_places: set[str] = field(default_factory=set)
    """Places that are gone for certain, with all that was in them."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: dict[tuple[int, int, int], _Task] = {}
        self._errors: dict[str, Exception] = {}

    # --- the script

    def fail_with(self, error: Exception | None, *methods: str) -> None:
        """From now on, these methods (all, if none is named) raise the error; ``None`` ends this."""
        with self._lock:
            for method in methods or (
                "deploy",
                "poll",
                "details",
                "stop",
                "kill",
                "files",
                "inventory",
            ):
                if error is None:
                    self._errors.pop(method, None)
                else:
                    self._errors[method] = error

    def vanish(self, run_id: int, index: int = 0, attempt: int = 1) -> None:
        """Let the task disappear without a trace."""
        with self._lock:
            self._tasks[run_id, index, attempt].gone = True

    def end_now(self, run_id: int, index: int = 0, attempt: int = 1, end: End = KILLED) -> None:
        """End the task now, for its own reasons (default: killed from outside)."""
        with self._lock:
            task = self._tasks[run_id, index, attempt]
            now = self.clock()
            task.settle(now)
            if task.ended is None:
                task.ended = (now, replace(end, finished_at=now))

    def signals(self, run_id: int, index: int = 0, attempt: int = 1) -> int:
        """Return how many stop signals the task received."""
        with self._lock:
            task = self._tasks.get((run_id, index, attempt))
            return 0 if task is None else task.signals

    def alive(self, run_id: int | None = None) -> list[tuple[int, int, int]]:
        """Return what is waiting or executing now, of all runs or of one, as (run_id, index,
        attempt).
        """
        with self._lock:
            now = self.clock()
            tasks = {key: task for key, task in self._tasks.items() if run_id in (None, key[0])}
            for task in tasks.values():
                task.settle(now)
            return [key for key, task in tasks.items() if task.ended is None and not task.gone]

    def phases(self) -> dict[tuple[int, int, int], Phase]:
        """Return the present phase of each task that was ever deployed, by (run_id, index,
        attempt).
        """
        with self._lock:
            now = self.clock()
            refs = {key: TaskRef(0, key[1], key[2], task.uid) for key, task in self._tasks.items()}
            return {
                key: self._observe(self._tasks[key].run, ref, now).phase
                for key, ref in refs.items()
            }

    def counted(self) -> list[LiveCounters]:
        """Return what the executing tasks have counted so far."""
        with self._lock:
            now = self.clock()
            alive = [
                (key, self._tasks[key])
                for key, phase in self.phases().items()
                if phase is Phase.EXECUTING
            ]
            return [
                LiveCounters(t.run, attempt, index, self._counters(t, now), now)
                for (_, index, attempt), t in alive
            ]

    # --- Deployer

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        with self._called("deploy"):
            if deployment.place not in (None, self.here):
                raise OtherPlace(f"the caller looks into {deployment.place}, this is {self.here}")
            answers = []
            for queued in deployment.tasks:
                key = (deployment.run_id, queued.index, queued.attempt)
                name = cluster_name(*key)
                known = self._tasks.get(key)
                if known is not None and known.run != deployment.run:
                    foreign = deployment.run.foreign(f"the task {name}", known.run.uid)
                    answers.append(DeployedTask(queued.index, "deferred", name, reason=foreign))
                    continue
                if known is not None:
                    answers.append(DeployedTask(queued.index, "existing", name, known.uid))
                    continue
                behaviour = self._behaviour(*key)
                try:
                    given = given_to_task(
                        crawler, deployment.args, deployment.settings, queued.args
                    )
                except InvalidRequest as why:
                    answers.append(DeployedTask(queued.index, "refused", name, reason=str(why)))
                    continue
                if behaviour.deployed != "created":
                    answers.append(
                        DeployedTask(
                            queued.index, behaviour.deployed, name, reason=behaviour.deploy_reason
                        )
                    )
                    continue
                now = self.clock()
                if now >= deployment.expires_at:
                    raise DeploymentExpired(
                        f"the deployment call expired at {deployment.expires_at.isoformat()}"
                    )
                uid, about = (
                    str(uuid.uuid4()),
                    (queued.index, queued.attempt, queued.task_id, deployment.crawler),
                )
                record = TaskRecord(*about, *given, name, uid, self.here, deployment.record)
                task = _Task(
                    name, uid, deployment.run, behaviour, now, record, self.here, crawler.version
                )
                self._tasks[key] = task
                answers.append(DeployedTask(queued.index, "created", name, task.uid))
            return answers

    def _behaviour(self, run_id: int, index: int, attempt: int) -> Behaviour:
        if isinstance(self.behaviour, Behaviour):
            return self.behaviour
        return self.behaviour(run_id, index, attempt)

    # --- Cluster

    def place(self, beside: Collection[str] = ()) -> str | None:
        with self._lock:
            self._check_places(beside)
            return self.here

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        with self._called("poll"):
            now = self.clock()
            self._check_places([ref.place for ref in tasks if self._find(run, ref) is None])
            return Poll(now, 0.0, [self._observe(run, task, now) for task in tasks])

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        with self._called("details"):
            now = self.clock()
            found = []
            for ref in tasks:
                task = self._find(run, ref)
                if task is not None and not task.gone:
                    counters = self._counters(task, now)
                    told = task.behaviour
                    statistics = told.statistics if task.ended is not None else None
                    found.append(
                        Details(ref.task_id, told.log, counters, told.peak_memory, statistics)
                    )
            return found

    def stop(self, run: RunRef, task: TaskRef) -> None:
        with self._called("stop"):
            found = self._ours(run, task)
            if found is None:
                return
            now = self.clock()
            found.settle(now)
            if found.ended is None and not found.gone and found.stopped_at is None:
                found.stopped_at = now
                found.signals += found.started_at() <= now

    def kill(self, run: RunRef, task: TaskRef) -> None:
        with self._called("kill"):
            found = self._ours(run, task)
            if found is None:
                return
            now = self.clock()
            found.settle(now)
            if found.ended is None and not found.gone:
                end = KILLED if found.started_at() <= now else NEVER_RAN
                found.ended = (now, replace(end, finished_at=now))

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        with self._called("files"):
            return [
                FileSource(f"task-{ref.index}", self.folders[run.run_id, ref.index])
                for ref in tasks
                if (run.run_id, ref.index) in self.folders and not self._is_foreign(run, ref)
            ]

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        with self._called("task_records"):
            latest = {key[1]: key for key in sorted(self._tasks) if self._tasks[key].run == run}
            return [self._tasks[key].record for key in latest.values()]

    def highest_run(self, above: int = 0) -> int:
        with self._called("highest_run"):
            return max([above, *(run for run, _, _ in self._tasks)])

    def inventory(
        self,
        *,
        run_id: int | None = None,
        after: tuple[int, int, int] | None = None,
        limit: int = 500,
    ) -> list[ClusterTask]:
        with self._called("inventory"):
            now = self.clock()
            found = []
            for (run, index, attempt), task in sorted(
                self._tasks.items(), key=lambda item: item[0]
            ):
                if run_id not in (None, run):
                    continue  # the activities of a testbed have their own clocks
                task.settle(now)
                if task.ended is not None or task.gone:
                    continue
                started = task.started_at()
                executing = started <= now
                if after is None or (run, index, attempt) > after:
                    when = started if executing else None
                    uid = task.run.uid
                    found.append(
                        ClusterTask(
                            run, index, attempt, executing, None, task.uid, when, "fake", uid
                        )
                    )
            return found[:limit]

    # --- inside

    def _called(self, method: str) -> threading.RLock:
        """Count the call and raise the requested error. Returns the lock to work under."""
        with self._lock:
            self.calls[method] += 1
            error = self._errors.get(method)
        if error is not None:
            raise error
        return self._lock

    def _find(self, run: RunRef, ref: TaskRef) -> _Task | None:
        found = self._tasks.get((run.run_id, ref.index, ref.attempt))
        return (
            found if found is not None and found.place == self.here and found.run == run else None
        )

    def _is_foreign(self, run: RunRef, ref: TaskRef) -> bool:
        other = self._tasks.get((run.run_id, ref.index, ref.attempt))
        return other is not None and other.run != run

    def _check_places(self, places: Collection[str | None]) -> None:
        for other in set(places) - {None, self.here, *self.gone_places}:
            raise ClusterUnavailable(f"a task was put into {other}, and we look into {self.here}")

    def _ours(self, run: RunRef, ref: TaskRef) -> _Task | None:
        """Return the task, unless another object has its name.

        Raises ``ClusterUnavailable`` for one elsewhere.
        """
        found = self._find(run, ref)
        if found is None:
            self._check_places([ref.place])
        return None if found is not None and ref.uid not in (None, found.uid) else found

    def _counters(self, task: _Task, now: datetime) -> Counters:
        planned, whole = task.behaviour.counters, task.behaviour.executes
        until = task.ended[0] if task.ended is not None else now
        passed = max(0.0, (until - task.started_at()).total_seconds())
        if task.behaviour.counts_for is not None:
            passed = min(passed, task.behaviour.counts_for)
        share = min(1.0, passed / whole) if whole else passed / _ENDLESS_S if whole is None else 1.0

        def part(value: int | None) -> int | None:
            return None if value is None else int(value * share)

        return Counters(
            part(planned.pages), part(planned.items), part(planned.errors), part(planned.bytes)
        )

    def _observe(self, run: RunRef, ref: TaskRef, now: datetime) -> Observation:
        task = self._find(run, ref)
        if task is None:
            phase = Phase.ABSENT if ref.uid is None else Phase.GONE
            other, words = self._tasks.get((run.run_id, ref.index, ref.attempt)), None
            if other is not None and self._is_foreign(run, ref):
                words = run.foreign(f"the task {other.name}", other.run.uid)
            return Observation(ref.index, ref.attempt, phase, now, reason=words)
        task.settle(now)
        seen = Observation(ref.index, ref.attempt, Phase.GONE, now, name=task.name, uid=task.uid)
        told = (
            (task.behaviour.resumed, task.behaviour.resume_note)
            if ref.attempt > 1
            else (None, None)
        )
        started = task.started_at()
        if task.gone:
            # Without its uid, nobody knows that it ever existed.
            return (
                seen
                if ref.uid is not None
                else Observation(ref.index, ref.attempt, Phase.ABSENT, now)
            )
        if task.ended is not None:
            when, end = task.ended
            ran = end.reason != NEVER_RAN.reason
            return replace(
                seen,
                phase=Phase.ENDED,
                node="fake",
                changed_at=when,
                started_at=started if ran else None,
                counters=self._counters(task, now) if ran else Counters(),
                progress_at=when if ran else None,
                peak_memory=task.behaviour.peak_memory,
                fields=task.behaviour.fields if ran else None,
                code=task.code if ran else None,
                resumed=told[0] if ran else None,
                resume_note=told[1] if ran else None,
                end=end,
            )
        if now < started:
            return replace(
                seen,
                phase=Phase.WAITING,
                reason=task.behaviour.wait_reason,
                changed_at=task.created_at,
            )
        return replace(
            seen,
            phase=Phase.EXECUTING,
            node="fake",
            changed_at=started,
            started_at=started,
            counters=self._counters(task, now),
            progress_at=now,
            quiet=_quiet(task, now),
            code=task.code,
            code_wait=_code_wait(task, now),
            resumed=told[0],
            resume_note=told[1],
        )


def _code_wait(task: _Task, now: datetime) -> str | None:
    arrives_at = task.started_at() + timedelta(seconds=task.behaviour.code_after)
    return task.behaviour.code_wait if now < arrives_at else None


def _quiet(task: _Task, now: datetime) -> timedelta | None:
    if task.behaviour.writes_for is None:
        return None
    return max(now - task.started_at() - timedelta(seconds=task.behaviour.writes_for), timedelta(0))
