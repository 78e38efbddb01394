"""The port ``Cluster`` on Kubernetes: looks, stops and inventory of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.jobs.deletion import Deletion
from crawler_lifecycle.clusters.kubernetes.looks.inventory import Inventory, task_records
from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import CurrentNamespace, read_identity
from crawler_lifecycle.clusters.kubernetes.looks.pipeline import Looks
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import TaskRecord

from .looks.details import DetailReader, LogTails


def _now() -> datetime:
    return datetime.now(UTC)


class KubernetesCluster:
    """The Jobs and pods of one namespace. Implements ``Cluster``; thread-safe."""

    kind = "kubernetes"
    #: A node removes the container of a deleted pod as soon as it has ended, whatever our finalizer keeps of the pod.
    log_fades = True

    def __init__(self, api: Api, *, clock: Callable[[], datetime] = _now) -> None:
        self._api = api
        tails, deletion = LogTails(api), Deletion(api)
        self.look = Looks(api, tails, clock).look
        self.details = DetailReader(api, tails).read
        self.stop, self.kill = deletion.stop, deletion.kill
        self.inventory = Inventory(api, clock).page

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The namespace, with its uid and that of the cluster as far as we may read them. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when what is ``beside`` may live on in another namespace.
        """
        place = str(read_identity(self._api))
        if others := set(beside) - {place}:
            CurrentNamespace(self._api).gone_for_good(others)
        return place

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """Return what the run's Jobs know of its tasks. Raises ``ApiError``."""
        return task_records(self._api, run)
