"""The port ``Cluster`` on Kubernetes: looks, stops and inventory of one namespace.

A look lists the objects, proves that missing ones are gone, reads each task, and adds explanations from other sources.
No result depends on its memory: several processes may look at the same run, and any of them may die. A failed call is
an error, never an observation.

*Gone* is proved by a complete list without it and a 404 for its name read at the newest version, at a look and again at
one at least 30 s later; at once when we had asked it to end ourselves. In both cases no pod of its Job may be left,
whatever labels that pod has. Until then it is absent, which changes nothing.

These proofs are about the namespace that we read. When the task was created in another one, nothing is proved and the
look is an error; when that namespace is gone for good, the task is gone at once (``namespace_identity``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.clusters.kubernetes.jobs.deletion import Deletion
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.looks import Look
from crawler_lifecycle.ports.runs import TaskRef

from .looks.details import DetailReader, LogTails
from .looks.explanations import Events, read_events, with_namespace
from .looks.inventory import Inventory, highest_run, task_records
from .looks.listing import (
    Objects,
    TaskObjects,
    find_job,
    is_of,
    listed_by_us,
    name_of,
    pods_of_jobs,
    read_objects,
    run_uid_of,
    task_id_of,
)
from .looks.namespace_identity import CurrentNamespace, read_identity
from .looks.predicates import deciding_pod
from .looks.reading import read_task
from .looks.termination_message import with_progress

#: Seconds between the two looks that together prove that a task is gone.
PROOF_S = 30.0
#: Names that are read in parallel, by all looks of a process, and by one look, so that no look waits for all names of
#: another. 10,000 names take 20 s this way; one after the other they would not fit into a look.
THREADS, PAGE = 16, 64


class KubernetesCluster:
    """The Jobs and pods of one namespace. Implements ``Cluster`` and ``KnowsRuns``; thread-safe."""

    kind = "kubernetes"
    #: A node removes the container of a deleted pod as soon as it has ended, even while our finalizer keeps the pod.
    log_fades = True

    def __init__(self, api: Api, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api = api
        self._clock = clock
        self._tails, deletion = LogTails(api), Deletion(api)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="absence")
        self.details = DetailReader(api, self._tails).read
        self.stop, self.kill = deletion.stop, deletion.kill
        self.inventory = Inventory(api, clock).page
        self.task_records, self.highest_run = partial(task_records, api), partial(highest_run, api)

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """One observation of each task, in their order. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when a task that is missing may live on in another namespace.
        """
        began, now = time.monotonic(), self._clock()
        namespace = CurrentNamespace(self._api)
        listed = self._list(run, tasks)
        found = self._prove_missing(run, listed, namespace)
        seen = self._read(run, found, now)
        seen = self._explain(run, found, seen, namespace)
        return Look(now, time.monotonic() - began, seen, _second_look_s(found, seen, now))

    def _list(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[TaskObjects]:
        """Two complete lists, Jobs before pods, and the objects of each task in them."""
        listed = read_objects(self._api, labels.of_run(run.run_id), {name_of(run.run_id, task) for task in tasks})
        return [listed.of(run.run_id, _with_uid(run, task, listed)) for task in tasks]

    def _prove_missing(self, run: RunRef, listed: list[TaskObjects], namespace: CurrentNamespace) -> list[TaskObjects]:
        """Read by name the Jobs that the lists lack, and check that missing tasks were created in this namespace."""
        found = _ask(self._api, run.run_id, listed, self._threads)
        gone = namespace.gone_for_good([one.task.place for one in found if not one.seen])
        return [replace(one, namespace_gone=one.task.place in gone) for one in found] if gone else found

    def _read(self, run: RunRef, found: Sequence[TaskObjects], now: datetime) -> list[Observation]:
        """Read the objects, with the events of those that wait without a stated reason."""
        events, read_at = read_events(self._api, found, now), self._clock()
        return [_read_one(run, one, events, now, read_at) for one in found]

    def _explain(
        self, run: RunRef, found: Sequence[TaskObjects], seen: list[Observation], namespace: CurrentNamespace
    ) -> list[Observation]:
        """Add what objects do not contain: the state of the namespace, and the crawlers' counters so far."""
        seen = with_namespace(namespace, found, seen)
        executing = {one.index: place for place, one in enumerate(seen) if one.phase is Phase.EXECUTING}
        pods = {
            index: pod for index, place in executing.items() if (pod := deciding_pod(found[place].pods)) is not None
        }
        for index, progress in self._tails.progress(run.run_id, pods).items():
            seen[executing[index]] = with_progress(seen[executing[index]], progress)
        return seen

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The namespace, with its uid and that of the cluster as far as we may read them. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when a task of ``beside`` may live on in another namespace.
        """
        place = str(read_identity(self._api))
        if others := set(beside) - {place}:
            CurrentNamespace(self._api).gone_for_good(others)
        return place


def _read_one(run: RunRef, one: TaskObjects, events: Events, now: datetime, read_at: datetime) -> Observation:
    if one.task.uid is None:
        return _never_deployed(run, one, now)
    if not one.pods and (one.job is None or one.namespace_gone):
        return _judge(one, now)
    return read_task(one.task, one.job, one.pods, events.of(one.uids()), now, read_at)


def _with_uid(run: RunRef, task: TaskRef, listed: Objects) -> TaskRef:
    """The task with the uid of its Job, also where the answer to its creation never reached the database."""
    job = listed.jobs.get(name_of(run.run_id, task))
    if job is None or task.uid is not None or not is_of(run, task, job.metadata.uid, job.metadata):
        return task
    return replace(task, uid=job.metadata.uid)


def _never_deployed(run: RunRef, one: TaskObjects, now: datetime) -> Observation:
    """A task that the cluster does not know; another Job may have its name."""
    task, other, words = one.task, one.job, None
    if other is not None and not run.owns(run_uid := run_uid_of(other.metadata)):
        words = run.foreign(f"The Job {other.metadata.name} ({other.metadata.uid})", run_uid)
    elif other is not None:
        number = task_id_of(other.metadata)
        whose = f"belongs to task {number}" if number is not None else "does not say whose it is"
        words = f"Another Job ({other.metadata.uid}) is under its name and {whose}; this is task {task.task_id}"
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason=words)


# --- the proof of absence ---------------------------------------------------------------------------------------


def _ask(api: Api, run_id: int, listed: Sequence[TaskObjects], threads: Executor) -> list[TaskObjects]:
    """The same tasks, after Jobs that the list unexpectedly lacks were read by name and checked by uid.

    Raises ``ApiError``, also when a list is older than what was already known.
    """

    def by_name(one: TaskObjects) -> Job | None:
        job = one.job or find_job(api, name_of(run_id, one.task))
        if job is not None and job.metadata.uid == one.task.uid and listed_by_us(job.metadata, run_id):
            # It existed before the list was requested: the API server lags, and may leave out more objects.
            raise ApiError(f"the list of Jobs is stale: {job.metadata.name} is not in it, and it is there")
        return job

    missing = {one.task.uid: one for one in listed if one.task.uid is not None and not one.has_job}
    if not missing:
        return list(listed)
    jobs: list[Job | None] = []
    for begin in range(0, len(missing), PAGE):
        jobs += threads.map(by_name, list(missing.values())[begin : begin + PAGE])
    pods = pods_of_jobs(api, list(missing))
    asked = {
        uid: replace(one, job=job, pods=pods.get(uid, []))
        for (uid, one), job in zip(missing.items(), jobs, strict=True)
    }
    return [asked.get(one.task.uid or "", one) for one in listed]


def _judge(missing: TaskObjects, now: datetime) -> Observation:
    """Return the state of a task without a Job and without a pod."""
    task = missing.task
    if missing.namespace_gone:
        words = "The namespace that it was put into was deleted, and it with it"
        return Observation(task.index, task.attempt, Phase.GONE, now, reason=words)
    if task.stopping or (task.missed_at is not None and (now - task.missed_at).total_seconds() >= PROOF_S):
        return Observation(task.index, task.attempt, Phase.GONE, now)
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason="It is not on the cluster any more")


def _second_look_s(found: Sequence[TaskObjects], seen: Sequence[Observation], now: datetime) -> float | None:
    """Seconds after which a second look can prove that a task is gone; ``None`` when there is nothing to prove."""
    missed = [
        its.task.missed_at or now
        for its, one in zip(found, seen, strict=True)
        if one.phase is Phase.ABSENT and its.task.uid is not None
    ]
    return max(1.0, PROOF_S - (now - min(missed)).total_seconds() + 0.1) if missed else None
