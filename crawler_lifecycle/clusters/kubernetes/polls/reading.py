"""One observation from the objects of one task (the list is in docs/kubernetes-pending.md).

This module does no I/O.

The pod decides, because a Job's conditions lag behind its pods: by a second on an idle control
plane, by minutes on a busy one. The Job is used for facts that only the Job has: its deadline, its
deletion, a pod that cannot be created. The task's row shows whether we requested a deletion.
Success always needs evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain.code import Code, code_of_image
from crawler_lifecycle.domain.task import End, Observation, Phase
from crawler_lifecycle.ports.runs import TaskRef

from .endings import end_of_job, end_of_pod
from .pod_waits import job_words, pod_words, warning_words
from .predicates import (
    JOB_NAME,
    another_follows,
    crawler_container,
    deciding_pod,
    deleted_before_scheduling,
    ended,
    executing,
    owner_of,
    suspended_before_scheduling,
    verdict,
)
from .termination_message import Summary, reported

#: The fields of a package's code, and the annotations that contain them.
_OF_PACKAGE = {"digest": labels.CODE, "version": labels.VERSION, "commit": labels.COMMIT}
#: A Job without a pod never gets a pod again after the Job has been in deletion for this long, even
#: if the Job still exists.
GONE_AFTER = timedelta(seconds=30)


def read_task(
    task: TaskRef,
    job: Job | None,
    pods: Sequence[Pod],
    events: Sequence[Event] | None,
    now: datetime,
    read_at: datetime | None = None,
) -> Observation:
    """Return one observation from one complete poll, based on the Job with the task's name, pods
    and events.

    Pods of another Job, and events about other objects, are ignored. ``events`` is ``None`` when
    they could not be read. The order of the lists does not matter, and no input raises an error. A
    task without objects is ``ABSENT``, which proves nothing yet.

    ``now`` is the start of the poll. ``read_at`` is the time by which the objects had been read, by
    default ``now``.
    """
    uid = _uid(task, job, pods)
    own = job if job is not None and job.metadata.uid == uid else None
    mine = [
        pod
        for pod in pods
        if uid is not None and owner_of(pod) == uid and not suspended_before_scheduling(own, pod)
    ]
    pod = deciding_pod(mine)
    if pod is not None and not another_follows(own, pod):
        beside = _ended_beside(pod, mine) if len(mine) > 1 else None
        return _of_pod(task, uid, own, pod, beside, events, now, read_at or now)
    name = own.metadata.name if own is not None else None
    seen = partial(Observation, task.index, task.attempt, name=name, uid=uid)
    if own is not None:
        if (over := verdict(own)) is not None:
            return _ended(
                task, end_of_job(own, over), Summary(), read_at or now, name=name, uid=uid
            )
        return _of_job(seen, own, events, now)
    return _foreign(seen, task, job, now) if job is not None else seen(Phase.ABSENT, now)


def _uid(task: TaskRef, job: Job | None, pods: Sequence[Pod]) -> str | None:
    """Return the uid of our Job: the recorded uid, else the uid in the existing objects."""
    if task.uid is not None:
        return task.uid
    if job is not None:
        return job.metadata.uid
    orphan = deciding_pod(pods)
    return owner_of(orphan) if orphan is not None else None


def _of_pod(
    task: TaskRef,
    uid: str | None,
    job: Job | None,
    pod: Pod,
    beside: str | None,
    events: Sequence[Event] | None,
    now: datetime,
    read_at: datetime,
) -> Observation:
    name = job.metadata.name if job is not None else pod.metadata.labels.get(JOB_NAME)
    node = pod.spec.node_name
    started = _started(pod)
    code = _code(pod)
    if ended(pod):
        end, summary = end_of_pod(task, job, pod)
        end = replace(end, message=_joined(end.message, beside)) if beside else end
        return _ended(
            task,
            end,
            summary,
            read_at,
            name=name,
            uid=uid,
            node=node,
            started_at=started,
            code=code,
        )
    seen = partial(
        Observation,
        task.index,
        task.attempt,
        name=name,
        uid=uid,
        node=node,
        started_at=started,
        code=code,
    )
    if executing(pod):
        words = _joined(warning_words(task, job, pod, now), beside)
        return seen(Phase.EXECUTING, now, reason=words, changed_at=started)
    words = _joined(pod_words(task, job, pod, events, now), beside)
    return seen(
        Phase.WAITING, now, reason=words, changed_at=known_time(pod.metadata.creation_timestamp)
    )


def _code(pod: Pod) -> Code | None:
    """Return the code of the crawler's container, as its node and its annotations report it."""
    named = pod.metadata.annotations
    if named.get(labels.CODE):
        return Code.of({name: named.get(label) for name, label in _OF_PACKAGE.items()})
    image_id = crawler_container(pod).image_id
    return code_of_image(image_id, named.get(labels.VERSION), named.get(labels.COMMIT))


