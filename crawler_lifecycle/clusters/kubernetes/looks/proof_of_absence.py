"""The proof of absence: when a task that is not in the lists is gone, and what is said before that is proved.

*Gone* is proved by a complete list without it and a 404 for its name read at the newest version, at a look and again at
one at least 30 s later; at once when we had asked it to end ourselves. In both cases no pod of its Job may be left,
whatever labels that pod has. Until then it is absent, which changes nothing.

All of that says something about the namespace we look into. When it is not the one that the task was put into, nothing
is proved and the look is an error; when that one is gone for good, so is the task, at once (``namespace_identity``).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import TaskRef

from .listing import TaskObjects, find_job, listed_by_us, name_of, pods_of_jobs

#: Seconds between the two looks that prove together that a task is gone.
PROOF_S = 30.0
#: Names that are asked for at once, by all looks of a process; and by one look, so that none waits behind all names
#: of another. 10,000 names take 20 s so, where one after the other they would not fit into a look.
THREADS, PAGE = 16, 64


def ask(api: Api, run_id: int, listed: Sequence[TaskObjects], threads: Executor) -> list[TaskObjects]:
    """The same tasks; those whose Job should be in the list and is not were asked for by its name and its uid.

    Raises ``ApiError``, also when a list has turned out to be older than what was already known.
    """

    def by_name(one: TaskObjects) -> Job | None:
        return one.job or _by_name(api, run_id, one.task)

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


def _by_name(api: Api, run_id: int, task: TaskRef) -> Job | None:
    job = find_job(api, name_of(run_id, task))
    if job is not None and job.metadata.uid == task.uid and listed_by_us(job.metadata, run_id):
        # It was there before the list was asked for: an API server that is behind, and whatever else it left out.
        raise ApiError(f"the list of Jobs is stale: {job.metadata.name} is not in it, and it is there")
    return job


def judge(missing: TaskObjects, now: datetime) -> Observation:
    """Return the state of a task of which neither its Job nor a pod was found."""
    task = missing.task
    if missing.namespace_gone:
        words = "The namespace that it was put into was deleted, and it with it"
        return Observation(task.index, task.attempt, Phase.GONE, now, reason=words)
    if task.stopping or (task.missed_at is not None and (now - task.missed_at).total_seconds() >= PROOF_S):
        return Observation(task.index, task.attempt, Phase.GONE, now)
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason="It is not on the cluster any more")


def second_look_s(found: Sequence[TaskObjects], seen: Sequence[Observation], now: datetime) -> float | None:
    """Seconds after which a second look can prove that a task is gone; ``None`` when there is nothing to prove."""
    waits = [_again_s(its.task, one, now) for its, one in zip(found, seen, strict=True)]
    return min((wait for wait in waits if wait is not None), default=None)


def _again_s(task: TaskRef, seen: Observation, now: datetime) -> float | None:
    if seen.phase is not Phase.ABSENT or task.uid is None:
        return None
    passed = (now - task.missed_at).total_seconds() if task.missed_at is not None else 0.0
    return max(1.0, PROOF_S - passed + 0.1)
