"""The inventory: all our waiting and executing tasks on the cluster, in pages.

This module also reads the numbers and records of runs from their Jobs, in case the database lost
rows.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from bisect import bisect_right

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import NamedObject
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.names import run_number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import TaskRecord, TaskRef
from crawler_lifecycle.process_contract import recorded_task

from .listing import Key, key_of, read_objects, run_uid_of, task_id_of
from .namespace_identity import read_identity
from .reading import read_task

logger = logging.getLogger(__name__)

#: Seconds for which pages come from the same read of the cluster.
KEPT_S = 60.0


class Inventory:
    """A reader of the inventory. Thread-safe."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[int | None, tuple[float, list[ClusterTask]]] = {}

    def page(
        self, *, run_id: int | None = None, after: Key | None = None, limit: int = 500
    ) -> list[ClusterTask]:
        """Return at most ``limit`` tasks after the key ``after``.

        Later pages come from the same read of the cluster. Tasks with the same key, such as a new
        Job and the pod of an old one, are on the same page. So a page may be longer than ``limit``.
        Raises ``ApiError``.
        """
        begin = after or (0, -1, 0)
        with self._lock:
            kept = self._readings.get(run_id) if after is not None else None
        if kept is None or time.monotonic() - kept[0] > KEPT_S:
            kept = (time.monotonic(), self._read(run_id))
            with self._lock:
                old = [key for key, (at, _) in self._readings.items() if kept[0] - at > KEPT_S]
                for key in old:
                    del self._readings[key]
                self._readings[run_id] = kept
        rest = [task for task in kept[1] if task.key > begin]
        if not 0 < limit < len(rest):
            return rest[: max(limit, 0)]
        return rest[: bisect_right(rest, rest[limit - 1].key, key=lambda task: task.key)]

    def _read(self, run_id: int | None) -> list[ClusterTask]:
        """Read all tasks in order, except the settled tasks, which have ended."""
        now = self._clock()
        listed = read_objects(self._api, labels.ours() if run_id is None else labels.of_run(run_id))
        jobs = {job.metadata.uid: job for job in listed.jobs.values()}
        found = []
        for uid in {*jobs, *listed.pods}:
            job = jobs.get(uid)
            pods = listed.pods.get(uid, [])
            metas = [*([job.metadata] if job else []), *(pod.metadata for pod in pods)]
            key = next((key for meta in metas if (key := key_of(meta)) is not None), None)
            if key is None:
                logger.warning(
                    "%s has our label, but not the numbers of its run, task and attempt",
                    metas[0].name,
                )
                continue
            task_id = next(
                (number for meta in metas if (number := task_id_of(meta)) is not None), None
            )
            seen = read_task(TaskRef(task_id or 0, key[1], key[2], uid), job, pods, (), now)
            if seen.phase in (Phase.WAITING, Phase.EXECUTING):
                executing = seen.phase is Phase.EXECUTING
                run_uid = next((it for meta in metas if (it := run_uid_of(meta)) is not None), None)
                found.append(
                    ClusterTask(*key, executing, task_id, uid, seen.started_at, seen.node, run_uid)
                )
        return sorted(found, key=lambda task: (task.key, task.uid or ""))


def task_records(api: Api, run: RunRef) -> list[TaskRecord]:
    """Return the latest attempt of each task index of this run, including settled tasks.

    Raises ``ApiError``.
    """
    selector = f"{labels.of_run(run.run_id, settled=None)},{labels.RUN_UID}={run.uid}"
    latest: dict[int, tuple[int, str]] = {}
    for item in api.listing(api.jobs_path(), NamedObject, labels=selector).items:
        key = key_of(item.metadata)
        if key is not None:
            latest[key[1]] = max(latest.get(key[1], (0, "")), (key[2], item.metadata.name))
    place = str(read_identity(api)) if latest else None
    found = (_record(api, name, place) for _, (_, name) in sorted(latest.items()))
    return [record for record in found if record is not None]


def highest_run(api: Api, above: int = 0) -> int:
    """Return the highest run number in the labels of our Jobs and pods, or ``above`` if that is
    higher.

    Settled objects count too. Raises ``ApiError``.
    """
    for path in (api.jobs_path(), api.pods_path()):
        for item in api.listing(path, NamedObject, labels=labels.ours(settled=None)).items:
            above = max(above, run_number(item.metadata.labels.get(labels.RUN, "")))
    return above


def _record(api: Api, name: str, place: str | None) -> TaskRecord | None:
    """Return the task of a Job; ``None`` when the Job is gone or is not ours."""
    try:
        job = json.loads(api.get(api.jobs_path(name)))
    except NotFound:
        return None
    try:
        [crawler] = [
            c
            for c in job["spec"]["template"]["spec"]["containers"]
            if c["name"] == labels.CONTAINER
        ]
        # ``escaped`` has replaced ``$`` for the kubelet.
        contract = {
            variable["name"]: (variable.get("value") or "").replace("$$", "$")
            for variable in crawler["env"]
        }
        return recorded_task(
            contract,
            json.loads(job["metadata"].get("annotations", {}).get(labels.RECORD, "{}")),
            name=name,
            uid=job["metadata"]["uid"],
            place=place,
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
