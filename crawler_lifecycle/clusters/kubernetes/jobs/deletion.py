"""Deletion of Jobs and pods, to stop and kill tasks.

Each deletion names the uid, and may be repeated.

A Job is deleted in the foreground: it creates no new pods, its pods get one SIGTERM and their own
grace period, and it disappears after its last pod. An ended Job is not deleted, so that a late stop
changes nothing.

The API accepts a shorter grace period at any time. But a kubelet that has begun to end a pod
ignores it, and waits for the whole first grace period (Kubernetes 1.36: ``SyncTerminatingPod``,
kubernetes issue 113606).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import Conflict, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod
from crawler_lifecycle.clusters.kubernetes.polls.listing import (
    find_job,
    is_of,
    name_of,
    pods_of_jobs,
)
from crawler_lifecycle.clusters.kubernetes.polls.namespace_identity import CurrentNamespace
from crawler_lifecycle.clusters.kubernetes.polls.predicates import ended, job_is_over
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRef

logger = logging.getLogger(__name__)

#: Grace period of a killed pod in seconds. With 0, the API server removes the pod before its node
#: confirms the end.
KILL_GRACE_S = 1


class Deletion:
    """Requests that end tasks.

    A missing task is not an error. Every method raises ``ApiError``, and ``ClusterUnavailable`` for
    a missing task that may execute in another namespace.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Delete the Job in the foreground, unless it is already being deleted or has ended."""
        job = self._job(run, task)
        if job is not None:
            self._delete_job(job)
            return
        # The Job may have been deleted without its pods, which then still belong to the task.
        pods = self._pods(task.uid)
        self._check_place(task, pods)
        for pod in pods:
            if pod.metadata.deletion_timestamp is None and not ended(pod):
                self._delete_pod(pod)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Delete the task's pods with a grace period of one second, then its Job, and then pods
        that it created in the meantime.

        Later polls find the result. After a stop without force, a node may have begun a longer
        grace period, which it finishes first. Our runner asks the gateway about a forced stop, and
        then ends the crawler earlier. A pod is never removed from the API by force, because the
        crawler may still execute on a node that does not respond.

        The pods come first: deleting the Job first would begin the long grace period, which the
        kubelet keeps. The Job creates no second pod for a killed pod, because the Job allows no
        retries (``backoffLimit`` 0).
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
        """Kill those pods of the Job that have not ended and are not ``known``.

        Return all pods of the Job.
        """
        pods = self._pods(uid)
        for pod in pods:
            if pod.metadata.uid not in known and not ended(pod):
                self._delete_pod(pod, gracePeriodSeconds=KILL_GRACE_S)
        return pods

    def _check_place(self, task: TaskRef, pods: Sequence[Pod]) -> None:
        """Check that a missing task is not in another namespace, where this stop has no effect.

        Raises the errors of ``gone_for_good``.
        """
        if not pods:
            CurrentNamespace(self._api).gone_for_good([task.place])

    def _job(self, run: RunRef, task: TaskRef) -> Job | None:
        """Return the task's own Job; ``None`` when that Job is gone, or when a different Job has
        the name.
        """
        job = find_job(self._api, name_of(run.run_id, task))
        if job is not None and not is_of(run, task, job.metadata.uid, job.metadata):
            meant = task.uid or f"that of task {task.task_id}"
            logger.warning(
                "not deleted: the Job %s has the uid %s, not %s",
                job.metadata.name,
                job.metadata.uid,
                meant,
            )
            return None
        return job

    def _delete_job(self, job: Job) -> bool:
        """Delete the Job if it has not ended and is not being deleted.

        Return whether this call requested the deletion.
        """
        if job.metadata.deletion_timestamp is not None or job_is_over(job):
            return False
        self._delete(self._api.jobs_path(job.metadata.name), job, propagationPolicy="Foreground")
        return True

    def _pods(self, uid: str | None) -> list[Pod]:
        return pods_of_jobs(self._api, [uid]).get(uid, []) if uid is not None else []

    def _delete_pod(self, pod: Pod, **options: object) -> None:
        self._delete(
            self._api.pods_path(pod.metadata.name), pod, propagationPolicy="Background", **options
        )

    def _delete(self, path: str, one: Job | Pod, **options: object) -> None:
        try:
            self._api.delete(path, {"preconditions": {"uid": one.metadata.uid}, **options})
        except NotFound:
            return
        except Conflict as error:  # our object is gone, and a different object has its name
            logger.warning("not deleted: %s", error)
