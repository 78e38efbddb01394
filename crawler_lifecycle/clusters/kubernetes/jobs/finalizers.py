"""Our finalizer on ended pods, and its removal after the end was recorded.

Each task needs two changes: its Job is marked as settled, and then each of its pods is marked and
loses the finalizer in one patch. Polls do not select settled objects. With this order, a crash
between the two leaves a pod with our finalizer, so the work is found again. After that the Job
stays only for ``job_ttl_s``, because ended Jobs count towards a quota, and fill the cluster's
store.

The task ends with its crawler, even if other parts of the task still exist. These parts have to end
too:

- A container next to the crawler does not notice that the crawler has ended. The same patch gives
  the pod a deadline in the past, so its node ends the pod. The pod's object and log stay, and the
  Job ends with the pod.
- A Job may have been suspended while its pod ran. A queue may resume it, or has resumed it already;
  then the Job would start a second pod. So we give it a deadline, and if it is suspended, we set
  its number of pods to zero. It stays in its queue, which resumes it: Kueue then sees it end, and
  frees its quota. Without the queue's label, Kueue would keep the quota until the Job is deleted.
- A suspension may have deleted a pod before the pod had a node. Nothing ran, and the Job waits
  until the pod is gone.

``list_held`` is for an administrator, when our services cannot remove the finalizer: they no longer
run, the namespace is being deleted, or they lost the permission to patch pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, Conflict, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.listing import (
    Key,
    find_job,
    key_by_name,
    key_of,
    list_pods,
    name_of,
    numbers_of,
    pods_of_tasks,
    run_uid_of,
)
from crawler_lifecycle.clusters.kubernetes.polls.predicates import (
    JOB_NAME,
    deleted_before_scheduling,
    ended,
    ended_at,
    job_is_over,
    owner_of,
    sidecar_still_runs,
    suspended_before_scheduling,
    taken_back,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import SavedOutcome
from crawler_lifecycle.ports.runs import TaskRef

logger = logging.getLogger(__name__)

THREADS = 4
#: The label that marks Jobs and pods whose end is recorded.
_MARK = {labels.SETTLED: "true"}
#: The time in which containers next to an ended crawler can end on their own.
BESIDE = timedelta(seconds=60)
#: Seconds between two lists of our waiting pods, our running pods, and pods without our label. A
#: pause is at least ``SHARE`` times as long as the list took, so that thousands of waiting or
#: running pods cost little.
WAITING_S = 3.0
RUNNING_S = 30.0
STRAYS_S = 300.0
SHARE = 20.0


class Finalizers:
    """The pods that our finalizer keeps as evidence.

    This class implements ``EvidenceKeeper``. Every method raises ``ApiError``.
    """

    def __init__(self, api: Api, clock: Clock = utc_now, *, ttl_s: int = 3_600) -> None:
        self._api = api
        self._clock = clock
        self._ttl = {"ttlSecondsAfterFinished": ttl_s}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="releases")
        self._seldom = (
            _Seldom(
                WAITING_S, lambda: self._over(list_pods(api, labels.ours(), "status.phase=Pending"))
            ),
            _Seldom(
                RUNNING_S, lambda: self._over(list_pods(api, labels.ours(), "status.phase=Running"))
            ),
            _Seldom(STRAYS_S, self._list_strays),
        )

    def kept(self) -> list[SavedOutcome]:
        """Return the tasks whose crawler has ended and whose pod still has our finalizer, in order.

        Each call lists ended pods. Some calls also list waiting and running pods, and a few list
        pods without our label, because a manual edit can remove it. If a suspension deleted a pod
        before the crawler began, the task has not ended: such a pod is released at once.
        """
        found = self._over(
            list_pods(self._api, labels.ours(), "status.phase!=Running,status.phase!=Pending")
        )
        return sorted(
            [*found, *(end for seldom in self._seldom for end in seldom.ends())],
            key=lambda end: end.key,
        )

    def _list_strays(self) -> list[SavedOutcome]:
        """List the pods with our finalizer but without our label.

        If this fails, the other lists still count.
        """
        try:
            return self._over(_held(self._api, f"{labels.MANAGED_BY}!={labels.MANAGER}"))
        except ApiError as error:
            logger.info("pods without our label cannot be listed: %s", error)
            return []

    def _over(self, pods: Sequence[Pod]) -> list[SavedOutcome]:
        """Return the tasks whose crawler ended in one of these pods, once the pod's other
        containers have ended or the time ``BESIDE`` has elapsed.
        """
        before = self._clock() - BESIDE
        found = []
        for pod in pods:
            if _ours_or_none(pod) is None or not ended(pod):
                continue
            waits = pod.status.phase == "Running" and (ended_at(pod) or before) > before
            if not waits and not (deleted_before_scheduling(pod) and self._release_suspended(pod)):
                found.append(pod)
        return _ends(found)

    def _release_suspended(self, pod: Pod) -> bool:
        """Release a pod that was deleted because its Job was suspended.

        Return ``False`` for any other pod.
        """
        name = pod.metadata.labels.get(JOB_NAME)
        job = find_job(self._api, name) if name else None
        if (
            job is None
            or job.metadata.uid != owner_of(pod)
            or not suspended_before_scheduling(job, pod)
        ):
            return False
        remove_finalizer(self._api, pod)
        return True

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Mark Jobs and pods as settled, and remove our finalizer from the pods.

        Every task is tried, and then the first error is raised.
        """
        pods = pods_of_tasks(self._api, run, tasks)
        over = {task: [pod for pod in its if ended(pod)] for task, its in pods.items()}
        calls = [
            self._threads.submit(self._release, name_of(run.run_id, task), held)
            for task, held in over.items()
        ]
        errors = [error for call in calls if (error := call.exception()) is not None]
        tried = {(run.run_id, task.index, task.attempt) for task in tasks}
        for seldom in self._seldom:
            seldom.forget(tried)
        if errors:
            raise errors[0]

    def _release(self, name: str, pods: Sequence[Pod]) -> None:
        for uid in sorted({uid for pod in pods if (uid := owner_of(pod)) is not None}):
            self._settle(self._api.jobs_path(name), uid, pods)
        for pod in pods:
            remove_finalizer(self._api, pod, labels=_MARK)

    def _settle(self, path: str, uid: str, pods: Sequence[Pod]) -> None:
        """Mark the Job as settled.

        If the Job was suspended while its pod ran, it is changed so that it ends without a pod.
        """
        answer = _patched(
            self._api, path, {"metadata": {"uid": uid, "labels": _MARK}, "spec": self._ttl}
        )
        job = decode(Job, answer) if answer is not None else None
        if job is None or job_is_over(job):
            return
        if job.spec.suspend or any(taken_back(job, pod) for pod in pods):
            spec = {"activeDeadlineSeconds": 1}
            if job.spec.suspend:
                spec["parallelism"] = 0
                # Only the Job's queue may resume the Job. Otherwise Kueue suspends it again, and
                # the Job controller may miss the moment when it was resumed.
                if labels.QUEUE not in job.metadata.labels:
                    spec["suspend"] = False
            _patched(self._api, path, {"metadata": {"uid": uid}, "spec": spec})


