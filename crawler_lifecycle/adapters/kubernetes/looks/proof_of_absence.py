"""When a task that is not in the lists is gone, and what is said before that is proved.

*Gone* is proved by a complete list without it and a 404 for its name read at the newest version, at a look and again at
one at least 30 s later; at once when we had asked it to end ourselves. In both cases no pod of its Job may be left,
whatever labels that pod has. Until then it is absent, which changes nothing.

All of that says something about the namespace we look into. When it is not the one that the task was put into, nothing
is proved and the look is an error; when that one is gone for good, so is the task, at once (``place``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime

from crawler_lifecycle.adapters.kubernetes.client.connection import Api
from crawler_lifecycle.adapters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.adapters.kubernetes.client.objects import Job, Pod, decode_job
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports import TaskRef

from .listing import Objects, listed_by_us, name_of, pods_of_jobs

#: Seconds between the two looks that prove together that a task is gone.
PROOF_S = 30.0
#: Names that are asked for at once, by all looks of a process; and by one look, so that none waits behind all names
#: of another. 10,000 names take 20 s so, where one after the other they would not fit into a look.
THREADS, PAGE = 16, 64


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a task that the lists do not show as it should be."""

    job: Job | None = None
    """Under its name; perhaps another object than ours."""
    pods: list[Pod] = field(default_factory=list)
    """Of our Job."""


def ask(api: Api, run_id: int, tasks: Sequence[TaskRef], listed: Objects, threads: Executor) -> dict[str, Found]:
    """Ask for these tasks, of which the uid is known, by name and by their Jobs' uids; the answers by uid.

    Raises ``ApiError``, also when a list has turned out to be older than what was already known.
    """

    def one(task: TaskRef) -> Found:
        return Found(listed.jobs.get(name_of(run_id, task)) or _by_name(api, run_id, task))

    found: dict[str, Found] = {}
    for begin in range(0, len(tasks), PAGE):
        page = tasks[begin : begin + PAGE]
        found |= {task.uid or "": its for task, its in zip(page, threads.map(one, page), strict=True)}
    for uid, pods in pods_of_jobs(api, list(found)).items():
        found[uid].pods.extend(pods)
    return found


def _by_name(api: Api, run_id: int, task: TaskRef) -> Job | None:
    try:
        job = decode_job(api.get(api.jobs_path(name_of(run_id, task))))
    except NotFound:
        return None
    if job.metadata.uid == task.uid and listed_by_us(job.metadata, run_id):
        # It was there before the list was asked for: an API server that is behind, and whatever else it left out.
        raise ApiError(f"the list of Jobs is stale: {job.metadata.name} is not in it, and it is there")
    return job


def unseen(tasks: Sequence[TaskRef], found: Sequence[Found]) -> list[TaskRef]:
    """Those of which nothing was found that is their own."""
    return [
        task
        for task, one in zip(tasks, found, strict=True)
        if not one.pods and (task.uid is None or one.job is None or one.job.metadata.uid != task.uid)
    ]


def observe(
    task: TaskRef,
    found: Found,
    now: datetime,
    read: Callable[[Job | None, list[Pod]], Observation],
    left_for_good: Collection[str] = (),
) -> Observation:
    """What a task is whose Job the lists did not show. ``read`` is how objects are read.

    ``left_for_good`` are places that are gone for certain, with all that was in them.
    """
    if task.place in left_for_good and not found.pods:
        words = "The namespace that it was put into was deleted, and it with it"
        return Observation(task.index, task.attempt, Phase.GONE, now, reason=words)
    if found.job is not None or found.pods:
        return read(found.job, found.pods)
    proved = task.stopping or (task.missed_at is not None and (now - task.missed_at).total_seconds() >= PROOF_S)
    if proved:
        return Observation(task.index, task.attempt, Phase.GONE, now)
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason="It is not on the cluster any more")


def again_s(task: TaskRef, seen: Observation, now: datetime) -> float | None:
    """Seconds after which the second look can prove that the task is gone; ``None`` when there is nothing to prove."""
    if seen.phase is not Phase.ABSENT or task.uid is None:
        return None
    passed = (now - task.missed_at).total_seconds() if task.missed_at is not None else 0.0
    return max(1.0, PROOF_S - passed + 0.1)
