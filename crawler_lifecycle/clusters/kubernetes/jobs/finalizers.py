"""Finalizers: which ended pods carry ours, and removing it once their end is on record.

Two changes for each task: its Job is marked as settled, then each of its pods is marked and freed in one patch. Settled
objects do not match the selector of the looks any more. With this order, work that a crash interrupted is still found
by its pod.

The crawler's end is the task's, whatever else is left of it, and what is left has to end as well:

- a container beside the crawler, which nobody told that the crawler has ended: the same patch sets the pod a deadline
  that is over, so that its node ends it. The record and the log stay, and the Job ends with the pod;
- a Job that was suspended under its pod: whoever resumes it (a queue does) would start a second pod, and it would never
  be over. It is taken out of its queue, made a Job for no pods, and given a deadline as well;
- a pod that a suspension took back before it had a node: nothing ran, and its Job, which goes on, waits for it to go.

``list_held`` is for an administrator, when our services will not remove it any more: they are gone, the namespace shall
go, or their right to patch pods went first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, Conflict, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.looks.listing import (
    Key,
    find_job,
    job_is_over,
    key_by_name,
    key_of,
    list_pods,
    name_of,
    numbers_of,
    pods_of_tasks,
    run_uid_of,
)
from crawler_lifecycle.clusters.kubernetes.looks.predicates import (
    JOB_NAME,
    deleted_before_scheduling,
    ended,
    ended_at,
    owner_of,
    sidecar_still_runs,
    suspended_before_scheduling,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import KeptEnd
from crawler_lifecycle.ports.runs import TaskRef

logger = logging.getLogger(__name__)

THREADS = 4
#: Seconds that containers beside a crawler have to end by themselves.
BESIDE = timedelta(seconds=60)
#: Seconds between two lists of our running pods, and between two lists of pods without our label; at least so many
#: times the duration of such a list.
RUNNING_S, STRAYS_S, SHARE = 30.0, 300.0, 20.0


class Finalizers:
    """The evidence that pods are kept for. Implements ``EvidenceKeeper``; every method raises ``ApiError``."""

    def __init__(self, api: Api, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api = api
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="releases")
        self._outlived = _Seldom(RUNNING_S, lambda: self._over(list_pods(api, labels.ours(), "status.phase=Running")))
        self._strays = _Seldom(STRAYS_S, self._list_strays)

    def kept(self) -> list[KeptEnd]:
        """Tasks whose crawler has ended and whose pod still has our finalizer, in order.

        Each call lists pods that do not run; some calls also list running pods, and few calls list pods without our
        label, which anybody can remove. Pods that a suspension took back are released at once, because they are no end.
        """
        found = self._over(list_pods(self._api, labels.ours(), "status.phase!=Running"))
        return sorted([*found, *self._outlived.ends(), *self._strays.ends()], key=lambda end: end.key)

    def _list_strays(self) -> list[KeptEnd]:
        """List by our finalizer pods that lost our label by a manual edit. If this list fails, the other lists still
        count.
        """
        try:
            return self._over(_held(self._api, f"{labels.MANAGED_BY}!={labels.MANAGER}"))
        except ApiError as error:
            logger.info("pods that lost our label are not looked for: %s", error)
            return []

    def _over(self, pods: Sequence[Pod]) -> list[KeptEnd]:
        """The ends among these pods that we keep, after the time for the containers beside their crawler."""
        before, found = self._clock() - BESIDE, []
        for pod in pods:
            if _ours_or_none(pod) is None or not ended(pod):
                continue
            waits = pod.status.phase == "Running" and (ended_at(pod) or before) > before
            if not waits and not (deleted_before_scheduling(pod) and self._went_back(pod)):
                found.append(pod)
        return _ends(found)

    def _went_back(self, pod: Pod) -> bool:
        """Release a pod whose Job continues without it. Returns whether it was such a pod."""
        name = pod.metadata.labels.get(JOB_NAME)
        job = find_job(self._api, name) if name else None
        if job is None or job.metadata.uid != owner_of(pod) or not suspended_before_scheduling(job, pod):
            return False
        _patched(self._api, self._api.pods_path(pod.metadata.name), removal_patch(pod.metadata.uid))
        return True

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Mark Jobs and pods as settled, and take our finalizer off the pods.

        All of these are tried; the first error is raised when that was done.
        """
        pods = pods_of_tasks(self._api, run, tasks)
        over = {task: [pod for pod in its if ended(pod)] for task, its in pods.items()}
        calls = [self._threads.submit(self._release, name_of(run.run_id, task), held) for task, held in over.items()]
        errors = [error for call in calls if (error := call.exception()) is not None]
        tried = {(run.run_id, task.index, task.attempt) for task in tasks}
        for seldom in (self._outlived, self._strays):
            seldom.forget(tried)
        if errors:
            raise errors[0]

    def _release(self, name: str, pods: Sequence[Pod]) -> None:
        mark = {labels.SETTLED: "true"}
        for uid in sorted({uid for pod in pods if (uid := owner_of(pod)) is not None}):
            self._settle(self._api.jobs_path(name), uid, mark)
        for pod in pods:
            patch = removal_patch(pod.metadata.uid, end=sidecar_still_runs(pod), labels=mark)
            _patched(self._api, self._api.pods_path(pod.metadata.name), patch)

    def _settle(self, path: str, uid: str, mark: dict[str, str]) -> None:
        """Mark the Job. A suspended Job is changed so that it ends by itself without a pod."""
        answer = _patched(self._api, path, {"metadata": {"uid": uid, "labels": mark}})
        job = decode(Job, answer) if answer is not None else None
        if job is not None and job.spec.suspend and not job_is_over(job):
            # Removed from its queue first: the label cannot be changed after it is unsuspended.
            alone = {"metadata": {"uid": uid, "labels": {labels.QUEUE: None}}, "spec": {"parallelism": 0}}
            _patched(self._api, path, alone)
            _patched(
                self._api, path, {"metadata": {"uid": uid}, "spec": {"suspend": False, "activeDeadlineSeconds": 1}}
            )


