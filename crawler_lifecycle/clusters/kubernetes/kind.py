"""The cluster kind ``kubernetes``, which creates the components for our processes.

Modules that are slow to import are imported on first use.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crawler_lifecycle.clusters.kind import ClusterKind, TaskEnvironment
from crawler_lifecycle.ports.cluster import Deployer, EvidenceKeeper, Observer, TaskFiles, TaskLogs
from crawler_lifecycle.ports.protocols import FilesPlace, KnowsRuns, TaskBundles
from crawler_lifecycle.settings import ClusterSettings

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api

    from .cluster import KubernetesCluster

_HERE = __package__
_DOCTOR = "crawler_lifecycle.cli.doctor.checks"


class KubernetesKind(ClusterKind):
    """The cluster kind whose tasks are Jobs of one namespace, each with one pod."""

    uploads = True
    window = 10
    checks: ClassVar = {
        "cluster": f"{_DOCTOR}.cluster:check_cluster",
        "files": f"{_DOCTOR}.destinations:check_files",
    }
    component = f"{_DOCTOR}.component:component"
    slow = tuple(
        f"{_HERE}.{name}" for name in ("client.connection", "polls.namespace_identity", "rbac")
    )

    def deployer(self, task_environment: TaskEnvironment | None) -> Deployer:
        from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer

        return KubernetesDeployer(
            api_of(self.settings), self.settings, task_environment=task_environment
        )

    def cluster(self) -> KubernetesCluster:
        from .cluster import KubernetesCluster

        return KubernetesCluster(api_of(self.settings))

    def files(self, bundles: TaskBundles | None) -> TaskFiles:
        from crawler_lifecycle.clusters.kubernetes.files.sources import task_files

        return task_files(self.settings.volume_claim, self.settings.volume_path, bundles)

    def numbers(self) -> KnowsRuns:
        return self.cluster()

    def observer(self) -> Observer:
        from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver

        return KubernetesObserver(api_of(self.settings))

    def logs(self) -> TaskLogs:
        from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs

        return PodLogs(api_of(self.settings))

    def files_elsewhere(self) -> str:
        c = self.settings
        if c.files_url is not None:
            return (
                f"the files are in the pods of the tasks; a pod uploads them to {c.files_url} "
                "at its end"
            )
        if c.volume_claim is not None:
            return (
                f"the files are on the volume of claim {c.volume_claim}, which this gateway "
                "does not mount"
            )
        return (
            "its tasks keep no files: neither LIFECYCLE_CLUSTER__FILES_URL nor "
            "LIFECYCLE_CLUSTER__VOLUME_CLAIM is set"
        )

    def keeper(self) -> EvidenceKeeper:
        from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers

        return Finalizers(api_of(self.settings), ttl_s=self.settings.job_ttl_s)

    def volume(self) -> FilesPlace | None:
        from crawler_lifecycle.clusters.volume import VolumePlace

        return None if self.settings.volume_path is None else VolumePlace(self.settings.volume_path)


def api_of(c: ClusterSettings) -> Api:
    """Return the Kubernetes API for these settings; the whole process shares one object.

    Raises ``InvalidRequest``.
    """
    return _api(c.kubeconfig, c.context, c.namespace, c.connect_timeout_s, c.read_timeout_s)


@functools.cache
def _api(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    connect_timeout_s: float,
    read_timeout_s: float,
) -> Api:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api

    return Api(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
    )