def _of_job(
    seen: partial[Observation], job: Job, events: Sequence[Event] | None, now: datetime
) -> Observation:
    """Return the observation of a Job that has no pod and has not ended."""
    words = job_words(job, events, now)
    deleted = job.metadata.deletion_timestamp
    # Its pods are on another cluster, so their absence here proves nothing.
    if job.other_controller is not None:
        started = known_time(job.status.start_time)
        phase = Phase.EXECUTING if job.status.ready else Phase.WAITING
        return seen(phase, now, reason=words, changed_at=started, started_at=started)
    if deleted is not None and now - deleted >= GONE_AFTER:
        # The Job has no pod and will not create one. So nothing runs, even if a finalizer keeps the
        # Job.
        return seen(Phase.GONE, now, reason=words, changed_at=known_time(deleted))
    return seen(
        Phase.WAITING, now, reason=words, changed_at=known_time(job.metadata.creation_timestamp)
    )


def _foreign(seen: partial[Observation], task: TaskRef, other: Job, now: datetime) -> Observation:
    """Return the observation when another Job has the task's name: our Job is gone, and none of its
    pods is left.
    """
    words = f"Our Job ({task.uid}) is gone; another one ({other.metadata.uid}) has its name"
    if task.stopping:
        return seen(Phase.GONE, now, reason=words)
    return seen(Phase.WAITING, now, uid=other.metadata.uid, name=other.metadata.name, reason=words)


def _ended(task: TaskRef, end: End, summary: Summary, read_at: datetime, **who: Any) -> Observation:
    return Observation(
        task.index,
        task.attempt,
        Phase.ENDED,
        # An end may have happened after the poll began. So the end counts as observed at the time
        # when the objects had been read.
        read_at,
        changed_at=end.finished_at,
        peak_memory=summary.peak_memory,
        fields=summary.fields,
        end=end,
        **who,
        **reported(summary.progress, later=task.attempt > 1),
    )


def _ended_beside(pod: Pod, pods: Sequence[Pod]) -> str | None:
    """Describe the Job's other pods that have ended; return ``None`` if there are none."""
    others = [
        other
        for other in pods
        if other is not pod and ended(other) and not deleted_before_scheduling(other)
    ]
    last = deciding_pod(others)
    if last is None:
        return None
    done = crawler_container(last).state.terminated
    how = f"exit {done.exit_code}" if done is not None else "exit code unknown"
    if len(others) == 1:
        return f"Another pod of its Job has ended ({how})"
    return f"{len(others)} other pods of its Job have ended (the newest: {how})"


def _joined(*words: str | None) -> str | None:
    return "; ".join(word for word in words if word) or None


def _started(pod: Pod) -> datetime | None:
    """Return the time when the crawler's container began; ``None`` when it never began."""
    main = crawler_container(pod)
    for state in (main.state, main.last_state):
        ran = state.running or state.terminated
        at = known_time(ran.started_at) if ran is not None else None
        if at is not None:
            return at
    return None
