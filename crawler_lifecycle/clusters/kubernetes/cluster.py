"""The port ``Cluster`` on Kubernetes: looks, stops and inventory of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.jobs.deletion import Deletion
from crawler_lifecycle.clusters.kubernetes.looks.inventory import Inventory, task_records
from crawler_lifecycle.clusters.kubernetes.looks.listing import Key
from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import CurrentNamespace, read_identity
from crawler_lifecycle.clusters.kubernetes.looks.pipeline import Looks
from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports import Details, Look, TaskRecord, TaskRef

from .looks.details.log_tails import LogTails
from .looks.details.reader import DetailReader


def _now() -> datetime:
    return datetime.now(UTC)


class KubernetesCluster:
    """The Jobs and pods of one namespace. Implements ``Cluster``; thread-safe."""

    kind = "kubernetes"
    #: A node removes the container of a deleted pod as soon as it has ended, whatever our finalizer keeps of the pod.
    log_fades = True

    def __init__(self, api: Api, *, clock: Callable[[], datetime] = _now) -> None:
        self._api = api
        tails = LogTails(api)
        self._looks = Looks(api, tails, clock)
        self._details = DetailReader(api, tails)
        self._deletion = Deletion(api)
        self._inventory = Inventory(api, clock)

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The namespace, with its uid and that of the cluster as far as we may read them. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when what is ``beside`` may live on in another namespace.
        """
        place = str(read_identity(self._api))
        if others := set(beside) - {place}:
            CurrentNamespace(self._api).gone_for_good(others)
        return place

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """Two complete lists, and questions by name about what should be in them and is not. Raises ``ApiError``."""
        return self._looks.look(run, tasks)

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, memory; tasks about which nothing can be read are left out.

        Raises ``ApiError`` when the pods cannot be listed.
        """
        return self._details.read(run, tasks)

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Delete the Job in the foreground: no new pods, one SIGTERM, and it is gone after its last pod.

        Raises ``ApiError``.
        """
        self._deletion.stop(run, task)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Delete its pods with a grace of a second. What that does is for looks to find out. Raises ``ApiError``.

        A node that has begun a longer grace, after a plain stop, finishes that one first; our runner learns of the
        force from the gateway and ends it. A pod's record is never removed by force: on a node that does not answer,
        the crawler may still execute.
        """
        self._deletion.kill(run, task)

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """What the run's Jobs know of its tasks. Raises ``ApiError``."""
        return task_records(self._api, run)

    def inventory(self, *, run_id: int | None = None, after: Key | None = None, limit: int = 500) -> list[ClusterTask]:
        """Everything of ours that waits or executes; a page may be longer than ``limit``. Raises ``ApiError``."""
        return self._inventory.page(run_id, after, limit)
