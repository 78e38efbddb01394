"""Changes to pods and Jobs after which a poll of their run is useful.

Only a few fields of each object are remembered: 10,000 pods take a few megabytes. The following are
reported: starts, ends, deletions, disappeared objects, and waits that have a reason or are long.
Counters, heartbeats and the consequences of a reported end are not reported. A Job is reported only
while none of its pods has ended.

The code does no I/O. It is not thread-safe, so the caller needs a lock. ``now`` is a time in
seconds by any clock that only goes forward.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from crawler_lifecycle.clusters.kubernetes.client.objects import Job, ObjectMeta, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.clusters.kubernetes.polls.listing import key_of, numbers_of, run_uid_of
from crawler_lifecycle.clusters.kubernetes.polls.pod_waits import PULLS
from crawler_lifecycle.clusters.kubernetes.polls.predicates import (
    crawler_container,
    ended,
    executing,
    job_is_over,
    verdict,
)
from crawler_lifecycle.domain.run_ref import RunRef

#: Seconds after which a wait without a reason is reported: the Job has no pod yet, or the pod does
#: not start.
LONG_S = 3.0

#: The stages of an object. ``OVER``: the crawler has ended, and later changes to its pod do not
#: matter. ``ENDING``: the end of a Job is decided, but its pods still exist.
PENDING = "pending"
WAITING = "waiting"
RUNNING = "running"
ENDING = "ending"
OVER = "over"


#: The number of a run, and the index and the attempt of its task; ``None`` if the object's labels
#: do not contain them.
TaskKey = tuple[int, tuple[int, int] | None]


class ObjectState(NamedTuple):
    """The remembered state of one object.

    Every difference that needs a poll is in ``stage`` or ``marks``.
    """

    key: TaskKey
    stage: str
    marks: str = ""
    """Facts that people should see soon, such as the reason for a wait, a deletion, or a node that
    does not respond.
    """
    job: str = ""
    """The uid of the pod's Job."""


def seen(key: TaskKey, stage: str, marks: str = "", job: str = "") -> ObjectState:
    """Return an ``ObjectState`` that shares its strings with all other states, to save memory."""
    return ObjectState(key, sys.intern(stage), sys.intern(marks), job)


class Changes:
    """The pods and Jobs that the watches reported, by uid.

    The methods that apply changes return the tasks that need a poll now.
    """

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._pods: dict[str, ObjectState] = {}
        self._jobs: dict[str, ObjectState] = {}
        self._owners: dict[str, set[str]] = {}
        """A Job's uid -> the uids of its known pods."""
        self._ended: set[str] = set()
        """The uids of Jobs with an ended pod."""
        self._slow: list[tuple[float, str]] = []
        """A heap of objects that are waiting without a reason: the time after which the wait counts
        as long, and the uid.
        """

    @property
    def watched(self) -> int:
        """The number of tasks that have not ended. A Job without a pod counts as a task."""
        pods = sum(pod.stage != OVER for pod in self._pods.values())
        return pods + sum(
            job.stage != OVER and uid not in self._owners for uid, job in self._jobs.items()
        )

    def __len__(self) -> int:
        return len(self._pods) + len(self._jobs)

    def listed(self, kind: type, there: Mapping[str, ObjectState], now: float) -> set[TaskKey]:
        """Apply a complete list of this kind. Objects that an earlier report contained and that are
        missing from the list are gone.
        """
        known = self._pods if kind is Pod else self._jobs
        gone = dict.fromkeys(known.keys() - there.keys())
        return {
            key
            for uid, state in (gone | {**there}).items()
            for key in self.one(kind, uid, state, now)
        }

    def one(self, kind: type, uid: str, one: ObjectState | None, now: float) -> set[TaskKey]:
        """Apply the state of an object; ``None`` means that it was removed."""
        return self.pod(uid, one, now) if kind is Pod else self.job(uid, one, now)

    def pod(self, uid: str, pod: ObjectState | None, now: float) -> set[TaskKey]:
        """Apply the state of a pod; ``None`` means that it was removed."""
        before = self._pods.get(uid)
        if before == pod:
            return set()
        if pod is None:
            return self._pod_gone(uid)
        owner = before.job if before is not None and before.job == pod.job else pod.job
        self._pods[uid] = pod._replace(job=owner)
        if owner:
            self._owners.setdefault(owner, set()).add(uid)
            if pod.stage in (ENDING, OVER):
                self._ended.add(owner)
        return self._reported(uid, before, pod, now)

    def _pod_gone(self, uid: str) -> set[TaskKey]:
        pod = self._pods.pop(uid)
        siblings = self._owners.get(pod.job, set())
        siblings.discard(uid)
        if not siblings:
            self._owners.pop(pod.job, None)
            if pod.job not in self._jobs:
                self._ended.discard(pod.job)
        return set() if pod.stage == OVER else {pod.key}

    def job(self, uid: str, job: ObjectState | None, now: float) -> set[TaskKey]:
        """Apply the state of a Job; ``None`` means that it was removed.

        Its pods are reported by ``pod``.
        """
        before = self._jobs.get(uid)
        ended = uid in self._ended
        if before == job:
            return set()
        if job is not None:
            self._jobs[uid] = job
            return set() if ended else self._reported(uid, before, job, now)
        del self._jobs[uid]
        if uid not in self._owners:
            self._ended.discard(uid)
        return set() if before is None or before.stage == OVER or ended else {before.key}

    def slow(self, now: float) -> set[TaskKey]:
        """Return the tasks whose objects have waited for ``long_s``. Each wait is returned once."""
        tasks = set()
        while self._slow and self._slow[0][0] <= now:
            _, uid = heapq.heappop(self._slow)
            found = self._pods.get(uid) or (None if uid in self._owners else self._jobs.get(uid))
            if found is not None and found.stage == PENDING:
                tasks.add(found.key)
        return tasks

    def _reported(
        self, uid: str, before: ObjectState | None, after: ObjectState, now: float
    ) -> set[TaskKey]:
        if before is not None and before.stage == OVER == after.stage:
            return set()
        if after.stage != PENDING or after.marks:
            return {after.key}
        if before is None or before.stage != PENDING or before.marks:
            heapq.heappush(self._slow, (now + self._long_s, uid))
        # A waiting object whose marks disappeared needs no poll. An object that was in a later
        # stage needs one.
        return set() if before is None or before.stage in (PENDING, WAITING) else {after.key}


