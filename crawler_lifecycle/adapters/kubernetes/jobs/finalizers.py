"""Finalizers: which ended pods carry ours, and removing it once their end is on record.

Two changes for each task: its Job is marked as settled, then each of its pods is marked and freed in one patch. What is
settled leaves the selector of the looks. In this order, what a crash leaves half done is still found by its pod.

The crawler's end is the task's, whatever else is left of it, and what is left has to end as well:

- a container beside the crawler, which nobody told that the crawler has ended: the same patch sets the pod a deadline
  that is over, so that its node ends it. The record and the log stay, and the Job ends with the pod;
- a Job that was suspended under its pod: whoever resumes it (a queue does) would start a second pod, and it would never
  be over. It is taken out of its queue, made a Job for no pods, and given a deadline as well;
- a pod that a suspension took back before it had a node: nothing ran, and its Job, which goes on, waits for it to go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from crawler_lifecycle.adapters.kubernetes import labels
from crawler_lifecycle.adapters.kubernetes.client.connection import Api
from crawler_lifecycle.adapters.kubernetes.client.errors import Conflict, NotFound
from crawler_lifecycle.adapters.kubernetes.client.objects import Pod, decode_job
from crawler_lifecycle.adapters.kubernetes.looks.listing import (
    job_is_over,
    key_by_name,
    key_of,
    list_pods,
    name_of,
    pods_of_tasks,
    run_uid_of,
)
from crawler_lifecycle.adapters.kubernetes.looks.pod_waits import QUEUE_NAME
from crawler_lifecycle.adapters.kubernetes.looks.predicates import (
    JOB_NAME,
    deleted_before_scheduling,
    ended,
    ended_at,
    owner_of,
    sidecar_still_runs,
    suspended_before_scheduling,
)
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports import Clock, KeptEnd, TaskRef

from .held_pods import removal_patch

logger = logging.getLogger(__name__)

THREADS = 4
#: How long what is beside a crawler may take to end by itself.
BESIDE = timedelta(seconds=60)
#: Seconds between two lists of all pods that run, and how many times as long as such a list takes.
RUNNING_S, RUNNING_SHARE = 30.0, 20.0


class Finalizers:
    """The evidence that pods are kept for. Every method raises ``ApiError``."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="releases")
        self._list_running_at = 0.0
        self._outlived: list[KeptEnd] = []
        """Of the last list of pods that run: those whose crawler has ended."""

    def kept(self) -> list[KeptEnd]:
        """Tasks whose crawler has ended and whose pod is still held, in order.

        One list of pods that do not run, and now and then one of those that do. What a suspension took back is let go
        of on the way, because it is no end.
        """
        found = []
        for pod in list_pods(self._api, labels.ours(), "status.phase!=Running"):
            if self._is_kept(pod) and not (deleted_before_scheduling(pod) and self._went_back(pod)):
                found += _ends([pod])
        if time.monotonic() >= self._list_running_at:
            self._list_running()
        return sorted([*found, *self._outlived], key=lambda end: end.key)

    def _list_running(self) -> None:
        began, now = time.monotonic(), self._clock()
        running = list_pods(self._api, labels.ours(), "status.phase=Running")
        late = [pod for pod in running if self._is_kept(pod) and now - (ended_at(pod) or now - BESIDE) >= BESIDE]
        self._outlived = _ends(late)
        ended_listing = time.monotonic()
        self._list_running_at = ended_listing + max(RUNNING_S, RUNNING_SHARE * (ended_listing - began))

    @staticmethod
    def _is_kept(pod: Pod) -> bool:
        return labels.FINALIZER in pod.metadata.finalizers and ended(pod)

    def _went_back(self, pod: Pod) -> bool:
        """Let go of a pod whose Job goes on without it; whether it was one."""
        name = pod.metadata.labels.get(JOB_NAME)
        try:
            job = decode_job(self._api.get(self._api.jobs_path(name))) if name else None
        except NotFound:
            return False
        if job is None or job.metadata.uid != owner_of(pod) or not suspended_before_scheduling(job, pod):
            return False
        self._patch(self._api.pods_path(pod.metadata.name), removal_patch(pod.metadata.uid))
        return True

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """All of these are tried; the first error is raised when that was done."""
        pods = pods_of_tasks(self._api, run, tasks)
        over = {task: [pod for pod in its if ended(pod)] for task, its in pods.items()}
        calls = [self._threads.submit(self._release, name_of(run.run_id, task), held) for task, held in over.items()]
        errors = [error for call in calls if (error := call.exception()) is not None]
        tried = {(run.run_id, task.index, task.attempt) for task in tasks}
        self._outlived = [end for end in self._outlived if end.key not in tried]
        if errors:
            raise errors[0]

    def _release(self, name: str, pods: Sequence[Pod]) -> None:
        mark = {labels.SETTLED: "true"}
        for uid in sorted({uid for pod in pods if (uid := owner_of(pod)) is not None}):
            answer = self._patch(self._api.jobs_path(name), {"metadata": {"uid": uid, "labels": mark}})
            job = decode_job(answer) if answer is not None else None
            if job is not None and job.spec.suspend and not job_is_over(job):
                self._finish(name, uid)
        for pod in pods:
            patch = removal_patch(pod.metadata.uid, end=sidecar_still_runs(pod), labels=mark)
            self._patch(self._api.pods_path(pod.metadata.name), patch)

    def _patch(self, path: str, body: dict[str, object]) -> bytes | None:
        """The object as it is now; ``None`` when it is gone or another one."""
        try:
            return self._api.patch(path, body, kind="strategic")
        except NotFound:
            return None
        except Conflict as error:  # by the uid: another object is there, which is none of ours
            logger.info("left alone: %s", error)
            return None

    def _finish(self, name: str, uid: str) -> None:
        """Have a suspended Job end by itself without a pod. Out of its queue first: that is fixed once it goes on."""
        alone = {"metadata": {"uid": uid, "labels": {QUEUE_NAME: None}}, "spec": {"parallelism": 0}}
        self._patch(self._api.jobs_path(name), alone)
        over = {"metadata": {"uid": uid}, "spec": {"suspend": False, "activeDeadlineSeconds": 1}}
        self._patch(self._api.jobs_path(name), over)


def _ends(pods: Sequence[Pod]) -> list[KeptEnd]:
    """The ends of those of which it is known whose they are."""
    found = []
    for pod in pods:
        key = key_of(pod.metadata) or key_by_name(pod)
        if key is not None:
            at = ended_at(pod)
            ran = at is not None and not deleted_before_scheduling(pod)
            found.append(KeptEnd(*key, owner_of(pod), run_uid_of(pod.metadata), ran, at))
    return found
