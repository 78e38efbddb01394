"""Kinds of clusters.

One class for each kind makes all parts of such a cluster; it is chosen once, by its name. This module knows no
implementation. A kind imports its parts when a method is called: some take long to load, and no process needs all of
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType
from typing import ClassVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.ports.cluster import Cluster, Deployer, EvidenceKeeper, LiveFiles, Observer, TaskFiles, TaskLogs
from crawler_lifecycle.ports.protocols import FilesPlace, KnowsRuns, TaskBundles
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.settings import ClusterSettings

#: Variables that only one task may know, such as the gateway's address and a token for it.
TaskEnvironment = Callable[[Deployment, QueuedTask], Mapping[str, str]]

#: Name of a kind -> its class. ``LIFECYCLE_CLUSTER__KIND`` may name any other class in the same way.
KINDS: Mapping[str, str] = {
    "local": "crawler_lifecycle.clusters.local.kind:LocalKind",
    "kubernetes": "crawler_lifecycle.clusters.kubernetes.kind:KubernetesKind",
}


class ClusterKind(ABC):
    """One kind of cluster: everything that our processes need of it (docs/clusters.md).

    ``settings`` is the section ``cluster``. Every method may raise ``InvalidRequest`` that names the setting and the
    cure. The methods that are not abstract return the answer of a cluster without such a part.
    """

    on_this_machine: ClassVar[bool] = False
    """True when crawls take memory and disk of the machine of our own processes."""
    clears_itself: ClassVar[bool] = False
    """True when its deployer removes the files of old runs (``remove_old``), called by the scheduler service each
    hour.
    """
    uploads: ClassVar[bool] = False
    """True when tasks upload their files to ``LIFECYCLE_CLUSTER__FILES_URL``, where that is set."""
    checks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Checks of ``crawlctl doctor``, which alone imports them: name -> ``module:function``."""
    component: ClassVar[str | None] = None
    """``module:function`` by which the doctor finds the component in whose pod it runs."""
    slow: ClassVar[Sequence[str]] = ()
    """Modules that these checks need and that take long to import."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings

    @abstractmethod
    def deployer(self, task_environment: TaskEnvironment | None) -> Deployer:
        """Return the object that starts tasks, for the scheduler service."""

    @abstractmethod
    def cluster(self) -> Cluster:
        """Return the object that looks at tasks and ends them, for the roles that ask the cluster."""

    @abstractmethod
    def files(self, bundles: TaskBundles | None) -> TaskFiles:
        """Return the source of the tasks' files for archives, without a connection to the cluster.

        ``bundles``: the files that tasks uploaded.
        """

    @abstractmethod
    def numbers(self) -> KnowsRuns:
        """Return the object that reads the numbers of runs on the cluster."""

    def observer(self) -> Observer | None:
        """Return the observer that reports changes at once; without one, the next looks find them."""
        return None

    def logs(self) -> TaskLogs | None:
        """Return the reader of the tasks' output, for the gateway."""
        return None

    def live_files(self) -> LiveFiles | None:
        """Return the reader of the files that tasks leave while they execute, for the gateway."""
        return None

    def files_elsewhere(self) -> str | None:
        """In words, where tasks leave files that are no ``live_files``."""
        return None

    def keeper(self) -> EvidenceKeeper | None:
        """Return the keeper of the ends of tasks until they are on record."""
        return None

    def volume(self) -> FilesPlace | None:
        """The volume, or the folders, on which tasks leave files, if they are here."""
        return None


def kind_of(settings: ClusterSettings) -> ClusterKind:
    """The kind that the settings name. Raises ``InvalidRequest`` for one that there is not."""
    name = settings.kind
    found, wrong = None, f"LIFECYCLE_CLUSTER__KIND: {name!r:.200}"
    if name not in KINDS and ":" not in name:
        raise InvalidRequest(f"{wrong} is no kind of cluster; give {', '.join(KINDS)}, or MODULE:CLASS of your own")
    try:
        found = resolve_name(KINDS.get(name, name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(f"{wrong} cannot be imported ({error}); install it beside this package") from error
    if not (isinstance(found, type) and issubclass(found, ClusterKind)):
        raise InvalidRequest(f"{wrong} is no ClusterKind; derive the class from {__name__}.ClusterKind")
    return found(settings)
