"""Complete lists of our Jobs and pods, and the owner of each object.

Jobs are listed before pods. If a Job had ended when the Jobs were listed, all its pods are in the
later list, because our finalizer keeps them. In the reverse order, the lists could contain an ended
Job without its pod, if the pod began and ended between them. Then its exit code and summary would
be lost. A pod may still be missing, for example when a manual edit removed our label. Then pods are
listed by the uid of their Job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, TypeVar

import msgspec

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, ObjectMeta, Pod, decode
from crawler_lifecycle.domain.bounds import whole
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRef

from .predicates import CONTROLLER_UID, JOB_NAME, job_is_over, owner_of

#: The maximum number of values in one selector, because a URL must not exceed a few kilobytes.
IN_MAX = 50
#: The maximum number of lists by uid. If more are needed, one list of the pods of all Jobs is read
#: instead.
LISTS_MAX = 4

Key = tuple[int, int, int]
#: Pods by the uid of their Job.
PodsOfJobs = dict[str, list[Pod]]

if TYPE_CHECKING:
    _OurLabels: TypeAlias = Mapping[str, str]
    _OurAnnotations: TypeAlias = Mapping[str, str]
else:
    _OurLabels = TypedDict(
        "_OurLabels", dict.fromkeys((*labels.READ, CONTROLLER_UID, JOB_NAME), str), total=False
    )
    _OurAnnotations = TypedDict(
        "_OurAnnotations", dict.fromkeys(labels.ANNOTATIONS_READ, str), total=False
    )


class _Meta(ObjectMeta, frozen=True):
    """The metadata of a listed object, omitting the labels and annotations that no poll reads,
    which may be many.
    """

    labels: _OurLabels = msgspec.field(default_factory=dict)
    annotations: _OurAnnotations = msgspec.field(default_factory=dict)


class ListedJob(Job, frozen=True):
    metadata: _Meta


class ListedPod(Pod, frozen=True):
    metadata: _Meta


Listed = TypeVar("Listed", ListedJob, ListedPod)


class Sharing:
    """A cache that lets the objects of a run share their labels, to save memory.

    This is safe because no code changes the labels later.
    """

    def __init__(self) -> None:
        self._run: dict[str, str] | None = None

    def keep(self, one: Listed) -> Listed:
        """Return the same object."""
        known: Any = one.metadata.labels
        if self._run is None:
            self._run = {name: known[name] for name in labels.OF_RUN if name in known}
        if self._run.items() <= known.items():
            known.update(self._run)
        return one


@dataclass(frozen=True, slots=True)
class Objects:
    """Jobs by name, and pods by the uid of their Job."""

    jobs: Mapping[str, Job]
    pods: Mapping[str, list[Pod]]


class TaskObjects(NamedTuple):
    """The existing objects of one task."""

    task: TaskRef
    job: Job | None
    """The Job with the task's name. This Job may belong to another task."""
    pods: list[Pod]
    """The pods of the task's own Job, even if the Job is gone."""
    namespace_gone: bool = False
    """True when the task's namespace is certainly gone."""

    @property
    def has_job(self) -> bool:
        """True when the Job is the task's own."""
        return self.job is not None and self.job.metadata.uid == self.task.uid

    @property
    def seen(self) -> bool:
        """True when the task's own Job or one of its pods exists."""
        return self.has_job or bool(self.pods)

    def uids(self) -> list[str]:
        """Return the uids of the Job and the pods."""
        return [owned.metadata.uid for owned in ([self.job] if self.job else []) + self.pods]


def read_objects(api: Api, selector: str, names: Collection[str] | None = None) -> Objects:
    """Read all objects that match the selector in two complete lists, and then, by uid, the missing
    pods of the Jobs in ``names``, by default of all Jobs.

    Raises ``ApiError``.
    """
    keep = Sharing().keep
    listed = api.listing(api.jobs_path(), ListedJob, labels=selector, keep=keep).items
    jobs = {job.metadata.name: job for job in listed}
    pods = by_owner(api.listing(api.pods_path(), ListedPod, labels=selector, keep=keep).items)
    wanted = [job for name, job in jobs.items() if names is None or name in names]
    bare = [job.metadata.uid for job in wanted if job.metadata.uid not in pods and _had_pods(job)]
    return Objects(jobs, pods | pods_of_jobs(api, bare))


def _had_pods(job: Job) -> bool:
    """Return whether the Job has ended, is being deleted, or had pods according to its own
    status.
    """
    status = job.status
    counted = any((status.active, status.terminating, status.succeeded, status.failed))
    return counted or job.metadata.deletion_timestamp is not None or job_is_over(job)