# --- the state of an object ----------------------------------------------------------------------
# Other fields need no early poll and are ignored: counters, heartbeats, addresses, and all changes
# after the pod's own end.


@dataclass(frozen=True, slots=True)
class RunningPod:
    """The fields of a pod that we need to read the pod's log and to assign the counters in the log
    to a task.
    """

    name: str
    run: RunRef
    index: int
    attempt: int


class ObjectFacts(NamedTuple):
    """The facts that are remembered about an object."""

    uid: str
    seen: ObjectState | None = None
    """``None`` when the object was removed or belongs to no run."""
    began: datetime | None = None
    """The time when the crawler started in this pod, by the clock of its node."""
    running: RunningPod | None = None


#: Reasons of waits that every starting pod has.
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})


def kept_of_pod(pod: Pod) -> ObjectFacts:
    execution = crawler_container(pod).state.running
    began = known_time(execution.started_at) if execution is not None else None
    return ObjectFacts(pod.metadata.uid, pod_seen(pod), began, running(pod))


def running(pod: Pod) -> RunningPod | None:
    """Return the pod if one of our crawlers is executing in it."""
    key = key_of(pod.metadata)
    uid = run_uid_of(pod.metadata)
    if key is None or not uid or not executing(pod):
        return None
    if crawler_container(pod).state.running is None:
        return None  # the container is being restarted, and has no log yet
    run_id, index, attempt = key
    return RunningPod(pod.metadata.name, RunRef(run_id, uid), index, attempt)


def _task_of(meta: ObjectMeta) -> TaskKey | None:
    run_id, index, attempt = numbers_of(meta)
    if run_id is None:
        return None
    return run_id, None if index is None or attempt is None else (index, attempt)


def pod_seen(pod: Pod) -> ObjectState | None:
    """Return the stage and marks of a pod; ``None`` when it belongs to no run."""
    key = _task_of(pod.metadata)
    if key is None:
        return None
    job = pod.metadata.controller_uid or ""
    if ended(pod):
        return seen(key, OVER, job=job)
    stage = PENDING
    marks = []
    if executing(pod):
        stage = RUNNING
    elif marks := sorted(set(_reasons(pod))):
        stage = WAITING
    return seen(key, stage, " ".join([*marks, *_incidents(pod, stage)]), job)


def job_seen(job: Job) -> ObjectState | None:
    """Return the stage and marks of a Job according to its own status; ``None`` when the Job
    belongs to no run.
    """
    key = _task_of(job.metadata)
    if key is None:
        return None
    deleting = "deleted" if job.metadata.deletion_timestamp else ""
    if verdict(job):
        return seen(key, OVER)
    if job_is_over(job):
        return seen(key, ENDING, deleting)
    if job.spec.suspend:
        return seen(key, WAITING, f"suspended {deleting}".rstrip())
    return seen(key, PENDING, deleting)


def _reasons(pod: Pod) -> Iterator[str]:
    """Yield the reasons in the pod's status why the crawler is not executing yet."""
    scheduled = pod.denied("PodScheduled")
    if scheduled is not None:
        yield scheduled.reason or "Unscheduled"
    crawler = crawler_container(pod)
    for status in (*pod.status.init_container_statuses, crawler):
        waiting = status.state.waiting
        over = status.state.terminated
        if waiting is not None and waiting.reason and waiting.reason not in _STARTING:
            # The reasons about an image alternate every minute. They count as one reason, so that
            # this is not a change.
            yield "image" if waiting.reason in PULLS else waiting.reason
        if status is not crawler and over is not None and over.exit_code != 0:
            yield "init"


def _incidents(pod: Pod, stage: str) -> Iterator[str]:
    """Yield marks for events that do not come from the crawler: a deletion, a disruption, or a lost
    node.
    """
    if pod.metadata.deletion_timestamp is not None:
        yield "deleted"
    if pod.condition("DisruptionTarget") is not None:
        yield "disrupted"
    if (
        stage == RUNNING
        and pod.denied("Ready") is not None
        and pod.metadata.deletion_timestamp is None
    ):
        # crawlers have no probes, so only a node that does not respond can cause this
        yield "unready"


#: Kind of an object -> the function that returns its remembered facts.
KEPT: Mapping[type, Callable[[Any], ObjectFacts]] = {
    Pod: kept_of_pod,
    Job: lambda job: ObjectFacts(job.metadata.uid, job_seen(job)),
}
