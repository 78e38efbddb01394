"""The pipeline of a look: list the objects, prove what is missing, read each task, explain what objects do not say.

A look remembers nothing that truth depends on: any number of processes may look at the same run, and any of them may
die. What the API did not answer is an error, never an observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.looks import Look
from crawler_lifecycle.ports.runs import TaskRef

from . import proof_of_absence
from .details import LogTails
from .explanations import Events, read_events, with_namespace
from .listing import Objects, TaskObjects, is_of, name_of, read_objects, run_uid_of, task_id_of
from .namespace_identity import CurrentNamespace
from .predicates import deciding_pod
from .reading import read_task
from .termination_message import with_progress


class Looks:
    """Looks at the tasks of runs. Thread-safe."""

    def __init__(self, api: Api, tails: LogTails, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._tails = tails
        self._clock = clock
        self._threads = ThreadPoolExecutor(proof_of_absence.THREADS, thread_name_prefix="absence")

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
        return Look(now, time.monotonic() - began, seen, proof_of_absence.second_look_s(found, seen, now))

    def _list(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[TaskObjects]:
        """Two complete lists, Jobs before pods; what they have of each task."""
        listed = read_objects(self._api, labels.of_run(run.run_id), {name_of(run.run_id, task) for task in tasks})
        return [listed.of(run.run_id, _with_uid(run, task, listed)) for task in tasks]

    def _prove_missing(self, run: RunRef, listed: list[TaskObjects], namespace: CurrentNamespace) -> list[TaskObjects]:
        """Ask by name for Jobs that the lists lack, and whether what is gone was in the namespace we look into."""
        found = proof_of_absence.ask(self._api, run.run_id, listed, self._threads)
        gone = namespace.gone_for_good([one.task.place for one in found if not one.seen])
        return [replace(one, namespace_gone=one.task.place in gone) for one in found] if gone else found

    def _read(self, run: RunRef, found: Sequence[TaskObjects], now: datetime) -> list[Observation]:
        """Read what the objects say, with the events of those that wait and do not say for what."""
        events, read_at = read_events(self._api, found, now), self._clock()
        return [_read_one(run, one, events, now, read_at) for one in found]

    def _explain(
        self, run: RunRef, found: Sequence[TaskObjects], seen: list[Observation], namespace: CurrentNamespace
    ) -> list[Observation]:
        """Add what no object says: the state of the namespace, and what the crawlers have counted so far."""
        seen = with_namespace(namespace, found, seen)
        executing = {one.index: place for place, one in enumerate(seen) if one.phase is Phase.EXECUTING}
        pods = {
            index: pod for index, place in executing.items() if (pod := deciding_pod(found[place].pods)) is not None
        }
        for index, progress in self._tails.progress(run.run_id, pods).items():
            seen[executing[index]] = with_progress(seen[executing[index]], progress)
        return seen


def _read_one(run: RunRef, one: TaskObjects, events: Events, now: datetime, read_at: datetime) -> Observation:
    if one.task.uid is None:
        return _never_deployed(run, one, now)
    if not one.pods and (one.job is None or one.namespace_gone):
        return proof_of_absence.judge(one, now)
    return read_task(one.task, one.job, one.pods, events.of(one.uids()), now, read_at)


def _with_uid(run: RunRef, task: TaskRef, listed: Objects) -> TaskRef:
    """The task with the uid of its Job, also where the answer to its creation never reached the database."""
    job = listed.jobs.get(name_of(run.run_id, task))
    if job is None or task.uid is not None or not is_of(run, task, job.metadata.uid, job.metadata):
        return task
    return replace(task, uid=job.metadata.uid)


def _never_deployed(run: RunRef, one: TaskObjects, now: datetime) -> Observation:
    """A task of which nothing is known on the cluster; another Job may have its name."""
    task, other, words = one.task, one.job, None
    if other is not None and not run.owns(run_uid := run_uid_of(other.metadata)):
        words = run.foreign(f"The Job {other.metadata.name} ({other.metadata.uid})", run_uid)
    elif other is not None:
        number = task_id_of(other.metadata)
        whose = f"belongs to task {number}" if number is not None else "does not say whose it is"
        words = f"Another Job ({other.metadata.uid}) is under its name and {whose}; this is task {task.task_id}"
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason=words)