def pods_of_jobs(api: Api, uids: Sequence[str]) -> PodsOfJobs:
    """Return all pods of these Jobs by the Job's uid, even pods without our labels.

    Raises ``ApiError``.
    """
    wanted = set(uids)
    found = PodsOfJobs()
    pages = [uids[begin : begin + IN_MAX] for begin in range(0, len(uids), IN_MAX)]
    selectors = [f"{CONTROLLER_UID} in ({','.join(sorted(page))})" for page in pages]
    # The server reads all pods of the namespace for each list, so several lists are not cheaper
    # than one.
    for selector in selectors if len(pages) <= LISTS_MAX else [CONTROLLER_UID]:
        found |= by_owner(list_pods(api, selector))
    return {uid: pods for uid, pods in found.items() if uid in wanted}


def pods_of_tasks(api: Api, run: RunRef, tasks: Sequence[TaskRef]) -> dict[TaskRef, list[Pod]]:
    """Return the unsettled pods of each of these tasks, even pods without our labels.

    Raises ``ApiError``.
    """
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
    """Return the Job with this name, which may not be ours; ``None`` if no Job has this name.

    Raises ``ApiError``.

    Only a response from the API server itself counts: a 404 from a proxy, or a 404 response that
    was cut off, proves nothing.
    """
    try:
        return decode(Job, api.get(api.jobs_path(name)))
    except NotFound as error:
        if error.reason != "NotFound":
            raise
        return None


def list_pods(api: Api, selector: str, fields: str | None = None) -> Sequence[Pod]:
    """Return all pods that the selectors match. Raises ``ApiError``."""
    return api.listing(api.pods_path(), ListedPod, labels=selector, fields=fields).items


def by_owner(pods: Iterable[Pod]) -> PodsOfJobs:
    """Return the pods by the uid of their Job.

    A pod without a Job belongs to no task and is left out.
    """
    found: PodsOfJobs = {}
    for pod in pods:
        uid = owner_of(pod)
        if uid:
            found.setdefault(uid, []).append(pod)
    return found


def of_tasks(run_id: int, tasks: Sequence[TaskRef], *, settled: bool | None = False) -> str:
    """Return the selector of these tasks of a run, or of the whole run if there are too many tasks
    for one selector.
    """
    selector = labels.of_run(run_id, settled=settled)
    indexes = sorted({task.index for task in tasks})
    if len(indexes) > IN_MAX:
        return selector
    return f"{selector},{labels.TASK} in ({','.join(map(str, indexes))})"


def name_of(run_id: int, task: TaskRef) -> str:
    """Return the name of the task's Job."""
    return cluster_name(run_id, task.index, task.attempt)


def key_of(meta: ObjectMeta) -> Key | None:
    """Return run, index and attempt from an object's labels; ``None`` when any of the three is
    missing or invalid.
    """
    run_id, index, attempt = numbers_of(meta)
    return None if run_id is None or index is None or attempt is None else (run_id, index, attempt)


def numbers_of(meta: ObjectMeta) -> tuple[int | None, int | None, int | None]:
    """Return run, index and attempt from an object's labels. A value that is missing or invalid is
    ``None``.
    """
    return (
        whole(meta.labels.get(labels.RUN)),
        whole(meta.labels.get(labels.TASK)),
        whole(meta.labels.get(labels.ATTEMPT)),
    )


def key_by_name(pod: Pod) -> Key | None:
    """Return run, index and attempt from the name of the pod's Job, for a pod that lost our labels.

    The Job controller writes this name to a label of the pod.
    """
    numbers = [whole(part) for part in pod.metadata.labels.get(JOB_NAME, "").split("-")[1:]]
    if len(numbers) != 3 or None in numbers:
        return None
    key = (numbers[0] or 0, numbers[1] or 0, numbers[2] or 0)
    return key if cluster_name(*key) == pod.metadata.labels[JOB_NAME] else None


def run_uid_of(meta: ObjectMeta) -> str | None:
    """Return the uid of the run from the object's labels."""
    return meta.labels.get(labels.RUN_UID)


def task_id_of(meta: ObjectMeta) -> int | None:
    """Return the id of the task's row from the object's labels or annotations."""
    return whole(meta.labels.get(labels.TASK_ID) or meta.annotations.get(labels.TASK_ID))


def is_of(run: RunRef, task: TaskRef, uid: str | None, meta: ObjectMeta) -> bool:
    """Return whether an object with the task's name belongs to the task.

    This is decided by the uid of the Job if that uid is recorded, else by the uid of the run and
    the id of the task's row. A name and numbers alone prove nothing: another database, or this
    database before a restore, may have used the same name and numbers.
    """
    if task.uid is not None:
        return uid == task.uid
    return run.owns(run_uid_of(meta)) and task_id_of(meta) == task.task_id


def listed_by_us(meta: ObjectMeta, run_id: int, task: TaskRef) -> bool:
    """Return whether all selectors of a poll of this task (``of_tasks``) match the object."""
    wanted = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RUN: str(run_id),
        labels.TASK: str(task.index),
    }
    return wanted.items() <= meta.labels.items() and labels.SETTLED not in meta.labels
