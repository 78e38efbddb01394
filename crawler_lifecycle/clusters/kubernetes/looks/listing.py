"""Listing: complete lists of our Jobs and pods, and the owner of each object.

Jobs are listed before pods. If a Job was over when the Jobs were listed, all its pods are in the later list, because
our finalizer keeps them. In the other order, a pod created and ended between the lists would be missing beside its
ended Job, and its exit code and summary would be lost. Where pods are still missing, for example without our label
after a manual edit, they are listed by the uid of their Job.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import force_setattr

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, JobStatus, ObjectMeta, Pod, PodStatus, decode
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRef

from .predicates import CONTROLLER_UID, JOB_NAME, number, owner_of, verdict

#: Values in one selector: an address has to stay below some kilobytes.
IN_MAX = 50
#: The most lists by uid; for more of them one list of the pods of all Jobs is read.
LISTS_MAX = 4

Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Objects:
    """Jobs by name and pods by the uid of their Job."""

    jobs: dict[str, Job]
    pods: dict[str, list[Pod]]

    def of(self, run_id: int, task: TaskRef) -> TaskObjects:
        """Return the objects of the task in these lists."""
        return TaskObjects(task, self.jobs.get(name_of(run_id, task)), self.pods.get(task.uid or "", []))


@dataclass(frozen=True, slots=True)
class TaskObjects:
    """The objects that there are of one task."""

    task: TaskRef
    job: Job | None
    """The Job of the task's name; perhaps not the task's own."""
    pods: list[Pod]
    """The pods of the task's own Job, also when the Job is gone."""
    namespace_gone: bool = False
    """True when the task's namespace is certainly gone."""

    @property
    def has_job(self) -> bool:
        """True when the Job is the task's own."""
        return self.job is not None and self.task.uid is not None and self.job.metadata.uid == self.task.uid

    @property
    def seen(self) -> bool:
        """True when anything of the task's own is there."""
        return self.has_job or bool(self.pods)

    def uids(self) -> list[str]:
        """The uids of all these objects."""
        return [one.metadata.uid for one in ([self.job] if self.job else []) + self.pods]


def read_objects(api: Api, selector: str, names: Collection[str] | None = None) -> Objects:
    """All objects of the selector: two complete lists, and missing pods of these Jobs (or of all).

    Raises ``ApiError``.
    """
    interner = Interner()
    listed = api.listing(api.jobs_path(), Job, labels=selector, keep=interner.job).items
    jobs = {job.metadata.name: job for job in listed}
    pods = by_owner(api.listing(api.pods_path(), Pod, labels=selector, keep=interner.pod).items)
    wanted = [job for name, job in jobs.items() if names is None or name in names]
    bare = [job.metadata.uid for job in wanted if job.metadata.uid not in pods and _had_pods(job)]
    return Objects(jobs, pods | pods_of_jobs(api, bare))


def _had_pods(job: Job) -> bool:
    """Return whether the Job has counted pods, or would end its task if it had none."""
    status = job.status
    counted = any((status.active, status.terminating, status.succeeded, status.failed))
    return counted or job.metadata.deletion_timestamp is not None or job_is_over(job)


def pods_of_jobs(api: Api, uids: Sequence[str]) -> dict[str, list[Pod]]:
    """All pods of these Jobs, with or without our labels, by the uid of the Job. Raises ``ApiError``."""
    wanted, found = set(uids), dict[str, list[Pod]]()
    pages = [uids[begin : begin + IN_MAX] for begin in range(0, len(uids), IN_MAX)]
    selectors = [f"{CONTROLLER_UID} in ({','.join(sorted(page))})" for page in pages]
    # The server reads all pods of the namespace, whatever the selector.
    for selector in selectors if len(pages) <= LISTS_MAX else [CONTROLLER_UID]:
        found |= by_owner(list_pods(api, selector))
    return {uid: pods for uid, pods in found.items() if uid in wanted}


def pods_of_tasks(api: Api, run: RunRef, tasks: Sequence[TaskRef]) -> dict[TaskRef, list[Pod]]:
    """The pods of each of these tasks that are not settled, also those without our labels. Raises ``ApiError``."""
    wanted = {(run.run_id, task.index, task.attempt): task for task in tasks}
    found: dict[TaskRef, list[Pod]] = {task: [] for task in tasks}
    for pod in list_pods(api, of_tasks(run.run_id, tasks)):
        task = wanted.get(key_of(pod.metadata) or (0, 0, 0))
        if task is not None and is_of(run, task, owner_of(pod), pod.metadata):
            found[task].append(pod)
    bare = {task.uid: task for task, pods in found.items() if task.uid is not None and not pods}
    for uid, pods in pods_of_jobs(api, list(bare)).items():
        found[bare[uid]] = [pod for pod in pods if labels.SETTLED not in pod.metadata.labels]
    return found


def find_job(api: Api, name: str) -> Job | None:
    """The Job of this name, whoever owns it. Raises ``ApiError``."""
    try:
        return decode(Job, api.get(api.jobs_path(name)))
    except NotFound:
        return None


