"""The port ``Cluster`` on Kubernetes: polls, stops and inventory of one namespace.

A poll lists the objects, proves that missing ones are gone, reads each task, and adds explanations
from other sources. No result depends on the memory of a process: several processes may poll the
same run, and any of them may die. A failed call is an error, never an observation.

A task counts as gone if its Job is missing from a complete list, and a read of the Job by name at
the newest version returns 404. Two polls at least 30 s apart must find this; one poll is enough
when we stopped the task ourselves. In both cases no pod of its Job may be left, regardless of its
labels. Until then the task is only recorded as absent, which changes no status.

These proofs are only about the namespace that we read. When the task was created in another
namespace, the poll is an error. When that namespace is gone permanently, the task is gone at once
(``namespace_identity``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.clusters.kubernetes.jobs.deletion import Deletion
from crawler_lifecycle.domain.clocks import not_ahead
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.runs import TaskRef

from .polls.details import DetailReader, LogTails
from .polls.explanations import Events, read_events, with_namespace
from .polls.inventory import Inventory, highest_run, task_records
from .polls.listing import (
    Objects,
    TaskObjects,
    find_job,
    is_of,
    listed_by_us,
    name_of,
    of_tasks,
    pods_of_jobs,
    read_objects,
    run_uid_of,
    task_id_of,
)
from .polls.namespace_identity import CurrentNamespace, read_identity
from .polls.predicates import deciding_pod
from .polls.queues import QueueReader
from .polls.reading import read_task
from .polls.termination_message import reported

#: Seconds between the two polls that together prove that a task is gone.
PROOF_S = 30.0
#: How many Jobs the process reads by name in parallel, and how many names a poll submits at a time,
#: so that no poll waits until all names of another poll have been read. 10,000 names take 20 s this
#: way; one after another, they would take too long for a poll.
THREADS = 16
PAGE = 64


class KubernetesCluster:
    """The Jobs and pods of one namespace.

    This class implements ``Cluster`` and ``KnowsRuns``, and is thread-safe.
    """

    kind = "kubernetes"
    #: A node removes the container of a deleted pod as soon as it has ended, even while our
    #: finalizer keeps the pod.
    log_fades = True

    def __init__(self, api: Api, *, clock: Clock = utc_now) -> None:
        self._api = api
        self._clock = clock
        self._tails = LogTails(api)
        self._queues = QueueReader(api)
        deletion = Deletion(api)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="absence")
        self.details = DetailReader(api, self._tails).read
        self.stop = deletion.stop
        self.kill = deletion.kill
        self.inventory = Inventory(api, clock).page
        self.task_records = partial(task_records, api)
        self.highest_run = partial(highest_run, api)

    def poll(self, run: RunRef, tasks: Sequence[TaskRef]) -> Poll:
        """Return one observation for each task, in the same order. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when a missing task may still be executing in another
        namespace.
        """
        began = time.monotonic()
        now = self._clock()
        namespace = CurrentNamespace(self._api)
        found = self._prove_missing(run, self._list(run, tasks), namespace)
        seen = self._read(run, found, now)
        seen = self._explain(run, found, seen, namespace)
        seen = self._queues.explain(found, seen, now)
        return Poll(now, time.monotonic() - began, seen, _second_poll_s(found, seen, now))

    def _list(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[TaskObjects]:
        """Read two complete lists, Jobs before pods, and return the objects of each task in them.

        The lists cover a few tasks, or the whole run. Only lists of the whole run prove an
        unexpected absence.
        """
        names = [name_of(run.run_id, task) for task in tasks]
        missed = any(task.missed_at is not None for task in tasks)
        selector = labels.of_run(run.run_id) if missed else of_tasks(run.run_id, tasks)
        listed = read_objects(self._api, selector, set(names))
        return [
            _objects(run, task, listed.jobs.get(name), listed)
            for task, name in zip(tasks, names, strict=True)
        ]

    def _prove_missing(
        self, run: RunRef, listed: list[TaskObjects], namespace: CurrentNamespace
    ) -> list[TaskObjects]:
        """Read Jobs that are missing from the lists by name, and check that missing tasks were
        created in this namespace.
        """
        found = _ask(self._api, run.run_id, listed, self._threads)
        gone = namespace.gone_for_good(
            [objects.task.place for objects in found if not objects.seen]
        )
        return (
            [objects._replace(namespace_gone=objects.task.place in gone) for objects in found]
            if gone
            else found
        )

    def _read(self, run: RunRef, found: list[TaskObjects], now: datetime) -> list[Observation]:
        """Read each task's objects, and the events of tasks that wait for a reason that the objects
        do not contain.
        """
        events = read_events(self._api, found, now)
        read_at = self._clock()
        seen = []
        for number, objects in enumerate(found):
            seen.append(_read_one(run, objects, events, now, read_at))
            # The pods are no longer needed, and their summaries take memory.
            if seen[-1].phase is Phase.ENDED:
                found[number] = TaskObjects(objects.task, objects.job, [], objects.namespace_gone)
        return seen

    def _explain(
        self,
        run: RunRef,
        found: Sequence[TaskObjects],
        seen: list[Observation],
        namespace: CurrentNamespace,
    ) -> list[Observation]:
        """Add facts that the objects do not contain: the state of the namespace, and the crawlers'
        current counters.
        """
        seen = with_namespace(namespace, found, seen)
        executing = {
            observation.index: number
            for number, observation in enumerate(seen)
            if observation.phase is Phase.EXECUTING
        }
        pods = {
            index: pod
            for index, number in executing.items()
            if (pod := deciding_pod(found[number].pods)) is not None
        }
        for index, progress in self._tails.progress(run.run_id, pods).items():
            one = seen[executing[index]]
            seen[executing[index]] = replace(one, **reported(progress, later=one.attempt > 1))
        return seen

    def place(self, beside: Collection[str] = ()) -> str | None:
        """Return the namespace with its uid and the cluster's uid, if we have permission to read
        them.

        Raises ``ApiError``.

        ``beside`` are the namespaces of the run's other tasks. Raises ``ClusterUnavailable`` when
        tasks may still be executing in one of these namespaces.
        """
        namespace = str(read_identity(self._api))
        if others := set(beside) - {namespace}:
            CurrentNamespace(self._api).gone_for_good(others)
        return namespace


def _read_one(
    run: RunRef, one: TaskObjects, events: Events, now: datetime, read_at: datetime
) -> Observation:
    if one.task.uid is None:
        return _never_deployed(run, one, now)
    if not one.pods and (one.job is None or one.namespace_gone):
        return _judge(one, now)
    return read_task(one.task, one.job, one.pods, events.of(one), now, read_at)


def _objects(run: RunRef, task: TaskRef, job: Job | None, listed: Objects) -> TaskObjects:
    """Return the objects of the task; ``job`` is the Job with its name.

    The returned task has the uid of its own Job, which is missing from the database if the response
    to the Job's creation was lost.
    """
    if (
        job is not None
        and task.uid is None
        and is_of(run, task, uid := job.metadata.uid, job.metadata)
    ):
        task = replace(task, uid=uid)
    return TaskObjects(task, job, listed.pods.get(task.uid or "", []))


def _never_deployed(run: RunRef, one: TaskObjects, now: datetime) -> Observation:
    """Return the observation of a task without a Job of its own. A different Job may have the
    task's name.
    """
    task = one.task
    other = one.job
    words = None
    if other is not None and not run.owns(run_uid := run_uid_of(other.metadata)):
        words = run.foreign(f"The Job {other.metadata.name} ({other.metadata.uid})", run_uid)
    elif other is not None:
        number = task_id_of(other.metadata)
        whose = f"belongs to task {number}" if number is not None else "does not name its task"
        words = (
            f"Another Job ({other.metadata.uid}) has its name and {whose}; this is task "
            f"{task.task_id}"
        )
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason=words)


# --- the proof of absence -------------------------------------------------------------------------


def _ask(
    api: Api, run_id: int, listed: Sequence[TaskObjects], threads: Executor
) -> list[TaskObjects]:
    """Return the same tasks. Jobs that are unexpectedly missing from the list are read by name, and
    their uid is checked.

    Raises ``ApiError``, including when the list is stale.
    """

    def by_name(one: TaskObjects) -> Job | None:
        job = one.job or find_job(api, name_of(run_id, one.task))
        if (
            job is not None
            and job.metadata.uid == one.task.uid
            and listed_by_us(job.metadata, run_id, one.task)
        ):
            # The Job existed before we requested the list. So this API server lags, and other
            # objects may be missing from its list, too.
            raise ApiError(
                f"the list of Jobs is stale: {job.metadata.name} exists, but is missing from the "
                "list"
            )
        return job

    missing = {
        objects.task.uid: objects
        for objects in listed
        if objects.task.uid is not None and not objects.has_job
    }
    if not missing:
        return list(listed)
    jobs: list[Job | None] = []
    for begin in range(0, len(missing), PAGE):
        jobs += threads.map(by_name, list(missing.values())[begin : begin + PAGE])
    pods = pods_of_jobs(api, list(missing))
    asked = {
        uid: objects._replace(job=job, pods=pods.get(uid, []))
        for (uid, objects), job in zip(missing.items(), jobs, strict=True)
    }
    return [asked.get(objects.task.uid or "", objects) for objects in listed]


def _judge(missing: TaskObjects, now: datetime) -> Observation:
    """Return the observation of a task that has neither a Job nor a pod."""
    task = missing.task
    if missing.namespace_gone:
        words = "Its namespace was deleted, and with it the task"
        return Observation(task.index, task.attempt, Phase.GONE, now, reason=words)
    if task.stopping or (
        task.missed_at is not None and (now - task.missed_at).total_seconds() >= PROOF_S
    ):
        return Observation(task.index, task.attempt, Phase.GONE, now)
    return Observation(
        task.index, task.attempt, Phase.ABSENT, now, reason="It is not on the cluster any more"
    )


def _second_poll_s(
    found: Sequence[TaskObjects], seen: Sequence[Observation], now: datetime
) -> float | None:
    """Return the seconds until a second poll can prove that a task is gone; ``None`` when no task
    is missing.
    """
    missed = [
        not_ahead(its.task.missed_at, now) or now
        for its, observation in zip(found, seen, strict=True)
        if observation.phase is Phase.ABSENT and its.task.uid is not None
    ]
    return max(1.0, PROOF_S - (now - min(missed)).total_seconds() + 0.1) if missed else None
