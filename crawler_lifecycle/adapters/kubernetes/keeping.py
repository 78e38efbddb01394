"""What our finalizer keeps, and letting go of it once the end is on record.

Two changes for each task: its Job is marked as settled, then each of its pods is marked and freed in one patch. What is
settled leaves the selector of the looks. In this order, what a crash leaves half done is still found by its pod.

A Job that was suspended under its pod is not over: whoever resumes it (a queue does) would start a second pod of a task
whose end is on record. It is deleted, or without the right to that made a Job for no pods.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from crawler_lifecycle.domain.run import RunRef
from crawler_lifecycle.ports import KeptEnd, TaskRef

from . import labels
from .api import Api
from .errors import Conflict, NotFound, Refused
from .facts import ended, ended_at, owner_of, unborn
from .holding import freeing
from .listing import job_is_over, key_by_name, key_of, list_pods, name_of, pods_of_tasks, run_uid_of
from .objects import Pod, decode_job

logger = logging.getLogger(__name__)

THREADS = 4


class Keeping:
    """The evidence that pods are kept for. Every method raises ``ApiError``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="releases")

    def kept(self) -> list[KeptEnd]:
        """Tasks whose pod has ended and is still held, in order. One list, of pods that do not run."""
        found = []
        for pod in list_pods(self._api, labels.ours(), "status.phase!=Running"):
            key = key_of(pod.metadata) or key_by_name(pod)
            if key is not None and labels.FINALIZER in pod.metadata.finalizers and ended(pod):
                at = ended_at(pod)
                ran = at is not None and not unborn(pod)
                found.append(KeptEnd(*key, owner_of(pod), run_uid_of(pod.metadata), ran, at))
        return sorted(found, key=lambda end: end.key)

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """All of these are tried; the first error is raised when that was done."""
        pods = pods_of_tasks(self._api, run, tasks)
        over = {task: [pod for pod in its if ended(pod)] for task, its in pods.items()}
        calls = [self._threads.submit(self._release, name_of(run.run_id, task), held) for task, held in over.items()]
        errors = [error for call in calls if (error := call.exception()) is not None]
        if errors:
            raise errors[0]

    def _release(self, name: str, pods: Sequence[Pod]) -> None:
        mark = {labels.SETTLED: "true"}
        for uid in sorted({uid for pod in pods if (uid := owner_of(pod)) is not None}):
            answer = self._patch(self._api.jobs_path(name), {"metadata": {"uid": uid, "labels": mark}})
            job = decode_job(answer) if answer is not None else None
            if job is not None and job.spec.suspend and not job_is_over(job):
                self._delete(name, uid)
        for pod in pods:
            self._patch(self._api.pods_path(pod.metadata.name), freeing(pod.metadata.uid, labels=mark))

    def _patch(self, path: str, body: dict[str, object]) -> bytes | None:
        """The object as it is now; ``None`` when it is gone or another one."""
        try:
            return self._api.patch(path, body, kind="strategic")
        except NotFound:
            return None
        except Conflict as error:  # by the uid: another object is there, which is none of ours
            logger.info("left alone: %s", error)
            return None

    def _delete(self, name: str, uid: str) -> None:
        try:
            options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
            self._api.delete(self._api.jobs_path(name), options)
        except (NotFound, Conflict) as error:
            logger.info("left alone: %s", error)
        except Refused as error:  # whoever only looks may delete nothing; a Job for no pods will make none
            logger.info("kept for no pods, instead of deleted: %s", error)
            self._patch(self._api.jobs_path(name), {"metadata": {"uid": uid}, "spec": {"parallelism": 0}})