def list_pods(api: Api, selector: str, fields: str | None = None) -> list[Pod]:
    """All pods under the selectors. Raises ``ApiError``."""
    return api.listing(api.pods_path(), Pod, labels=selector, fields=fields, keep=Interner().pod).items


def by_owner(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Pods by the uid of their Job; a pod without a Job belongs to no task."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        uid = owner_of(pod)
        if uid:
            found.setdefault(uid, []).append(pod)
    return found


def of_tasks(run_id: int, tasks: Sequence[TaskRef], *, settled: bool | None = False) -> str:
    """The selector of these tasks of a run, or of the whole run where a list of tasks would be too long."""
    selector = labels.of_run(run_id, settled=settled)
    indexes = sorted({task.index for task in tasks})
    if len(indexes) > IN_MAX:
        return selector
    return f"{selector},{labels.TASK} in ({','.join(map(str, indexes))})"


def name_of(run_id: int, task: TaskRef) -> str:
    """The name of the task's Job."""
    return cluster_name(run_id, task.index, task.attempt)


def key_of(meta: ObjectMeta) -> Key | None:
    """Run, index and attempt by an object's labels; ``None`` where they are not ours, or were edited."""
    run_id, index, attempt = numbers_of(meta)
    return None if run_id is None or index is None or attempt is None else (run_id, index, attempt)


def numbers_of(meta: ObjectMeta) -> tuple[int | None, int | None, int | None]:
    """Run, index and attempt, each if the object's labels have it."""
    return (
        number(meta.labels.get(labels.RUN)),
        number(meta.labels.get(labels.TASK)),
        number(meta.labels.get(labels.ATTEMPT)),
    )


def key_by_name(pod: Pod) -> Key | None:
    """The same by the name of its Job, which the Job controller wrote on it; for a pod that lost our labels."""
    numbers = [number(part) for part in pod.metadata.labels.get(JOB_NAME, "").split("-")[1:]]
    if len(numbers) != 3 or None in numbers:
        return None
    key = (numbers[0] or 0, numbers[1] or 0, numbers[2] or 0)
    return key if cluster_name(*key) == pod.metadata.labels[JOB_NAME] else None


def run_uid_of(meta: ObjectMeta) -> str | None:
    """The uid of the run on its labels."""
    return meta.labels.get(labels.RUN_UID)


def task_id_of(meta: ObjectMeta) -> int | None:
    """The id of the task's row."""
    return number(meta.labels.get(labels.TASK_ID) or meta.annotations.get(labels.TASK_ID))


def is_of(run: RunRef, task: TaskRef, uid: str | None, meta: ObjectMeta) -> bool:
    """Return whether an object under the task's name belongs to it: by the uid of its Job, or else by the uid of its
    run and the id of its row.

    Name and numbers alone are no proof: another database, or this one before a restore, may have given out the same.
    """
    if task.uid is not None:
        return uid == task.uid
    return run.owns(run_uid_of(meta)) and task_id_of(meta) == task.task_id


def listed_by_us(meta: ObjectMeta, run_id: int) -> bool:
    """Return whether a look's selector finds the object."""
    mine = meta.labels.get(labels.MANAGED_BY) == labels.MANAGER and meta.labels.get(labels.RUN) == str(run_id)
    return mine and labels.SETTLED not in meta.labels


def job_is_over(job: Job) -> bool:
    """Return whether the controller has decided about the Job: nothing is left to be stopped."""
    return verdict(job, final=False) is not None


H = TypeVar("H", bound=Hashable)


class Interner:
    """Makes equal parts of the objects of one reading one object in memory.

    Use it for one reading; not thread-safe. The pods of a run differ little except in their names: 10,000 Jobs and
    their pods take 59 MiB as decoded, and 26 MiB this way. Nobody changes an object afterwards. The parts that differ
    in each pod are not shared.
    """

    def __init__(self) -> None:
        known: dict[Any, Any] = {}
        # Bound once and called by ``map``: no Python is executed for the millions of strings of a large run.
        self._one = known.setdefault

    def job(self, job: Job) -> Job:
        """The same Job."""
        self._metadata(job.metadata)
        self._conditions(job.status)
        return job

    def pod(self, pod: Pod) -> Pod:
        """The same pod."""
        self._metadata(pod.metadata)
        self._conditions(pod.status)
        if pod.spec.containers:
            force_setattr(pod.spec, "containers", self._each(pod.spec.containers))
        return pod

    def _metadata(self, meta: ObjectMeta) -> None:
        if meta.labels:
            force_setattr(meta, "labels", self._strings(meta.labels))
        if meta.annotations:
            force_setattr(meta, "annotations", self._strings(meta.annotations))
        if meta.finalizers:
            force_setattr(meta, "finalizers", self._each(meta.finalizers))

    def _conditions(self, status: JobStatus | PodStatus) -> None:
        if status.conditions:
            force_setattr(status, "conditions", self._each(status.conditions))

    def _strings(self, of: Mapping[str, str]) -> Mapping[str, str]:
        return dict(zip(map(self._one, of, of), map(self._one, of.values(), of.values()), strict=True))

    def _each(self, parts: Sequence[H]) -> tuple[H, ...]:
        return tuple(map(self._one, parts, parts))