def _ours_or_none(pod: Pod) -> Pod | None:
    return pod if labels.FINALIZER in pod.metadata.finalizers else None


def _held(api: Api, selector: str | None) -> list[Pod]:
    """The selected pods that have our finalizer. Raises ``ApiError``."""
    found = api.listing(api.pods_path(), Pod, labels=selector, keep=_ours_or_none).items
    return [pod for pod in found if pod is not None]


class _Seldom:
    """Ends of a list that is dear: read now and then, and remembered in between."""

    def __init__(self, every_s: float, read: Callable[[], list[KeptEnd]]) -> None:
        self._every_s, self._read = every_s, read
        self._at = 0.0
        self._ends: list[KeptEnd] = []

    def ends(self) -> list[KeptEnd]:
        """Return the ends of the last list that were not released. Raises ``ApiError``."""
        began = time.monotonic()
        if began >= self._at:
            self._ends = self._read()
            over = time.monotonic()
            self._at = over + max(self._every_s, SHARE * (over - began))
        return self._ends

    def forget(self, keys: Collection[Key]) -> None:
        self._ends = [end for end in self._ends if end.key not in keys]


def _ends(pods: Sequence[Pod]) -> list[KeptEnd]:
    """The ends whose task is known."""
    found = []
    for pod in pods:
        key = key_by_name(pod) or key_of(pod.metadata)  # our own labels are anybody's to change
        if key is not None:
            at = ended_at(pod)
            ran = at is not None and not deleted_before_scheduling(pod)
            found.append(KeptEnd(*key, owner_of(pod), run_uid_of(pod.metadata), ran, at))
    return found


def list_held(api: Api, *, run_id: int | None = None) -> list[Pod]:
    """Every pod of the namespace that has our finalizer, in the order of run, task and attempt.

    Without ``run_id`` no label is required: a pod that lost its labels by a manual edit is held too. Raises
    ``ApiError``.
    """
    held = _held(api, None if run_id is None else labels.of_run(run_id, settled=None))
    return sorted(held, key=lambda pod: ([one or 0 for one in numbers_of(pod.metadata)], pod.metadata.name))


def waits(pod: Pod) -> bool:
    """Return whether our finalizer is all that a pod waits for, now or soon: it has ended, or is being deleted."""
    return ended(pod) or pod.metadata.deletion_timestamp is not None


def remove_finalizer(api: Api, pod: Pod) -> bool:
    """Remove our finalizer from this pod and leave those of others; returns whether it was still there.

    Containers that outlived its crawler are ended. Another pod of the same name is left alone. Raises ``ApiError``.
    """
    patch = removal_patch(pod.metadata.uid, end=sidecar_still_runs(pod))
    return _patched(api, api.pods_path(pod.metadata.name), patch) is not None


def _patched(api: Api, path: str, body: dict[str, object]) -> bytes | None:
    """The object as it is now; ``None`` when it is gone or another one."""
    try:
        return api.patch(path, body)
    except NotFound:
        return None
    except Conflict as error:  # checked by uid: another object has the name, and it is not ours
        logger.info("left alone: %s", error)
        return None


def removal_patch(uid: str, *, end: bool = False, **metadata: object) -> dict[str, object]:
    """The strategic patch by which our finalizer leaves the pod with this uid, and those of others stay.

    ``end``: the node also ends the pod, with its own grace. Unlike a deletion this keeps its record and log.
    """
    meta = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [labels.FINALIZER], **metadata}
    return {"metadata": meta, **({"spec": {"activeDeadlineSeconds": 1}} if end else {})}


def waiting_longer_than(pods: Sequence[Pod], now: datetime, longer_than_s: float) -> list[Pod]:
    """Return the pods that wait for longer than this: they should have been released."""
    return [
        pod
        for pod in pods
        if waits(pod)
        and (since := ended_at(pod) or pod.metadata.deletion_timestamp) is not None
        and (now - since).total_seconds() > longer_than_s
    ]
