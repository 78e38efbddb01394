"""Deletion of Jobs and pods to stop and kill tasks: by uid, and each may be repeated.

A Job is deleted in the foreground: it makes no new pods, its pods get one SIGTERM and their own grace, and it
disappears after its last pod. An ended Job is left alone, so that a late stop changes nothing.

The API accepts a shorter grace at any time. The kubelet (1.36: ``SyncTerminatingPod``, kubernetes issue 113606) ignores
it once it has begun to end a pod: it waits for the whole first grace.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import Conflict, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod
from crawler_lifecycle.clusters.kubernetes.looks.listing import find_job, is_of, job_is_over, name_of, pods_of_jobs
from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import CurrentNamespace
from crawler_lifecycle.clusters.kubernetes.looks.predicates import ended
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRef

logger = logging.getLogger(__name__)

#: Grace of a killed pod in seconds. Not 0: that would remove the record without the node's word that it has ended.
KILL_GRACE_S = 1


class Deletion:
    """Asks tasks to end.

    A missing task is no error. Every method raises ``ApiError``, and ``ClusterUnavailable`` for a task that may live in
    another namespace.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Delete the Job in the foreground: no new pods, one SIGTERM, and it is gone after its last pod.

        A Job that is already being deleted gets no second request.
        """
        job = self._job(run, task)
        if job is not None:
            self._delete_job(job)
            return
        # The Job was deleted so that its pods stayed behind: they are the task now.
        pods = self._pods(task.uid)
        self._check_place(task, pods)
        for pod in pods:
            if pod.metadata.deletion_timestamp is None and not ended(pod):
                self._delete_pod(pod)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Delete its pods with a grace of a second.

        Later looks find the result. A node that has begun a longer grace, after a plain stop, finishes that one first;
        our runner learns from the gateway about the force and shortens it. A pod's record is never removed by force: on
        a node that does not answer, the crawler may still execute.

        Its pods before its Job: a kubelet keeps the grace that it began with, and that of a pod whose Job is deleted
        is the long one. Then the Job, and any pod that it made meanwhile.

        No second pod comes for one that is killed first: ours have no retries (``backoffLimit`` 0).
        """
        job = self._job(run, task)
        uid = job.metadata.uid if job is not None else task.uid
        pods = self._kill_pods(uid)
        if job is None:
            self._check_place(task, pods)
            return
        if self._delete_job(job):
            self._kill_pods(uid, {pod.metadata.uid for pod in pods})

    def _kill_pods(self, uid: str | None, known: Collection[str] = ()) -> list[Pod]:
        """Shorten the grace of a Job's pods that have not ended and are not ``known``. Returns all pods of the Job."""
        pods = self._pods(uid)
        for pod in pods:
            if pod.metadata.uid not in known and not ended(pod):
                self._delete_pod(pod, gracePeriodSeconds=KILL_GRACE_S)
        return pods

    def _check_place(self, task: TaskRef, pods: Sequence[Pod]) -> None:
        """Check that a missing task does not live elsewhere, where this stop would be lost. Raises the errors of a
        look.
        """
        if not pods:
            CurrentNamespace(self._api).gone_for_good([task.place])

    def _job(self, run: RunRef, task: TaskRef) -> Job | None:
        """The task's own Job; ``None`` when it is gone, or the name belongs to another object."""
        job = find_job(self._api, name_of(run.run_id, task))
        if job is not None and not is_of(run, task, job.metadata.uid, job.metadata):
            meant = task.uid or f"that of task {task.task_id}"
            logger.warning("left alone: Job %s is %s, meant was %s", job.metadata.name, job.metadata.uid, meant)
            return None
        return job

    def _delete_job(self, job: Job) -> bool:
        """Delete the Job if it can make pods. Returns whether it could: it had neither ended nor was it being
        deleted.
        """
        if job.metadata.deletion_timestamp is not None or job_is_over(job):
            return False
        self._delete(self._api.jobs_path(job.metadata.name), job, propagationPolicy="Foreground")
        return True

    def _pods(self, uid: str | None) -> list[Pod]:
        return pods_of_jobs(self._api, [uid]).get(uid, []) if uid is not None else []

    def _delete_pod(self, pod: Pod, **options: object) -> None:
        self._delete(self._api.pods_path(pod.metadata.name), pod, propagationPolicy="Background", **options)

    def _delete(self, path: str, one: Job | Pod, **options: object) -> None:
        try:
            self._api.delete(path, {"preconditions": {"uid": one.metadata.uid}, **options})
        except NotFound:
            return
        except Conflict as error:  # the intended object is gone, and another one has its name
            logger.warning("left alone: %s", error)
