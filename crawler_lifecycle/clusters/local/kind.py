"""The cluster kind ``local``, which creates the parts of the local cluster for our processes."""

from __future__ import annotations

from crawler_lifecycle.clusters.kind import ClusterKind, TaskEnvironment
from crawler_lifecycle.clusters.local.folders.inventory import LocalRuns
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.ports.protocols import TaskBundles

from .cluster import LocalCluster
from .observer import LocalObserver


class LocalKind(ClusterKind):
    """The cluster kind whose tasks are processes on this machine."""

    clears_itself = True

    def deployer(self, task_environment: TaskEnvironment | None) -> LocalCluster:
        c = self.settings
        return LocalCluster(
            c.state_dir,
            c.slots,
            task_environment=task_environment,
            cgroup_setting=c.cgroup,
            run_as=c.run_as,
        )

    def capacity(self) -> tuple[int, int]:
        # Tasks that wait on the cluster itself start immediately in a free slot. The cluster's own
        # queue has positions for such tasks.
        return self.settings.slots, min(8, max(2, self.settings.slots // 2))

    def cluster(self) -> LocalCluster:
        return LocalCluster(self.settings.state_dir, self.settings.slots)

    def files(self, bundles: TaskBundles | None) -> LocalFiles:
        return LocalFiles(self.settings.state_dir)

    def numbers(self) -> LocalRuns:
        return LocalRuns(self.settings.state_dir)

    def volume(self) -> VolumePlace:
        return VolumePlace(self.settings.state_dir)

    def observer(self) -> LocalObserver:
        return LocalObserver(self.settings.state_dir)

    def logs(self) -> LocalLogs:
        return LocalLogs(self.settings.state_dir)

    def live_files(self) -> LocalFiles:
        return LocalFiles(self.settings.state_dir)