def _ours_or_none(pod: Pod) -> Pod | None:
    return pod if labels.FINALIZER in pod.metadata.finalizers else None


def _held(api: Api, selector: str | None) -> list[Pod]:
    """Return the selected pods that have our finalizer. Raises ``ApiError``."""
    found = api.listing(api.pods_path(), Pod, labels=selector, keep=_ours_or_none).items
    return [pod for pod in found if pod is not None]


class _Seldom:
    """The ended tasks in an expensive list, which is read rarely and remembered in between."""

    def __init__(self, every_s: float, read: Callable[[], list[SavedOutcome]]) -> None:
        self._every_s = every_s
        self._read = read
        self._at = 0.0
        self._ends: list[SavedOutcome] = []

    def ends(self) -> list[SavedOutcome]:
        """Return the ended tasks whose pods have not been released since the last list. Read the
        list again if it is due.

        Raises ``ApiError``.
        """
        began = time.monotonic()
        if began >= self._at:
            self._ends = self._read()
            over = time.monotonic()
            self._at = over + max(self._every_s, SHARE * (over - began))
        return self._ends

    def forget(self, keys: Collection[Key]) -> None:
        self._ends = [end for end in self._ends if end.key not in keys]


def _ends(pods: Sequence[Pod]) -> list[SavedOutcome]:
    """Return the ended tasks of those pods whose labels or names identify the task."""
    found = []
    for pod in pods:
        # Use the name first, because a manual edit may have changed our labels.
        key = key_by_name(pod) or key_of(pod.metadata)
        if key is not None:
            at = ended_at(pod)
            ran = at is not None and not deleted_before_scheduling(pod)
            found.append(SavedOutcome(*key, owner_of(pod), run_uid_of(pod.metadata), ran, at))
    return found


def list_held(api: Api, *, run_id: int | None = None) -> list[Pod]:
    """Return every pod of the namespace that has our finalizer, ordered by run, task and attempt.

    If ``run_id`` is ``None``, no label is required, so that pods that lost their labels are found,
    too. Raises ``ApiError``.
    """
    held = _held(api, None if run_id is None else labels.of_run(run_id, settled=None))
    return sorted(
        held,
        key=lambda pod: ([number or 0 for number in numbers_of(pod.metadata)], pod.metadata.name),
    )


def waits(pod: Pod) -> bool:
    """Return whether, now or soon, only our finalizer keeps the pod: its crawler has ended, or it
    is being deleted.
    """
    return ended(pod) or pod.metadata.deletion_timestamp is not None


def remove_finalizer(api: Api, pod: Pod, **metadata: object) -> bool:
    """Remove our finalizer from this pod, and end containers that are still running.

    Return whether the pod still existed.

    Other finalizers stay. A different pod with the same name is not changed. Raises ``ApiError``.
    """
    patch = removal_patch(pod.metadata.uid, end=sidecar_still_runs(pod), **metadata)
    return _patched(api, api.pods_path(pod.metadata.name), patch) is not None


def _patched(api: Api, path: str, body: dict[str, object]) -> bytes | None:
    """Patch the object and return it; ``None`` when it is gone, or a different object has its
    name.
    """
    try:
        return api.patch(path, body)
    except NotFound:
        return None
    except Conflict as error:  # the uid differs: another object has the name
        logger.info("not changed: %s", error)
        return None


def removal_patch(uid: str, *, end: bool = False, **metadata: object) -> dict[str, object]:
    """Return the strategic patch that removes our finalizer from the pod with this uid.

    Other finalizers stay. If ``end`` is true, the node also ends the pod, with the pod's own grace
    period. Unlike a deletion, this keeps the pod's object and log.
    """
    meta = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [labels.FINALIZER], **metadata}
    return {"metadata": meta, **({"spec": {"activeDeadlineSeconds": 1}} if end else {})}
