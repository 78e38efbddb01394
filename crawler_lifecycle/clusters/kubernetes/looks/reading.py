"""Reading: one observation from the objects of one task. Pure; docs/kubernetes.md has the table.

Truth follows the pod: a Job's conditions trail its pods by a second on a quiet control plane and by minutes on a busy
one. The Job is asked where only it knows: its deadline, its deletion, a pod that cannot be created. Whether a deletion
was ours is asked of the task. Nothing is ever taken for a success because nothing speaks against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain.task import Counters, End, Observation, Phase
from crawler_lifecycle.ports.runs import TaskRef

from .details.termination_message import Summary
from .endings import end_of_job, end_of_pod
from .pod_waits import job_words, pod_words, warning_words
from .predicates import (
    JOB_NAME,
    crawler_container,
    deciding_pod,
    deleted_before_scheduling,
    ended,
    executing,
    owner_of,
    suspended_before_scheduling,
    verdict,
)

#: A Job that is being deleted for so long and has no pod will never have one again, even if its record stays.
GONE_AFTER = timedelta(seconds=30)


def read_task(
    task: TaskRef,
    job: Job | None,
    pods: Sequence[Pod],
    events: Sequence[Event] | None,
    now: datetime,
    read_at: datetime | None = None,
) -> Observation:
    """One observation from one complete look: the Job under the task's name, pods and events of any Job.

    Pods of another uid are passed over, events about other objects too; ``None`` are events that were not read. Total,
    and the order of the lists is of no consequence. What is in neither list is ``ABSENT``, which proves nothing yet.

    ``now``: when the look began; ``read_at``: when it had read the objects, by default the same.
    """
    return _Reading(task, job, pods, events, now, read_at or now).observe()


@dataclass(frozen=True, slots=True)
class _Reading:
    task: TaskRef
    job: Job | None
    """Under the task's name, whoever made it."""
    pods: Sequence[Pod]
    events: Sequence[Event] | None
    now: datetime
    read_at: datetime

    def observe(self) -> Observation:
        uid = self._uid()
        job = self.job if self.job is not None and self.job.metadata.uid == uid else None
        pods = [
            pod
            for pod in self.pods
            if uid is not None and owner_of(pod) == uid and not suspended_before_scheduling(job, pod)
        ]
        pod = deciding_pod(pods)
        if pod is not None:
            return self._of_pod(job, pod, uid, _ended_beside(pod, pods))
        if job is not None:
            return self._of_job(job)
        if self.job is not None:
            return self._foreign(self.job)
        return self._seen(Phase.ABSENT, uid=self.task.uid)

    def _uid(self) -> str | None:
        """The uid of our Job: on record, or else that of what is there."""
        if self.task.uid is not None:
            return self.task.uid
        if self.job is not None:
            return self.job.metadata.uid
        orphan = deciding_pod(self.pods)
        return owner_of(orphan) if orphan is not None else None

    def _of_pod(self, job: Job | None, pod: Pod, uid: str | None, beside: str | None) -> Observation:
        name = job.metadata.name if job is not None else pod.metadata.labels.get(JOB_NAME)
        node = pod.spec.node_name
        if ended(pod):
            end, summary = end_of_pod(self.task, job, pod)
            end = replace(end, message=_joined(end.message, beside)) if beside else end
            return self._ended(end, summary, uid=uid, name=name, node=node, started_at=_started(pod))
        if executing(pod):
            started = _started(pod)
            return self._seen(
                Phase.EXECUTING,
                uid=uid,
                name=name,
                node=node,
                reason=_joined(warning_words(self.task, job, pod, self.now), beside),
                changed_at=started,
                started_at=started,
            )
        return self._seen(
            Phase.WAITING,
            uid=uid,
            name=name,
            node=node,
            reason=_joined(pod_words(self.task, job, pod, self.events, self.now), beside),
            changed_at=known_time(pod.metadata.creation_timestamp),
        )

    def _of_job(self, job: Job) -> Observation:
        uid, name = job.metadata.uid, job.metadata.name
        over, deleted = verdict(job), job.metadata.deletion_timestamp
        if over is not None:
            return self._ended(end_of_job(job, over), Summary(), uid=uid, name=name)
        words = job_words(job, self.events, self.now)
        if job.other_controller is not None:  # that it has no pod here says nothing
            started = known_time(job.status.start_time)
            phase = Phase.EXECUTING if job.status.ready else Phase.WAITING
            return self._seen(phase, uid=uid, name=name, reason=words, changed_at=started, started_at=started)
        if deleted is not None and self.now - deleted >= GONE_AFTER:
            # It makes no pods any more and has none: whatever still holds the record, nothing runs.
            return self._seen(Phase.GONE, uid=uid, name=name, reason=words, changed_at=known_time(deleted))
        return self._seen(
            Phase.WAITING, uid=uid, name=name, reason=words, changed_at=known_time(job.metadata.creation_timestamp)
        )

    def _foreign(self, other: Job) -> Observation:
        """Another Job is under the name, so ours is gone, and no pod of ours is left."""
        words = f"Our Job ({self.task.uid}) is gone; another one ({other.metadata.uid}) is under its name"
        if self.task.stopping:
            return self._seen(Phase.GONE, uid=self.task.uid, reason=words)
        return self._seen(Phase.WAITING, uid=other.metadata.uid, name=other.metadata.name, reason=words)

    def _ended(
        self,
        end: End,
        summary: Summary,
        *,
        uid: str | None,
        name: str | None,
        node: str | None = None,
        started_at: datetime | None = None,
    ) -> Observation:
        later = self.task.attempt > 1
        return Observation(
            index=self.task.index,
            attempt=self.task.attempt,
            phase=Phase.ENDED,
            # The other phases held at some time since the look began; an end was read later, after it had happened.
            observed_at=self.read_at,
            name=name,
            uid=uid,
            node=node,
            changed_at=end.finished_at,
            started_at=started_at,
            counters=summary.counters,
            progress_at=summary.progress_at,
            peak_memory=summary.peak_memory,
            resumed=summary.resumed if later else None,
            resume_note=summary.resume_note if later else None,
            end=end,
        )

    def _seen(
        self,
        phase: Phase,
        *,
        uid: str | None,
        name: str | None = None,
        node: str | None = None,
        reason: str | None = None,
        changed_at: datetime | None = None,
        started_at: datetime | None = None,
    ) -> Observation:
        return Observation(
            index=self.task.index,
            attempt=self.task.attempt,
            phase=phase,
            observed_at=self.now,
            name=name,
            uid=uid,
            node=node,
            reason=reason,
            changed_at=changed_at,
            started_at=started_at,
            counters=Counters(),
        )


def _ended_beside(pod: Pod, pods: Sequence[Pod]) -> str | None:
    """Return words about other pods of the Job that have ended; ``None`` without one.

    A Job has more than one pod when it is suspended and resumed before we are done with it.
    """
    others = [other for other in pods if other is not pod and ended(other) and not deleted_before_scheduling(other)]
    last = deciding_pod(others)
    if last is None:
        return None
    main = crawler_container(last)
    done = main.state.terminated if main is not None else None
    how = f"exit {done.exit_code}" if done is not None else "exit code unknown"
    return (
        f"Another pod of its Job has ended ({how})"
        if len(others) == 1
        else f"{len(others)} other pods of its Job have ended ({how}, the newest)"
    )


def _joined(*words: str | None) -> str | None:
    return "; ".join(word for word in words if word) or None


def _started(pod: Pod) -> datetime | None:
    """Return the time when the crawler's container began; ``None`` when it never did."""
    main = crawler_container(pod)
    if main is None:
        return None
    for state in (main.state, main.last_state):
        told = state.running or state.terminated
        at = known_time(told.started_at) if told is not None else None
        if at is not None:
            return at
    return None
